"""Estimators by name, and what each needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vagen.advantage.adaptive_credit import adaptive_credit
from vagen.advantage.arpo import arpo
from vagen.advantage.bi_level_gae import bi_level_gae
from vagen.advantage.brpo import brpo
from vagen.advantage.chunks import Estimator
from vagen.advantage.gae import gae
from vagen.advantage.gigpo import gigpo
from vagen.advantage.grpo import grpo, masked_grpo
from vagen.advantage.inputs import MaskName
from vagen.advantage.masked_gae import masked_gae
from vagen.advantage.no_concat_gae import no_concat_gae, no_concat_gae_last
from vagen.advantage.reinforce_plus_plus import reinforce_plus_plus
from vagen.advantage.remax import remax
from vagen.advantage.rloo import masked_rloo, rloo
from vagen.advantage.turn_wise_gae import turn_wise_gae


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """An estimator and what a configuration must give it."""

    function: Estimator
    """Unwhitened advantages, and returns."""
    mask: MaskName
    """Tokens that get an advantage."""
    whiten_over: MaskName | None = None
    """Tokens that whitening statistics are over; None is never whitened."""
    needs_critic: bool = False
    """Reads `values`."""
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
    stitches: bool = True
    """Whether the rows of a trajectory may be several. If not, each must be one row."""
    value_mask: MaskName | None = None
    """Tokens with a return the critic can learn from; None without a critic."""
    reads_token_rewards: bool = True
    """Reads rewards on every token of `mask`. If False, on turn ends only: a per-token KL penalty
    on other tokens is lost."""
    reads_padding: bool = False
    """Without bootstrap values the recursion runs through padding, so values there must be 0."""


ESTIMATORS: Mapping[str, EstimatorSpec] = MappingProxyType(
    {
        "gae": EstimatorSpec(
            function=gae,
            mask="attention",
            whiten_over="attention",
            needs_critic=True,
            stitches=False,
            value_mask="attention",
            reads_padding=True,
        ),
        "masked_gae": EstimatorSpec(
            function=masked_gae,
            mask="loss",
            whiten_over="loss",
            needs_critic=True,
            value_mask="loss",
        ),
        "turn_wise_gae": EstimatorSpec(
            function=turn_wise_gae,
            mask="loss",
            whiten_over="turn_end",
            needs_critic=True,
            needs_turn_end=True,
            value_mask="turn_end",
            reads_token_rewards=False,
        ),
        "bi_level_gae": EstimatorSpec(
            function=bi_level_gae,
            mask="loss",
            whiten_over="loss",
            needs_critic=True,
            needs_turn_end=True,
            value_mask="loss",
        ),
        "adaptive_credit": EstimatorSpec(
            function=adaptive_credit,
            mask="loss",
            whiten_over="loss",
            needs_critic=True,
            needs_turn_end=True,
            adapts=True,
            value_mask="loss",
        ),
        "no_concat_gae": EstimatorSpec(
            function=no_concat_gae,
            mask="loss",
            whiten_over="loss",
            needs_critic=True,
            needs_turn_end=True,
            value_mask="turn_start",
        ),
        "no_concat_gae_last": EstimatorSpec(
            function=no_concat_gae_last,
            mask="loss",
            whiten_over="loss",
            needs_critic=True,
            needs_turn_end=True,
            value_mask="turn_end",
        ),
        "grpo": EstimatorSpec(function=grpo, mask="attention", group_based=True),
        "masked_grpo": EstimatorSpec(function=masked_grpo, mask="loss", group_based=True),
        "rloo": EstimatorSpec(function=rloo, mask="attention", group_based=True),
        "masked_rloo": EstimatorSpec(function=masked_rloo, mask="loss", group_based=True),
        "gigpo": EstimatorSpec(
            function=gigpo,
            mask="loss",
            needs_turn_end=True,
            needs_anchors=True,
            group_based=True,
        ),
        "brpo": EstimatorSpec(function=brpo, mask="loss"),
        "arpo": EstimatorSpec(function=arpo, mask="loss"),
        "reinforce_plus_plus": EstimatorSpec(
            function=reinforce_plus_plus, mask="loss", whiten_over="loss"
        ),
        "remax": EstimatorSpec(function=remax, mask="loss", needs_baselines=True),
    }
)
