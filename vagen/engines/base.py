"""The engine: policy, critic, reference and optimizers, and the PPO update.

`LocalEngine` and `VerlEngine` say where the networks run. Rows of each step, order of steps and
learning rates are here, so that both compute the same.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vagen.advantage import CreditReliability, ProgressDiscount, get_estimator
from vagen.config import ConfigError, config_digest
from vagen.config.schema import (
    ActorConfig,
    CriticConfig,
    ExperimentConfig,
    OptimConfig,
    SamplingConfig,
)
from vagen.engines.objectives import (
    CRITIC_MASK,
    PER_TRAJECTORY,
    actor_denominator,
    count_trajectory_tokens,
    critic_denominator,
    mark_covarying,
)
from vagen.engines.performance import Performance, start_trace, write_trace
from vagen.experiment.checks import check_thoughts
from vagen.learning import (
    COVARIANCE_MODES,
    Aggregate,
    EntropyController,
    combine_metrics,
    make_kl_controller,
)
from vagen.metrics import ENTROPY, ENTROPY_COEFF
from vagen.models.processor import Processor
from vagen.rollout.conversation import ChatRenderer
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
NetworkName = Literal["actor", "critic"]

STATE = "engine.json"
"""File of a checkpoint with counters and controllers."""


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step of one network on one mini batch."""

    network: NetworkName
    denominator: Tensor
    """Divisor of the summed loss, 0-d."""
    lr: float
    grad_clip: float
    """Gradients are scaled down to this norm."""
    grad_norm_threshold: float
    """A step is skipped if its gradient norm is not finite or reaches this."""
    value_shift: float = 0.0
    """Shift of all values since the rows' `values`."""
    cliprange_value: float = math.inf
    """Most that a value may move from the shifted old one."""
    entropy_coeff: float = 0.0
    """Weight of the policy's entropy bonus."""

    def skips(self, norm: float) -> bool:
        """Whether a step with this gradient norm is skipped."""
        return not (np.isfinite(norm) and norm < self.grad_norm_threshold)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Gradient norm and metrics of an optimizer step."""

    loss: float
    grad_norm: float
    """Before clipping."""
    parts: list[dict[str, Aggregate]]
    """Metrics of each micro batch."""


class Engine(ABC):
    """Holds the policy, critic, reference and optimizers between steps."""

    same_logprobs = False
    """Whether `play` records the same log-probabilities as `logprobs`, up to rounding."""

    def __init__(self, config: ExperimentConfig, processor: Processor, version: str):
        check_thoughts(config, ChatRenderer(processor).thoughts)
        self.config = config
        self.config_digest = config_digest(config)
        self.processor = processor
        self.version: str | None = version
        """Version of the weights: `warm_start` or `iteration-0007`; None if not on disk."""
        self.updates = 0
        """Updates made so far; saved and loaded with the weights."""
        self.lr_scale = 1.0
        """Factor on every learning rate; saved and loaded with the weights."""
        self.performance = Performance()
        algorithm = config.algorithm
        self.kl_controller = make_kl_controller(
            algorithm.kl_ctrl.type,
            kl_coef=algorithm.kl_ctrl.kl_coef,
            target_kl=algorithm.kl_ctrl.target_kl,
            horizon=algorithm.kl_ctrl.horizon,
        )
        actor = config.actor_rollout_ref.actor
        control = actor.entropy_ctrl
        self.entropy_controller = (
            None
            if control.target is None
            else EntropyController(
                control.target, control.step, control.max_coeff, coeff=actor.entropy_coeff
            )
        )
        self.credit: CreditReliability | ProgressDiscount | None = None
        """Running statistics of `adaptive_credit`; None for other estimators."""
        if get_estimator(algorithm.adv_estimator).adapts:
            adaptive = algorithm.adaptive_credit
            self.credit = (
                CreditReliability(adaptive.lam_min)
                if adaptive.mode == "lambda"
                else ProgressDiscount(algorithm.high_level_gamma)
            )

    @property
    def learns_values(self) -> bool:
        """Whether there is a critic."""
        return get_estimator(self.config.algorithm.adv_estimator).needs_critic

    @property
    def kl_coef(self) -> float:
        """Current coefficient of the KL penalty in the reward."""
        return self.kl_controller.kl_coef

    @property
    def entropy_coeff(self) -> float:
        """Current weight of the entropy bonus."""
        if self.entropy_controller is not None:
            return self.entropy_controller.weight
        return self.config.actor_rollout_ref.actor.entropy_coeff

    @property
    def temperature(self) -> float:
        """The rollout's temperature."""
        return self.config.actor_rollout_ref.rollout.temperature

    @abstractmethod
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

    def play_in_background(self, work: Callable[[Play], ResultT]) -> Future[ResultT]:
        """Plays with the current weights while the engine learns.

        Args:
            work: Called in another thread, with a function that plays as `play` does.

        Returns:
            The result of `work`. `play` and `close` wait for it.

        Raises:
            ConfigError: The engine cannot play and learn at the same time.
        """
        raise ConfigError(
            "rollout_manager.one_step_off needs an engine that plays while it learns: take "
            "infra.engine=verl, or one_step_off=false"
        )

    def action_mask(self, row: TokenRow) -> NDArray[np.bool_]:
        """Tokens of the policy loss, bool [T]: M^loss, or every token that could be sampled.

        False everywhere in a row without sampled tokens, such as one that pads a batch.
        """
        if self.config.rollout_manager.use_loss_mask:
            return row.loss_mask
        mask = ~np.isin(row.input_ids, self.processor.banned_ids)
        mask[0] = False
        return mask & row.loss_mask.any()

    @abstractmethod
    def logprobs(
        self, rows: Sequence[TokenRow], images: Images, *, reference: bool = False
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of the action tokens, float32 [T] per row, 0 elsewhere."""

    @abstractmethod
    def values(
        self, rows: Sequence[TokenRow], images: Images
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Values before each token, float32 [T] per row, and after the last one, float32 [R]."""

    def update(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        *,
        seed: int,
        actor: bool = True,
        on_progress: OnProgress | None = None,
    ) -> dict[str, float]:
        """One PPO update of actor and critic; returns metrics.

        Rows have `old_logprobs`, `advantages`, and for a critic `values`, `returns`,
        `critic_mask`; `ref_logprobs` if there is a KL loss. An optimizer step whose gradient norm
        is not finite or too large is skipped and counted. `actor=False` warms up the critic:
        `critic.warmup_epochs` passes, no value clip. Without rows, as when the rollout filter
        keeps nothing, weights and optimizers stay and the update is counted.
        """
        if not rows:
            self.updates += 1
            return {}
        if self.config.actor_rollout_ref.actor.loss_agg_mode == PER_TRAJECTORY:
            count_trajectory_tokens(rows, action_mask=self.action_mask)
        order = np.random.Generator(np.random.Philox(key=seed))
        metrics: dict[str, float] = {}
        if self.learns_values:
            critic = self.config.critic
            shift = self._center_critic(rows) if critic.center_values else 0.0
            clip = critic.cliprange_value if actor else None
            metrics |= self._train(
                "critic",
                rows,
                images,
                order,
                on_progress,
                epochs=critic.epochs(warmup=not actor),
                value_shift=shift,
                cliprange_value=math.inf if clip is None else clip,
            )
        if actor:
            epochs = self.config.actor_rollout_ref.actor.ppo_epochs
            weight = self.entropy_coeff
            metrics |= self._train(
                "actor", rows, images, order, on_progress, epochs=epochs, entropy_coeff=weight
            )
            if self.entropy_controller is not None:
                metrics[ENTROPY_COEFF] = weight
                self.entropy_controller.update(metrics[ENTROPY])
        self._update_kl_controller(rows)
        self.updates += 1
        return metrics

    @abstractmethod
    def begin_save(self, directory: Path) -> Finish:
        """Copies everything that `load` needs to host memory and starts writing it.

        The engine may do anything except another save in the meantime.

        Args:
            directory: An existing folder that every node can read.

        Returns:
            Ends the writing. An `OSError` is the disk's and does not damage the engine.
        """

    def save(self, directory: Path) -> None:
        """Writes a checkpoint and waits until it is written."""
        self.begin_save(directory)()

    @abstractmethod
    def load(self, directory: Path, *, version: str) -> None:
        """Restores a checkpoint of `save`."""

    def save_state(self, directory: Path) -> None:
        """Writes counters and controllers."""
        entropy = self.entropy_controller
        content = {
            "updates": self.updates,
            "lr_scale": self.lr_scale,
            "kl_controller": self.kl_controller.state_dict(),
            "entropy_controller": None if entropy is None else entropy.state_dict(),
            "credit": None if self.credit is None else self.credit.state_dict(),
        }
        (directory / STATE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")

    def load_state(self, directory: Path) -> None:
        """Restores counters and controllers."""
        state = json.loads((directory / STATE).read_text())
        self.updates = state["updates"]
        self.lr_scale = state["lr_scale"]
        self.kl_controller.load_state_dict(state["kl_controller"])
        if self.entropy_controller is not None:
            self.entropy_controller.load_state_dict(state["entropy_controller"])
        if self.credit is not None:
            self.credit.load_state_dict(state["credit"])

    @contextmanager
    def profiled(self, path: Path) -> Iterator[None]:
        """Records the computation of a block on the first rank as a Chrome trace."""
        trace = start_trace()
        yield
        write_trace(trace, path)

    def close(self) -> None:  # noqa: B027  # optional for subclasses
        """Frees all resources; the engine cannot be used afterwards."""

    @abstractmethod
    def _step(
        self, step: Step, rows: Sequence[TokenRow], images: Images, on_progress: OnProgress | None
    ) -> StepResult:
        """Makes one optimizer step on a mini batch."""

    @abstractmethod
    def _shift_values(self, shift: float) -> None:
        """Adds to the value head's bias."""

    def _train(
        self,
        network: NetworkName,
        rows: Sequence[TokenRow],
        images: Images,
        order: np.random.Generator,
        on_progress: OnProgress | None,
        *,
        epochs: int,
        **more: float,
    ) -> dict[str, float]:
        """Steps on all mini batches: `ppo_mini_batch_size` trajectories each, with all their rows.

        `more` holds further arguments of this network's `Step`.
        """
        actor, critic = self.config.actor_rollout_ref.actor, self.config.critic
        config: ActorConfig | CriticConfig = actor if network == "actor" else critic
        size = config.ppo_mini_batch_size or actor.ppo_mini_batch_size
        lr = self._learning_rate(config.optim)
        denominator = critic_denominator
        if network == "actor":
            denominator = partial(actor_denominator, action_mask=self.action_mask, config=actor)
        by_trajectory: dict[str, list[TokenRow]] = {}
        for row in rows:
            by_trajectory.setdefault(row.trajectory_id, []).append(row)
        whole = list(by_trajectory.values())
        done: list[StepResult] = []
        norms: list[float] = []
        for _ in range(epochs):
            for chosen in np.array_split(order.permutation(len(whole)), -(-len(whole) // size)):
                mini = [row for i in chosen for row in whole[i]]
                if network == "actor" and actor.policy_loss.loss_mode in COVARIANCE_MODES:
                    mark_covarying(
                        mini, action_mask=self.action_mask, config=actor.policy_loss, draws=order
                    )
                weights = dict(more)
                if (
                    network == "actor"
                    and self.entropy_controller is None
                    and not any(row.columns["advantages"].any() for row in mini)
                ):  # Adam would take a full step along the bonus
                    weights["entropy_coeff"] = 0.0
                step = Step(
                    network=network,
                    denominator=denominator(mini),
                    lr=lr,
                    grad_clip=config.grad_clip,
                    grad_norm_threshold=config.grad_norm_threshold,
                    **weights,
                )
                stepped = self._step(step, mini, images, on_progress)
                done.append(stepped)
                if not step.skips(stepped.grad_norm):
                    norms.append(stepped.grad_norm)
        parts = [part for stepped in done for part in stepped.parts]
        metrics = {
            **combine_metrics(parts),
            "loss": sum(stepped.loss for stepped in done) / len(done),
            "grad_norm": float(np.mean(norms)) if norms else float("nan"),
            "skipped_steps": float(len(done) - len(norms)),
            "lr": lr,
        }
        return {f"{network}/{name}": value for name, value in metrics.items()}

    def _learning_rate(self, config: OptimConfig) -> float:
        """Linear warm-up over iterations, then constant or half a cosine; times `lr_scale`."""
        warmup, total = config.lr_warmup_steps, self.config.trainer.total_training_steps
        factor = min(1.0, (self.updates + 1) / warmup) if warmup else 1.0
        if config.lr_scheduler_type == "cosine" and warmup <= self.updates:
            done = min(1.0, (self.updates - warmup) / max(1, total - warmup))
            left = (1 + math.cos(math.pi * done)) / 2
            factor = config.min_lr_ratio + (1 - config.min_lr_ratio) * left
        return config.lr * factor * self.lr_scale

    def _center_critic(self, rows: Sequence[TokenRow]) -> float:
        """Shifts the value head's bias so that the mean value equals the mean return.

        Returns:
            The shift, which also moves the centre of the value clip.
        """
        error = np.concatenate([row.columns["returns"] - row.columns["values"] for row in rows])
        mask = np.concatenate([row.columns[CRITIC_MASK] for row in rows]) != 0
        shift = float(error[mask].mean()) if mask.any() else 0.0
        if not np.isfinite(shift):  # the steps will be skipped too
            return 0.0
        self._shift_values(shift)
        return shift

    def _update_kl_controller(self, rows: Sequence[TokenRow]) -> None:
        """Updates the KL controller with the batch's mean divergence from the reference."""
        if "ref_logprobs" not in rows[0].columns:
            return
        total = sum(
            float((row.columns["old_logprobs"] - row.columns["ref_logprobs"])[row.loss_mask].sum())
            for row in rows
        )
        tokens = sum(int(row.loss_mask.sum()) for row in rows)
        trajectories = len({row.trajectory_id for row in rows})
        self.kl_controller.update(total / tokens, trajectories)
