"""The engine for many machines: actor, critic and reference are verl's worker groups on Ray.

Shape legend: R rows, T tokens of a row.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.config.infra import EnvironmentsConfig
from vagen.config.schema import ExperimentConfig, SamplingConfig
from vagen.engines.base import Engine, Finish, Images, OnProgress, Play, ResultT, Step, StepResult
from vagen.engines.objectives import (
    COVARYING,
    CRITIC_MASK,
    PER_TRAJECTORY,
    TRAJECTORY_TOKENS,
    reads_turns,
)
from vagen.engines.verl import checkpoint, rollout_workers
from vagen.engines.verl.errors import EngineProcesses
from vagen.engines.verl.groups import WorkerGroups
from vagen.engines.verl.precomputed import Outputs, PrecomputedOutputs
from vagen.engines.verl.rows import Share, SharedRows, before_tokens
from vagen.engines.verl.workers import PARTS, RankReply, policy_loss, value_loss
from vagen.learning import COVARIANCE_MODES
from vagen.models.processor import load_processor
from vagen.rollout.play import check_rendering
from vagen.rollout.runner import EpisodeSpec, derive_seed
from vagen.rollout.types import TokenRow, Trajectory
from vagen.storage import FileEntry

POLL_SECONDS = 1.0
"""Longest interval between polls of the ranks' checkpoint progress."""


