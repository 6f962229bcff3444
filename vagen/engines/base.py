"""The interface that the local and the distributed engine implement."""

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
"""Called with the number of rows processed since the last call."""
Play = Callable[..., tuple[list[Trajectory], Images]]
"""Plays episodes; same arguments as `Engine.play`, and `groups` where the engine supports it."""
ResultT = TypeVar("ResultT")
Finish = Callable[[], dict[str, FileEntry]]
"""Waits until a checkpoint is written. Returns the digests already computed, by file name. Called
once, from any thread."""


class Engine(Protocol):
    """Holds the policy, critic, reference and optimizers between steps."""

    version: str | None
    """Version of the weights: `warm_start` or `iteration-0007`; None if not on disk."""
    lr_scale: float
    """Factor on every learning rate; saved and loaded with the weights."""
    updates: int
    """Updates made so far; saved and loaded with the weights."""
    config_digest: str
    """Digest of the experiment that the engine was made for."""
    processor: Processor
    """Processor of the policy's model."""
    credit: Credit | None
    """Running statistics of `adaptive_credit`; None for other estimators."""
    performance: Performance
    """Measures the speed of the engine's calls."""

    same_logprobs: bool
    """Whether `play` records the same log-probabilities as `logprobs`, up to rounding."""

    @property
    def learns_values(self) -> bool:
        """Whether there is a critic."""
        ...

    @property
    def kl_coef(self) -> float:
        """Current coefficient of the KL penalty in the reward."""
        ...

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        sampling: SamplingConfig,
        split: str,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> tuple[list[Trajectory], Images]:
        """Plays episodes with the current weights; returns them in order, and all frames.

        Raises:
            RenderError: The model cannot read an observation, or a prompt is too long.
            EpisodesFailed: Every episode failed in its environment.
        """
        ...

    def play_in_background(self, work: Callable[[Play], ResultT]) -> Future[ResultT]:
        """Plays with the current weights while the engine learns.

        Args:
            work: Called in another thread, with a function that plays as `play` does.

        Returns:
            The result of `work`. `play` and `close` wait for it.

        Raises:
            ConfigError: The engine cannot play and learn at the same time.
        """
        ...

    def action_mask(self, row: TokenRow) -> NDArray[np.bool_]:
        """Tokens of the policy loss, bool [T]: M^loss, or every token that could be sampled.

        False everywhere in a row without sampled tokens.
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
        """One PPO update of actor and critic from rows with all columns; returns metrics.

        An update without rows learns nothing but is counted.
        """
        ...

    def begin_save(self, directory: Path) -> Finish:
        """Copies everything that `load` needs to host memory and starts writing it.

        The engine may do anything except another save in the meantime.

        Args:
            directory: An existing folder that every node can read.

        Returns:
            Ends the writing. An `OSError` is the disk's and does not damage the engine.
        """
        ...

    def save(self, directory: Path) -> None:
        """Writes a checkpoint and waits until it is written."""
        ...

    def load(self, directory: Path, *, version: str) -> None:
        """Restores a checkpoint of `save`."""
        ...

    def profiled(self, path: Path) -> AbstractContextManager[None]:
        """Records the computation of a block on the first rank as a Chrome trace."""
        ...

    def close(self) -> None:
        """Frees all resources; the engine cannot be used afterwards."""
        ...
