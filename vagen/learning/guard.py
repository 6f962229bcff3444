"""The stability guard: decides whether to keep an update, and which weights to restore if not.

In iteration t policy P(t) plays the batch, then the update turns it into P(t+1). A bad metric
rejects the policy that it measures:

- Rollout metrics (success, invalid actions, in-group reward deviation) measure P(t), the result of
update t-1. If they are bad, the batch is dropped and the last good weights are restored.
- Update metrics (KL, gradient norm, losses) measure P(t+1). If they are bad, P(t) is restored,
which its own rollout has just confirmed.
- Entropy is measured during the update, beginning with P(t). If it is bad, the last good weights
before P(t) are restored.

So the *last good* weights are the newest that a rollout has confirmed, one update behind the
newest. An update with good metrics counts as good, and enters the running medians, only when the
next rollout is good too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from vagen.config.trainer_options import GuardConfig
from vagen.metrics import (
    ACTION_IS_VALID,
    ENTROPY,
    GRAD_NORM,
    LOSSES,
    PPO_KL,
    REWARD_STD,
    SUCCESS,
    UPDATE_KL,
)

MetricValues = Mapping[str, float]

KL = (UPDATE_KL, PPO_KL)
HISTORY = 4
"""Good iterations before medians are used, or the window if that is shorter."""


class TrainingUnstable(ValueError):
    """More rollbacks than allowed; the message has their number and the last reason."""


@dataclass(frozen=True, slots=True)
class GuardResult:
    """The guard's verdict on a rollout or an update."""

    reasons: tuple[str, ...] = ()
    """Reasons why it is bad, one clause each; empty if it is good."""
    condemns_start: bool = False
    """Whether the initial policy of the iteration is bad too."""

    @property
    def ok(self) -> bool:
        """Whether it is good."""
        return not self.reasons

    @property
    def reason(self) -> str:
        """All reasons as one clause."""
        return "; ".join(self.reasons)


@dataclass(slots=True)
class GuardState:
    """The guard's memory, JSON-serialisable; part of the run's manifest of every update."""

    good: str
    """Name of the newest confirmed weights."""
    lr_scale: float = 1.0
    """Factor on learning rates."""
    rollbacks: int = 0
    rollouts: list[dict[str, float]] = field(default_factory=list)
    """Watched metrics of the last good rollouts."""
    updates: list[dict[str, float]] = field(default_factory=list)
    """Watched metrics of the last good updates."""
    pending: dict[str, float] | None = None
    """Watched metrics of the latest update, until a rollout confirms it."""

    def to_dict(self) -> dict[str, Any]:
        """Content for a manifest; `GuardState(**content)` is the inverse."""
        return asdict(self)


