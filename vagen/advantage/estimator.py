"""Declares a function as an estimator, with its inputs and outputs."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Concatenate, Literal, ParamSpec

from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs, MaskName

P = ParamSpec("P")
EstimatorFunction = Callable[[AdvantageInputs], AdvantageEstimate]
"""Maps the checked arguments of the whole batch to unwhitened advantages, and returns."""


@dataclass(frozen=True, slots=True)
class EstimatorSpec:
    """An estimator and its requirements on the configuration."""

    function: EstimatorFunction
    """Computes it."""
    _: KW_ONLY
    mask: Literal["attention", "loss", "action"]
    """Tokens that get an advantage: attended ones, sampled ones, or (`action`) those of the policy
    loss, which are the sampled ones unless the loss mask is off."""
    whiten_over: Literal["attention", "loss", "turn_end"] | None = None
    """Tokens for whitening statistics; None disables whitening."""
    value_mask: MaskName | None = None
    """Tokens whose return trains the critic; None reads no `values` and needs no critic."""
    needs_turn_end: bool = False
    """Reads `turn_end_mask`."""
    needs_anchors: bool = False
    """Reads `anchor_ids`."""
    needs_baselines: bool = False
    """Reads `baselines`: each level needs a greedy episode."""
    adapts: bool = False
    """Reads `turn_lams` and `turn_gammas`."""
    group_based: bool = False
    """Compares trajectories of one level (`group_ids`); needs at least 2 of each."""
    batch_based: bool = False
    """Compares all trajectories of the batch; needs at least 2."""
    stitches: bool = True
    """Whether a trajectory may have several rows."""
    reads_token_rewards: bool = True
    """Reads rewards on every token of `mask`. If False, only on turn ends: a per-token KL penalty
    on other tokens has no effect."""
    reads_padding: bool = False
    """Without bootstrap values the recursion runs through padding, so values there must be 0."""

    @property
    def needs_critic(self) -> bool:
        """Reads `values`."""
        return self.value_mask is not None


def _decorator(
    spec: Callable[Concatenate[EstimatorFunction, P], EstimatorSpec],
) -> Callable[P, Callable[[EstimatorFunction], EstimatorSpec]]:
    def declare(*args: P.args, **fields: P.kwargs) -> Callable[[EstimatorFunction], EstimatorSpec]:
        return lambda function: spec(function, *args, **fields)

    return declare


estimator = _decorator(EstimatorSpec)
"""Decorator that makes a function an estimator; its keywords are fields of `EstimatorSpec`."""
