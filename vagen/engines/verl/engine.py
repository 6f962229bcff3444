"""The engine for many machines: actor, critic and reference are verl's worker groups on Ray.

Shape legend: R rows, T tokens of a row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from vagen.config.checks import has_reference
from vagen.config.environments import EnvironmentsConfig
from vagen.config.schema import ExperimentConfig, SamplingConfig
from vagen.engines.base import Images, OnProgress, Play, Result
from vagen.engines.objectives import CRITIC_MASK
from vagen.engines.ppo import PpoEngine, Step, Stepped
from vagen.engines.verl import checkpoint, players
from vagen.engines.verl.errors import Processes
from vagen.engines.verl.groups import WorkerGroups
from vagen.engines.verl.objectives import PARTS, policy_loss, value_loss
from vagen.engines.verl.rows import at_tokens, balanced, before_tokens, padded, to_batch
from vagen.models.processor import load_processor
from vagen.rollout.play import check_rendering
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import TokenRow, Trajectory


class VerlEngine(PpoEngine):
    """Implements `vagen.engines.base.Engine`."""

    def __init__(
        self,
        config: ExperimentConfig,
        model_path: str | Path,
        *,
        groups: WorkerGroups,
        version: str = "initial",
        environments: EnvironmentsConfig | None = None,
        on_close: Callable[[], None] = lambda: None,
    ):
        """Takes over processes whose networks hold the model at `model_path`.

        Args:
            config: The experiment.
            model_path: What the policy, the critic's backbone and the reference were loaded from.
            groups: The processes.
            version: Name of the weights.
            environments: Where environments run; None is the default.
            on_close: Called when the processes are gone.
        """
        super().__init__(config, load_processor(model_path), version)
        self.groups = groups
        self._environments = environments
        self._on_close = on_close
        self.processes = Processes(groups.processes())
        self._thread = ThreadPoolExecutor(1)
        self._background: Future[Any] | None = None
        models = config.actor_rollout_ref
        groups.policy.set_loss_fn(partial(policy_loss, config=models.actor))
        if self.learns_values:
            cliprange = config.critic.cliprange_value
            groups.critic.set_loss_fn(partial(value_loss, cliprange_value=cliprange))

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        sampling: SamplingConfig,
        split: str,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> tuple[list[Trajectory], Images]:
        """Plays episodes with the present weights; see `Engine.play`.

        Raises:
            EngineLost: A process died or failed; so do all methods, from then on.
        """
        check_rendering(self.config, self.processor, split, self._environments)
        self._await_background()
        with self.processes.watched():
            self.groups.synchronize()
        return self._play(specs, sampling=sampling, split=split, on_finish=on_finish)

    def play_in_background(self, work: Callable[[Play], Result]) -> Future[Result]:
        """Plays while the networks learn; see `Engine.play_in_background`."""
        self._await_background()
        with self.processes.watched():
            self.groups.synchronize()
        self._background = self._thread.submit(work, self._play)
        return self._background

    def logprobs(
        self, rows: Sequence[TokenRow], images: Images, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of the action tokens, float32 [T] per row, 0 elsewhere."""
        policy, options = self.groups.policy, {}
        compute = policy.compute_log_prob
        if reference:
            assert has_reference(self.config)
            if self.config.actor_rollout_ref.model.lora_rank > 0:
                options["no_lora_adapter"] = True
            else:
                compute = policy.compute_ref_log_prob
        outputs = self._infer(compute, "log_probs", rows, images, options)
        return [
            np.where(self.action_mask(row), values, np.float32(0))
            for row, values in zip(rows, before_tokens(outputs), strict=True)
        ]

    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values before each token, float32 [T] per row, and after the last one, float32 [R]."""
        outputs = self._infer(self.groups.critic.infer_batch, "values", rows, images)
        last = np.array([values[-1] for values in at_tokens(outputs)], dtype=np.float32)
        return before_tokens(outputs), last

    def save(self, directory: Path) -> None:
        """Writes a checkpoint (see `vagen.engines.verl.checkpoint`); all nodes see the folder.

        Raises:
            StorageError: A rank wrote its files elsewhere.
        """
        directory = directory.absolute()
        with self.processes.watched():
            self.groups.make_room()
            self.groups.policy.export_policy(str(directory / checkpoint.POLICY))
            for name, group in self._learners():
                group.save_checkpoint(str(directory / name))
                checkpoint.check_shards(directory / name, group.world_size)
        self.save_state(directory)

    def load(self, directory: Path, *, version: str) -> None:
        """Takes up what `save` wrote on any number of ranks; the reference and frozen bases stay.

        Raises:
            StorageError: The checkpoint is not one of this engine, or not whole.
        """
        directory = directory.absolute()
        self.version = None
        with self.processes.watched():
            self.groups.make_room()
            for name, group in self._learners():
                checkpoint.check_shards(directory / name)
                group.load_checkpoint(str(directory / name))
            self.groups.weights_changed()
        self.load_state(directory)
        self.version = version

    def close(self) -> None:
        """Ends the distributed parts; the engine cannot be used any more."""
        self._await_background()
        self._thread.shutdown()
        self.groups.close()
        self._on_close()

    def _step(
        self,
        step: Step,
        rows: Sequence[TokenRow],
        images: Images,
        on_progress: OnProgress | None,
    ) -> Stepped:
        """Ranks share the mini batch; what they do with their shares is verl's."""
        options: dict[str, Any] = {
            "lr": step.lr,
            "grad_clip": step.grad_clip,
            "grad_norm_threshold": step.grad_norm_threshold,
            "denominator": float(step.denominator),
            "value_shift": step.value_shift,
        }
        if step.network == "actor":
            group, columns = self.groups.policy, self._actor_columns()
            options["calculate_entropy"] = True
        else:
            group, columns = self.groups.critic, ("values", "returns", CRITIC_MASK)
        batch, _ = self._batch(group, rows, images, columns, options)
        with self.processes.watched():
            self.groups.make_room()
            metrics = _ready(group.train_batch(batch))["metrics"]
        if step.network == "actor":
            self.groups.weights_changed()
        if on_progress is not None:
            on_progress(len(rows))
        return Stepped(
            loss=metrics["loss"], grad_norm=metrics["grad_norm"], parts=list(_flat(metrics[PARTS]))
        )

    def _play(
        self, specs: Sequence[EpisodeSpec], **options: Any
    ) -> tuple[list[Trajectory], Images]:
        """Plays with the weights that the servers have."""
        with self.processes.watched():
            return players.play(self.groups.players, specs, **options)

    def _await_background(self) -> None:
        """Waits for what is played in the background; its caller finds out whether it failed."""
        if self._background is not None:
            wait([self._background])
            self._background = None

    def _shift_values(self, shift: float) -> None:
        with self.processes.watched():
            self.groups.critic.shift_values(shift)

    def _learners(self) -> Iterator[tuple[str, Any]]:
        """Worker groups that learn, with their folders in a checkpoint."""
        yield checkpoint.ACTOR, self.groups.policy
        if self.learns_values:
            yield checkpoint.CRITIC, self.groups.critic

    def _actor_columns(self) -> tuple[str, ...]:
        config = self.config.actor_rollout_ref.actor
        columns = ("old_logprobs", "advantages")
        if config.tis_imp_ratio_cap is not None:
            columns += ("rollout_logprobs", "loss_mask")
        return (*columns, "ref_logprobs") if config.use_kl_loss else columns

    def _infer(
        self,
        compute: Any,
        name: str,
        rows: Sequence[TokenRow],
        images: Images,
        options: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        """One output of a network at every token, jagged [R, T]."""
        options = {"compute_loss": False, "calculate_entropy": False} | (options or {})
        batch, places = self._batch(self.groups.policy, rows, images, (), options)
        with self.processes.watched():
            self.groups.make_room()
            parts = _ready(compute(batch))[name].unbind()
        ordered = [parts[place] for place in np.argsort(places)][: len(rows)]
        return torch.nested.as_nested_tensor(ordered, layout=torch.jagged)

    def _batch(
        self,
        group: Any,
        rows: Sequence[TokenRow],
        images: Images,
        columns: Iterable[str],
        options: dict[str, Any],
    ) -> tuple[TensorDict, list[int]]:
        """The rows for all ranks of a group, and which row is at each place."""
        ranks = group.world_size
        full = padded(rows, ranks)
        order = balanced(full, ranks)
        temperature = self.temperature or 1.0  # greedy is read as 1
        batch = to_batch(
            [full[i] for i in order],
            images,
            self.processor,
            action_mask=self.action_mask,
            columns=columns,
            temperature=temperature,
            **options,
        )
        return batch, order


def _ready(output: Any) -> TensorDict:
    """What a call of a worker group returns, awaited."""
    return output.get() if hasattr(output, "futures") else output


def _flat(parts: Any) -> Iterable[Any]:
    """Metrics of all micro batches of all ranks."""
    for part in parts:
        if isinstance(part, list):
            yield from _flat(part)
        else:
            yield part
