"""Estimators by name, and what each needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from vagen.advantage.bi_level_gae import bi_level_gae
from vagen.advantage.gae import gae
from vagen.advantage.grpo import grpo, masked_grpo
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.masked_gae import masked_gae
from vagen.advantage.rloo import masked_rloo, rloo
from vagen.advantage.turn_wise_gae import turn_wise_gae

MaskName = Literal["attention", "loss", "turn_end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """An estimator and what a configuration must give it."""

    function: Callable[[AdvantageInputs], tuple[Tensor, Tensor]]
    mask: MaskName
    """Tokens that get an advantage."""
    needs_critic: bool = False
    """Reads `values`; otherwise it reads `group_ids`."""
    needs_turn_end: bool = False
    """Reads `turn_end_mask`."""
    group_based: bool = False
    """Compares trajectories of one level, so `n_trajectory` should be at least 2."""
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
            needs_critic=True,
            value_mask="attention",
            reads_padding=True,
        ),
        "masked_gae": EstimatorSpec(
            function=masked_gae, mask="loss", needs_critic=True, value_mask="loss"
        ),
        "turn_wise_gae": EstimatorSpec(
            function=turn_wise_gae,
            mask="loss",
            needs_critic=True,
            needs_turn_end=True,
            value_mask="turn_end",
            reads_token_rewards=False,
        ),
        "bi_level_gae": EstimatorSpec(
            function=bi_level_gae,
            mask="loss",
            needs_critic=True,
            needs_turn_end=True,
            value_mask="loss",
        ),
        "grpo": EstimatorSpec(function=grpo, mask="attention", group_based=True),
        "masked_grpo": EstimatorSpec(function=masked_grpo, mask="loss", group_based=True),
        "rloo": EstimatorSpec(function=rloo, mask="attention", group_based=True),
        "masked_rloo": EstimatorSpec(function=masked_rloo, mask="loss", group_based=True),
    }
)