class VerlEngine(Engine):
    """See `vagen.engines.base.Engine`."""

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
        """Takes over processes whose networks were loaded from `model_path`.

        Args:
            config: The experiment.
            model_path: Source of the policy, the critic's backbone and the reference.
            groups: The processes.
            version: Name of the weights.
            environments: Where environments run; None for the default.
            on_close: Called when the processes have ended.
        """
        super().__init__(config, load_processor(model_path), version)
        self.groups = groups
        self._environments = environments
        self._on_close = on_close
        self.processes = EngineProcesses(groups.processes())
        self._rows = SharedRows(self.processor, self.action_mask)
        frozen = config.actor_rollout_ref.model.freeze_vision_tower
        if frozen and self.processor.family.patch_grids:
            self._rows.encode = self._encode
        self._early = PrecomputedOutputs(config, self._compute, groups.policy.world_size)
        self._thread = ThreadPoolExecutor(1)
        self._background: Future[Any] | None = None
        models = config.actor_rollout_ref
        groups.policy.set_loss_fn(partial(policy_loss, config=models.actor))
        if self.learns_values:
            groups.critic.set_loss_fn(value_loss)

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        sampling: SamplingConfig,
        split: str,
        groups: int | None = None,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> tuple[list[Trajectory], Images]:
        """Plays episodes with the current weights; see `Engine.play`; `groups` as in
        `players.play`.

        Meanwhile, ranks without servers on their GPUs compute `logprobs` and `values` of ended
        episodes.

        Raises:
            EngineLost: A process died or failed; all later calls raise it too.
        """
        check_rendering(self.config, self.processor, split, self._environments)
        self._await_background()
        with self.processes.watched():
            self.groups.synchronize()
        # Greedy episodes are mostly evaluations, whose log-probabilities are not needed.
        early = self.groups.separate_servers and sampling.temperature > 0
        self._early.begin()
        return self._play(
            specs,
            sampling=sampling,
            split=split,
            groups=groups,
            on_finish=on_finish,
            meanwhile=self._early.answer if early else None,
        )

    def play_in_background(self, work: Callable[[Play], ResultT]) -> Future[ResultT]:
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
        outputs = self._infer("reference" if reference else "logprobs", rows, images)
        return [
            np.where(self.action_mask(row), values, np.float32(0))
            for row, values in zip(rows, before_tokens(outputs), strict=True)
        ]

    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values before each token, float32 [T] per row, and after the last one, float32 [R]."""
        outputs = self._infer("values", rows, images)
        last = np.array([values[-1] for values in outputs], dtype=np.float32)
        return before_tokens(outputs), last

    def begin_save(self, directory: Path) -> Finish:
        """Copies a checkpoint to host memory (see `vagen.engines.verl.checkpoint`) and starts
        writing it.

        All nodes must see the folder. The returned function polls the ranks between their other
        work and raises `StorageError` if a rank's files are missing from the folder.
        """
        directory = directory.absolute()
        with self.processes.watched():
            self.groups.make_room()
            self.groups.policy.export_policy(str(directory / checkpoint.POLICY))
            for name, group in self._learners():
                group.save_checkpoint(str(directory / name))
        self.save_state(directory)
        return partial(self._end_save, directory)

    def _end_save(self, directory: Path) -> dict[str, FileEntry]:
        entries: dict[str, FileEntry] = {}
        errors: list[OSError] = []
        pause = 0.05
        while True:
            with self.processes.watched():
                answers: list[checkpoint.Written] = self.groups.policy.written()
            for found, error in answers:
                entries |= found or {}
                errors += [error] if error is not None else []
            if all(found is not None or error is not None for found, error in answers):
                break
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
        if errors:
            raise errors[0]
        for name, group in self._learners():
            checkpoint.check_shards(directory / name, group.world_size)
        return entries

    def load(self, directory: Path, *, version: str) -> None:
        """Restores a checkpoint of any number of ranks; the reference and frozen bases stay.

        Raises:
            StorageError: The checkpoint is of another engine, or incomplete.
        """
        directory = directory.absolute()
        self.version = None
        self._early.forget()
        with self.processes.watched():
            self.groups.make_room()
            for name, group in self._learners():
                checkpoint.check_shards(directory / name)
                group.load_checkpoint(str(directory / name))
            self.groups.weights_changed()
        self.load_state(directory)
        self.version = version

    @contextmanager
    def profiled(self, path: Path) -> Iterator[None]:
        """Writes a Chrome trace of the first rank; see `Engine.profiled`."""
        with self.processes.watched():
            self.groups.policy.start_trace()
        yield
        with self.processes.watched():
            self.groups.policy.write_trace(str(path.absolute()))

    def close(self) -> None:
        """Ends all processes; the engine cannot be used afterwards."""
        self._await_background()
        self._thread.shutdown()
        self.groups.close()
        self._on_close()

    def _step(
        self, step: Step, rows: Sequence[TokenRow], images: Images, on_progress: OnProgress | None
    ) -> StepResult:
        """One optimizer step of verl's workers, which split the mini batch.

        They received its rows when the batch's log-probabilities were computed.
        """
        options: dict[str, Any] = {
            "lr": step.lr,
            "grad_clip": step.grad_clip,
            "grad_norm_threshold": step.grad_norm_threshold,
            "denominator": float(step.denominator),
            "value_shift": step.value_shift,
            "cliprange_value": step.cliprange_value,
        }
        if step.network == "actor":
            group, config = self.groups.policy, self.config.actor_rollout_ref.actor
            columns = ("old_logprobs", "advantages")
            if config.tis_imp_ratio_cap is not None:
                columns += ("rollout_logprobs", "loss_mask")
            if reads_turns(config):
                columns += ("turn_index",)
            if config.policy_loss.loss_mode in COVARIANCE_MODES:
                columns += (COVARYING,)
            if config.loss_agg_mode == PER_TRAJECTORY:
                columns += (TRAJECTORY_TOKENS,)
            if config.use_kl_loss:
                columns += ("ref_logprobs",)
            options |= {"calculate_entropy": True, "entropy_coeff": step.entropy_coeff}
        else:
            group, columns = self.groups.critic, ("values", "returns", CRITIC_MASK)
        self._early.forget()
        with self.processes.watched():
            self.groups.make_room()
            shares, _ = self._shares(rows, images, columns, options)
            first = group.learn(shares)[0]
        metrics = first.metrics
        self.performance.add(f"update_{step.network}", tokens=_tokens(rows), **first.measured)
        if step.network == "actor":
            self.groups.weights_changed()
        if on_progress is not None:
            on_progress(len(rows))
        return StepResult(
            loss=metrics["loss"], grad_norm=metrics["grad_norm"], parts=list(_flat(metrics[PARTS]))
        )

    def _play(
        self, specs: Sequence[EpisodeSpec], **options: Any
    ) -> tuple[list[Trajectory], Images]:
        """Plays with the servers' current weights."""
        with self.processes.watched():
            self.groups.seed(derive_seed(*(spec.sampling_seed for spec in specs)))
            return rollout_workers.play(self.groups.players, specs, **options)

    def _await_background(self) -> None:
        """Waits for background play without raising its error, which its caller gets."""
        if self._background is not None:
            wait([self._background])
            self._background = None

    def _shift_values(self, shift: float) -> None:
        self._early.forget()
        with self.processes.watched():
            self.groups.critic.shift_values(shift)

    def _learners(self) -> Iterator[tuple[str, Any]]:
        """Trained worker groups, with their folders in a checkpoint."""
        yield checkpoint.ACTOR, self.groups.policy
        if self.learns_values:
            yield checkpoint.CRITIC, self.groups.critic

    def _infer(self, call: str, rows: Sequence[TokenRow], images: Images) -> Outputs:
        """One output of a network at every token."""
        outputs, measured = self._early.complete(call, rows, images)
        for values in measured:
            self.performance.add(call, **values)
        return outputs

    def _compute(
        self, call: str, rows: Sequence[TokenRow], images: Images, batch: Sequence[TokenRow]
    ) -> tuple[Outputs, dict[str, Any]]:
        """One output of a network at every token, for rows of a batch, and measurements."""
        options: dict[str, Any] = {"compute_loss": False, "calculate_entropy": False}
        policy = self.groups.policy
        if call == "values":
            compute = self.groups.critic.values
        elif call == "logprobs":
            compute = policy.logprobs
        elif self.config.actor_rollout_ref.model.lora_rank > 0:
            compute = policy.logprobs
            options["no_lora_adapter"] = True
        else:
            compute = policy.reference_logprobs
        with self.processes.watched():
            self.groups.make_room()
            shares, places = self._shares(rows, images, (), options, batch)
            answers: list[RankReply] = compute(shares)
        outputs = [output for answer in answers for output in answer.outputs]
        found = [outputs[place] for place in np.argsort(places)[: len(rows)]]
        return found, {"tokens": _tokens(rows), **answers[0].measured}

    def _encode(self, frames: list[bytes]) -> list[Any]:
        """References to features of frames, computed in equal shares by the ranks."""
        size = -(-len(frames) // self.groups.policy.world_size)
        full = frames + frames[:1] * (size * self.groups.policy.world_size - len(frames))
        shares = [full[begin : begin + size] for begin in range(0, len(full), size)]
        answers: list[list[Any]] = self.groups.policy.features(shares)
        return [place for answer in answers for place in answer][: len(frames)]

    def _shares(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        columns: Sequence[str],
        options: Mapping[str, Any],
        batch: Sequence[TokenRow] = (),
    ) -> tuple[list[Share], list[int]]:
        """Each rank's share of a call, and the row at each place."""
        temperature = self.temperature or 1.0  # greedy is treated as 1
        common = {"temperature": temperature, **options}
        ranks = self.groups.policy.world_size
        return self._rows.shares(rows, images, ranks, columns, common, batch)


def _tokens(rows: Sequence[TokenRow]) -> int:
    return sum(len(row.input_ids) for row in rows)


def _flat(parts: Any) -> Iterable[Any]:
    """Metrics of all micro batches of all ranks."""
    for part in parts:
        if isinstance(part, list):
            yield from _flat(part)
        else:
            yield part
