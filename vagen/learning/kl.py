"""KL divergence from the reference policy: per-token estimates and controllers of its weight."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from torch import Tensor

KLPenaltyKind = Literal["k1", "low_var_kl", "mse"]

LOG_RATIO_LIMIT = 20.0
"""Clip of log probability ratios before `exp`, which keeps it finite."""
LOW_VAR_LIMIT = 10.0
"""Largest `low_var_kl` of a token, nats."""


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: KLPenaltyKind) -> Tensor:
    """Per-token estimate of KL(policy | reference) at tokens that the policy sampled.

    With `d = ref_logprobs - logprobs`: `k1` is `-d`; `low_var_kl` is `exp(d) - d - 1`, never
    negative and cut at 10; `mse` is `d^2 / 2` (Schulman 2020, "Approximating KL divergence": k1,
    k3, k2).

    In the reward (`token_rewards`) only its value matters, and `k1` is unbiased. As a loss only its
    gradient matters: that of `k1` is zero in expectation at tokens of the current policy, whatever
    the reference; that of `mse` is the gradient of KL(policy | reference); that of `low_var_kl` is
    the gradient of KL(reference | policy). `k1` as a loss is for comparison only.

    Args:
        logprobs: Any shape, log-probs of the sampled tokens.
        ref_logprobs: Same shape, log-probs of the reference policy, without gradient.
        kind: The estimate.

    Returns:
        Nats per token, same shape. Not masked.

    Raises:
        ValueError: Unknown kind.
    """
    d = ref_logprobs.detach() - logprobs
    if kind == "k1":
        return -d
    if kind == "low_var_kl":
        d = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return (d.exp() - d - 1.0).clamp(max=LOW_VAR_LIMIT)
    if kind == "mse":
        return 0.5 * d**2
    raise ValueError(f"kl penalty {kind!r}; it must be one of {get_args(KLPenaltyKind)}")


class KLController(Protocol):
    """Holds the coefficient of the KL penalty in the reward."""

    kl_coef: float

    def update(self, current_kl: float, n_trajectories: int) -> None:
        """Adapts to an iteration's mean k1 per sampled token and number of trajectories."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state for `load_state_dict`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state; ValueError if it is of another type of controller."""
        ...


@dataclass(slots=True)
class FixedKLController:
    """A constant coefficient."""

    kl_coef: float

    def update(self, current_kl: float, n_trajectories: int) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {"type": "fixed", "kl_coef": self.kl_coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self.kl_coef = _coefficient(state, "fixed")


@dataclass(slots=True)
class AdaptiveKLController:
    """Proportional control of the log of the coefficient (Ziegler et al. 2019, section 2.2).

    `kl_coef *= 1 + clip(kl / target_kl - 1, -0.2, 0.2) * n / horizon`. An iteration longer than the
    horizon counts as one horizon, so that the coefficient stays positive.
    """

    kl_coef: float
    target_kl: float = 0.1
    """Nats per sampled token."""
    horizon: int = 10_000
    """Trajectories."""

    def update(self, current_kl: float, n_trajectories: int) -> None:
        """Moves the coefficient up if `current_kl` is above the target, down if below.

        Args:
            current_kl: Mean k1 per sampled token of the iteration, nats.
            n_trajectories: Trajectories of the iteration.

        Raises:
            ValueError: `current_kl` is not finite.
        """
        if not math.isfinite(current_kl):
            raise ValueError(f"current_kl = {current_kl}; log-probs must be finite")
        error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
        self.kl_coef *= 1.0 + error * min(n_trajectories / self.horizon, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {"type": "adaptive", "kl_coef": self.kl_coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self.kl_coef = _coefficient(state, "adaptive")


def _coefficient(state: dict[str, Any], kind: str) -> float:
    if state.get("type") != kind:
        raise ValueError(f"state of KL controller {state.get('type')!r}; it must be {kind!r}")
    return float(state["kl_coef"])


def make_kl_controller(
    kind: Literal["fixed", "adaptive"], *, kl_coef: float, target_kl: float, horizon: int
) -> KLController:
    """The controller for `algorithm.kl_ctrl`."""
    if kind == "adaptive":
        return AdaptiveKLController(kl_coef, target_kl, horizon)
    return FixedKLController(kl_coef)
