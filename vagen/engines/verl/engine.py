"""The engine for many machines: actor, critic and reference are verl's worker groups on Ray.

Shape legend: R rows, T tokens of a row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Protocol

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
from vagen.engines.verl import checkpoint, rollout
from vagen.engines.verl.errors import Processes
from vagen.engines.verl.objectives import PARTS, policy_loss, value_loss
from vagen.engines.verl.rows import at_tokens, balanced, before_tokens, padded, to_batch
from vagen.models.processor import load_processor
from vagen.rollout.play import check_rendering
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import TokenRow, Trajectory


class Workers(Protocol):
    """The distributed parts, as `vagen.engines.verl.trainer.VagenTrainer` holds them."""

    actor_rollout_wg: Any
    """Worker group of `PolicyWorker`."""
    critic_wg: Any
    """Worker group of `CriticWorker`, if there is a critic."""
    ref_policy_wg: Any
    """Worker group with the reference, if there is one and no adapter."""
    agent_loop_manager: Any
    """Hands episodes to the processes that play: see `vagen.engines.verl.rollout.play`."""

    def synchronize(self) -> None:
        """Gives the servers the policy's weights, if they have others."""
        ...

    def weights_changed(self) -> None:
        """The policy has other weights than the servers."""
        ...

    def processes(self) -> dict[str, Any]:
        """All Ray actors by name."""
        ...

    def close(self) -> None:
        """Ends all processes."""
        ...

    def make_room(self) -> None:
        """Servers give up the memory that training on their GPUs needs."""
        ...


class VerlEngine(PpoEngine):
    """Implements `vagen.engines.base.Engine`."""

    def __init__(
        self,
        config: ExperimentConfig,
        model_path: str | Path,
        *,
        workers: Workers,
        version: str = "initial",
        environments: EnvironmentsConfig | None = None,
        on_close: Callable[[], None] = lambda: None,
    ):
        """Takes over worker groups that hold the model at `model_path`.

        Args:
            config: The experiment.
            model_path: What the policy, the critic's backbone and the reference were loaded from.
            workers: The distributed parts.
            version: Name of the weights.
            environments: Where environments run; None is the default.
            on_close: Called when the workers are gone.
        """
        super().__init__(config, load_processor(model_path), version)
        self.workers = workers
        self._environments = environments
        self._on_close = on_close
        self.processes = Processes(workers.processes())
        self._thread = ThreadPoolExecutor(1)
        self._aside: Future[Any] | None = None
        models = config.actor_rollout_ref
        workers.actor_rollout_wg.set_loss_fn(partial(policy_loss, config=models.actor))
        if self.learns_values:
            cliprange = config.critic.cliprange_value
            workers.critic_wg.set_loss_fn(partial(value_loss, cliprange_value=cliprange))

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
        self._finish_aside()
        with self.processes.watched():
            self.workers.synchronize()
            return self._play(specs, sampling=sampling, split=split, on_finish=on_finish)

    def aside(self, work: Callable[[Play], Result]) -> Future[Result]:
        """Plays while the networks learn, with the weights of now; see `Engine.aside`."""
        self._finish_aside()
        with self.processes.watched():
            self.workers.synchronize()
        self._aside = self._thread.submit(work, self._play_aside)
        return self._aside

    def logprobs(
        self, rows: Sequence[TokenRow], images: Images, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of the action tokens, float32 [T] per row, 0 elsewhere."""
        workers, options = self.workers, {}
        compute = workers.actor_rollout_wg.compute_log_prob
        if reference:
            assert has_reference(self.config)
            if self.config.actor_rollout_ref.model.lora_rank > 0:
                options["no_lora_adapter"] = True
            else:
                compute = workers.ref_policy_wg.compute_ref_log_prob
        outputs = self._infer(compute, "log_probs", rows, images, options)
        return [
            np.where(self.action_mask(row), values, np.float32(0))
            for row, values in zip(rows, before_tokens(outputs), strict=True)
        ]

    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values before each token, float32 [T] per row, and after the last one, float32 [R]."""
        outputs = self._infer(self.workers.critic_wg.infer_batch, "values", rows, images)
        last = np.array([values[-1] for values in at_tokens(outputs)], dtype=np.float32)
        return before_tokens(outputs), last

    def save(self, directory: Path) -> None:
        """Writes a checkpoint (see `vagen.engines.verl.checkpoint`); all nodes see the folder.

        Raises:
            StorageError: A rank wrote its files elsewhere.
        """
        directory = directory.absolute()
        with self.processes.watched():
            self.workers.make_room()
            self.workers.actor_rollout_wg.export_policy(str(directory / checkpoint.POLICY))
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
        self.version = f"{version}, being loaded"
        with self.processes.watched():
            self.workers.make_room()
            for name, group in self._learners():
                checkpoint.check_shards(directory / name)
                group.load_checkpoint(str(directory / name))
            self.workers.weights_changed()
        self.load_state(directory)
        self.version = version

    def close(self) -> None:
        """Ends the distributed parts; the engine cannot be used any more."""
        self._finish_aside()
        self._thread.shutdown()
        self.workers.close()
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
            group, columns = self.workers.actor_rollout_wg, self._actor_columns()
            options["calculate_entropy"] = True
        else:
            group, columns = self.workers.critic_wg, ("values", "returns", CRITIC_MASK)
        batch, _ = self._batch(group, rows, images, columns, options)
        with self.processes.watched():
            self.workers.make_room()
            metrics = _ready(group.train_batch(batch))["metrics"]
        if step.network == "actor":
            self.workers.weights_changed()
        if on_progress is not None:
            on_progress(len(rows))
        return Stepped(
            loss=metrics["loss"], grad_norm=metrics["grad_norm"], parts=list(_flat(metrics[PARTS]))
        )

    def _play_aside(self, *args: Any, **kwargs: Any) -> tuple[list[Trajectory], Images]:
        with self.processes.watched():
            return self._play(*args, **kwargs)

    @property
    def _play(self) -> Play:
        """Plays with the weights that the servers have."""
        return partial(rollout.play, self.workers.agent_loop_manager)

    def _finish_aside(self) -> None:
        """Waits for what is played aside; whether it failed is for whoever takes its result."""
        if self._aside is not None:
            wait([self._aside])
            self._aside = None

    def _shift_values(self, shift: float) -> None:
        with self.processes.watched():
            self.workers.critic_wg.shift_values(shift)

    def _learners(self) -> Iterator[tuple[str, Any]]:
        """Worker groups that learn, with their folders in a checkpoint."""
        yield checkpoint.ACTOR, self.workers.actor_rollout_wg
        if self.learns_values:
            yield checkpoint.CRITIC, self.workers.critic_wg

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
        group = self.workers.actor_rollout_wg
        batch, places = self._batch(group, rows, images, (), options)
        with self.processes.watched():
            self.workers.make_room()
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
