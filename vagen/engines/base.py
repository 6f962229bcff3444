"""What an engine does: the same algorithm on one machine or on many."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from vagen.advantage import Credit
from vagen.config.schema import SamplingConfig
from vagen.engines.performance import Performance
from vagen.models.processor import Processor
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import TokenRow, Trajectory
from vagen.storage import FileEntry

Images = dict[str, bytes]
"""PNG bytes by SHA-256."""
OnProgress = Callable[[int], None]
"""Called with the number of rows done since the last call."""
Play = Callable[..., tuple[list[Trajectory], Images]]
"""Plays episodes, called as `Engine.play` is; with `groups` too where the engine takes it."""
ResultT = TypeVar("ResultT")
Finish = Callable[[], dict[str, FileEntry]]
"""Returns once all of a checkpoint is written: digests of its files by name, as far as they were
taken meanwhile. Called once, from any thread."""


class Engine(Protocol):
    """Holds policy, critic, reference and optimizers between steps."""

    version: str | None
    """Name of the policy's weights: `warm_start` or `iteration-0007`; None while they are no
    version that is on disk."""
    lr_scale: float
    """What every learning rate is multiplied by; saved and loaded with the weights."""
    updates: int
    """Updates made so far; saved and loaded with the weights."""
    config_digest: str
    """Of the experiment that it was made for."""
    processor: Processor
    """Of the policy's model."""
    credit: Credit | None
    """Running statistics of `adaptive_credit`; None for other estimators."""
    performance: Performance
    """How fast it has been."""

    same_logprobs: bool
    """Whether `play` records what `logprobs` says, but for rounding."""

    @property
    def learns_values(self) -> bool:
        """Whether there is a critic."""
        ...

    @property
    def kl_coef(self) -> float:
        """Present coefficient of the KL penalty in the reward."""
        ...

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        sampling: SamplingConfig,
        split: str,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> tuple[list[Trajectory], Images]:
        """Plays episodes with the present weights; returns them in order, and every frame shown.

        Raises:
            RenderError: The model cannot read what an environment shows, or a prompt is too long.
            EpisodesFailed: Every episode failed in its environment.
        """
        ...

    def play_in_background(self, work: Callable[[Play], ResultT]) -> Future[ResultT]:
        """Plays with the present weights while the engine learns.

        Args:
            work: Called in another thread, with a function that plays as `play` does.

        Returns:
            What `work` will return. Until then `play` and `close` wait.

        Raises:
            ConfigError: The engine cannot do two things at a time.
        """
        ...

    def action_mask(self, row: TokenRow) -> NDArray[np.bool_]:
        """Bool [T]: tokens the policy loss reads (M^loss, or every token it could have sampled).

        None of a row without sampled tokens.
        """
        ...

    def logprobs(
        self, rows: Sequence[TokenRow], images: Images, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of the action tokens, [T] per row, 0 elsewhere."""
        ...

    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values [T] per row (entry t: before token t), and the value [R] after the last token."""
        ...

    def update(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        *,
        seed: int,
        actor: bool = True,
        on_progress: OnProgress | None = None,
    ) -> dict[str, float]:
        """One PPO update of actor and critic from rows that carry all columns; returns metrics.

        Without rows nothing is learnt, and the update counts all the same.
        """
        ...

    def begin_save(self, directory: Path) -> Finish:
        """Copies all that `load` needs to go on identically to host memory, to be written there.

        The engine may do whatever comes next while it is written, but save again.

        Args:
            directory: Is there; every node sees it.

        Returns:
            What ends the writing; its `OSError` is of the disk and leaves the engine as it is.
        """
        ...

    def save(self, directory: Path) -> None:
        """Begins and ends it."""
        ...

    def load(self, directory: Path, *, version: str) -> None:
        """Takes up what `save` wrote."""
        ...

    def profiled(self, path: Path) -> AbstractContextManager[None]:
        """Records what the networks compute in a block, on the first rank, as a Chrome trace."""
        ...

    def close(self) -> None:
        """Lets everything go; the engine cannot be used any more."""
        ...
