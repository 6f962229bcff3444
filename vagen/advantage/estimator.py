"""What makes a function an estimator: the declaration of what it reads and gives."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Concatenate, Literal, ParamSpec

from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs, MaskName

P = ParamSpec("P")
EstimatorFunction = Callable[[AdvantageInputs], AdvantageEstimate]
"""From the checked arguments of the whole batch to unwhitened advantages, and returns."""


@dataclass(frozen=True, slots=True)
class EstimatorSpec:
    """An estimator and what a configuration must give it."""

    function: EstimatorFunction
    """Computes it."""
    _: KW_ONLY
    mask: Literal["attention", "loss", "action"]
    """Tokens that get an advantage: attended ones, sampled ones, or (`action`) those that the
    policy loss reads, which are the sampled ones unless it has no loss mask."""
    whiten_over: Literal["attention", "loss", "turn_end"] | None = None
    """Tokens that whitening statistics are over; None is never whitened."""
    value_mask: MaskName | None = None
    """Tokens with a return the critic can learn from; None reads no `values`, without a critic."""
    needs_turn_end: bool = False
    """Reads `turn_end_mask`."""
    needs_anchors: bool = False
    """Reads `anchor_ids`."""
    needs_baselines: bool = False
    """Reads `baselines`: each level needs a greedy episode."""
    adapts: bool = False
    """Reads `turn_lams` and `turn_gammas`."""
    group_based: bool = False
    """Compares trajectories of one level (`group_ids`), so there should be at least 2 of each."""
    batch_based: bool = False
    """Compares all trajectories of the batch, so there should be at least 2."""
    stitches: bool = True
    """Whether the rows of a trajectory may be several. If not, each must be one row."""
    reads_token_rewards: bool = True
    """Reads rewards on every token of `mask`. If False, on turn ends only: a per-token KL penalty
    on other tokens is lost."""
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
"""Decorator that makes a function an estimator; its keywords are the fields of `EstimatorSpec`."""