class Guard:
    """Judges iterations in order; all its memory is in `state`.

    Per iteration call `judge_rollout`; if that is good, update and `judge_update`; then `record`
    with the deciding verdict; then `roll_back` if that is bad.
    """

    def __init__(self, config: GuardConfig, state: GuardState):
        self.config = config
        self.state = state

    def judge_rollout(self, metrics: MetricValues) -> GuardResult:
        """Judges the policy that played a batch.

        Args:
            metrics: Metrics before the update; missing ones are not judged.
        """
        config = self.config
        seen = _rollout_values(metrics)
        reasons = _not_finite(seen)
        if config.max_success_drop is not None:
            usual = self._median(self.state.rollouts, "success")
            if usual is not None and usual - seen.get("success", usual) > config.max_success_drop:
                reasons.append(
                    f"success {seen['success']:.3g} is more than {config.max_success_drop:g} "
                    f"below its median {usual:.3g}"
                )
        if config.max_invalid_rise is not None:
            usual = self._median(self.state.rollouts, "invalid")
            if usual is not None and seen.get("invalid", usual) - usual > config.max_invalid_rise:
                reasons.append(
                    f"the share of invalid actions, {seen['invalid']:.3g}, is more than "
                    f"{config.max_invalid_rise:g} above its median {usual:.3g}"
                )
        if config.min_reward_std_factor is not None:
            usual = self._median(self.state.rollouts, "reward_std")
            limit = None if usual is None else config.min_reward_std_factor * usual
            if limit is not None and seen.get("reward_std", limit) < limit:
                reasons.append(
                    f"the in-group reward deviation {seen['reward_std']:.3g} is below "
                    f"{config.min_reward_std_factor:g} of its median {usual:.3g}"
                )
        return GuardResult(tuple(reasons), condemns_start=bool(reasons))

    def judge_update(self, metrics: MetricValues) -> GuardResult:
        """Judges an update by its own metrics.

        Args:
            metrics: Metrics of the update; networks that did not learn have none.
        """
        config = self.config
        reasons = []
        for name in GRAD_NORM:
            if name in metrics and math.isnan(metrics[name]):
                network = name.partition("/")[0]
                reasons.append(f"every step of the {network} was skipped for its gradient norm")
        skipped = {name for name in GRAD_NORM if math.isnan(metrics.get(name, 0.0))}
        watched = (*KL, *GRAD_NORM, ENTROPY, *LOSSES)
        reasons += _not_finite(
            {n: metrics[n] for n in watched if n in metrics and n not in skipped}
        )
        if config.max_kl is not None:
            changes = {name: abs(metrics[name]) for name in KL if name in metrics}
            if changes and (largest := max(changes.values())) > config.max_kl:
                reasons.append(f"KL {largest:.3g} nats per token is above {config.max_kl:g}")
        if config.grad_norm_factor is not None:
            for name in GRAD_NORM:
                usual = self._median(self.state.updates, name)
                norm = metrics.get(name, math.nan)
                if usual is not None and norm > config.grad_norm_factor * usual:
                    reasons.append(
                        f"{name} {norm:.3g} is more than {config.grad_norm_factor:g} times its "
                        f"median {usual:.3g}"
                    )
        entropy = self._entropy(metrics)
        return GuardResult((*reasons, *entropy), condemns_start=bool(entropy))

    def record(
        self, start: str, rollout: MetricValues, update: MetricValues | None, verdict: GuardResult
    ) -> None:
        """Records an iteration.

        Args:
            start: Name of the weights that the iteration started with.
            rollout: Metrics given to `judge_rollout`.
            update: Metrics given to `judge_update`; None if there was no update.
            verdict: The deciding verdict: of the update if there was one, else of the rollout.
        """
        state = self.state
        pending, state.pending = state.pending, None
        if verdict.condemns_start:
            return
        state.good = start
        state.rollouts = [*state.rollouts, _rollout_values(rollout)][-self.config.window :]
        if pending is not None:
            state.updates = [*state.updates, pending][-self.config.window :]
        if verdict.ok and update is not None:
            state.pending = {n: update[n] for n in (*GRAD_NORM, ENTROPY) if n in update}

    def roll_back(self, verdict: GuardResult) -> str:
        """Counts a rollback and lowers learning rates; returns the name of the weights to restore.

        Raises:
            TrainingUnstable: There were `max_rollbacks` already.
        """
        state, limit = self.state, self.config.max_rollbacks
        if state.rollbacks >= limit:
            raise TrainingUnstable(
                f"the training does not get stable: it was rolled back {limit} times "
                f"(trainer.guard.max_rollbacks), and now {verdict.reason}; take smaller learning "
                "rates, or other limits under trainer.guard if this is no collapse"
            )
        state.rollbacks += 1
        state.lr_scale *= self.config.lr_factor
        return state.good

    def _entropy(self, metrics: MetricValues) -> list[str]:
        entropy = metrics.get(ENTROPY)
        if entropy is None:
            return []
        reasons = []
        lowest, factor = self.config.min_entropy, self.config.max_entropy_factor
        if lowest is not None and entropy < lowest:
            reasons.append(f"entropy {entropy:.3g} nats per token is below {lowest:g}")
        usual = self._median(self.state.updates, ENTROPY)
        if factor is not None and usual is not None and entropy > factor * usual:
            reasons.append(
                f"entropy {entropy:.3g} nats per token is more than {factor:g} times its median "
                f"{usual:.3g}"
            )
        return reasons

    def _median(self, entries: Sequence[MetricValues], name: str) -> float | None:
        """Running median over good iterations; None if there are too few."""
        values = [entry[name] for entry in entries if name in entry]
        return median(values) if len(values) >= min(HISTORY, self.config.window) else None


def _rollout_values(metrics: MetricValues) -> dict[str, float]:
    values = {}
    if SUCCESS in metrics:
        values["success"] = metrics[SUCCESS]
    if ACTION_IS_VALID in metrics:
        values["invalid"] = 1.0 - metrics[ACTION_IS_VALID]
    if REWARD_STD in metrics:
        values["reward_std"] = metrics[REWARD_STD]
    return values


def _not_finite(values: MetricValues) -> list[str]:
    return [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
