"""Divergence from the reference policy: per-token estimates and the controllers of its weight."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from torch import Tensor

KLPenaltyKind = Literal["k1", "low_var_kl", "mse"]

LOG_RATIO_LIMIT = 20.0
"""Logs of probability ratios are cut at this before `exp`, so that it stays finite."""
LOW_VAR_LIMIT = 10.0
"""Largest `low_var_kl` of a token, nats."""


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: KLPenaltyKind) -> Tensor:
    """Per-token estimate of KL(policy | reference) at tokens that the policy sampled.

    With `d = ref_logprobs - logprobs`: `k1` is `-d`; `low_var_kl` is `exp(d) - d - 1`, never
    negative and cut at 10; `mse` is `d^2 / 2` (Schulman 2020, "Approximating KL divergence": k1,
    k3, k2).

    In the reward (`token_rewards`) its value counts and k1 is exact in expectation. As a loss its
    gradient counts: of `k1` it is that of `logprobs`, zero in expectation at tokens of the present
    policy whatever the reference; of `mse` it is that of KL(policy | reference); of `low_var_kl`
    that of KL(reference | policy). `k1` is there for comparison, not as advice.

    Args:
        logprobs: any shape, log-probs of the sampled tokens.
        ref_logprobs: same shape, the reference policy's; no gradient flows into it.
        kind: which estimate.

    Returns:
        Nats per token, same shape. Not masked.

    Raises:
        ValueError: unknown kind.
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
        """Adapts after an iteration: mean k1 per sampled token, and its trajectories."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state; continuing from it equals not having stopped."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state; ValueError if it is of another type of controller."""
        ...


@dataclass(slots=True)
class FixedKLController:
    """A constant coefficient."""

    kl_coef: float

    def update(self, current_kl: float, n_trajectories: int) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"type": "fixed", "kl_coef": self.kl_coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state."""
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
            current_kl: mean k1 per sampled token of the iteration, nats.
            n_trajectories: trajectories of the iteration.

        Raises:
            ValueError: `current_kl` is not finite.
        """
        if not math.isfinite(current_kl):
            raise ValueError(f"current_kl = {current_kl}; log-probs must be finite")
        error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
        self.kl_coef *= 1.0 + error * min(n_trajectories / self.horizon, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"type": "adaptive", "kl_coef": self.kl_coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state."""
        self.kl_coef = _coefficient(state, "adaptive")


def _coefficient(state: dict[str, Any], kind: str) -> float:
    if state.get("type") != kind:
        raise ValueError(f"state of KL controller {state.get('type')!r}; it must be {kind!r}")
    return float(state["kl_coef"])


def make_kl_controller(
    kind: Literal["fixed", "adaptive"], *, kl_coef: float, target_kl: float, horizon: int
) -> KLController:
    """The controller that `algorithm.kl_ctrl` describes."""
    if kind == "adaptive":
        return AdaptiveKLController(kl_coef, target_kl, horizon)
    return FixedKLController(kl_coef)
