"""Losses, masks, token rewards, filters, and controllers of coefficients."""

from vagen.learning.aggregate import LossAggMode, aggregate, loss_denominator
from vagen.learning.entropy import EntropyController, entropy_from_logits
from vagen.learning.filters import GroupStatistics, group_statistics, loss_scale, select_groups
from vagen.learning.importance import truncated_importance_weights
from vagen.learning.kl import (
    AdaptiveKLController,
    FixedKLController,
    KLController,
    KLPenaltyKind,
    kl_penalty,
    make_kl_controller,
)
from vagen.learning.masks import critic_mask, last_sampled_mask, turn_end_mask, turn_start_mask
from vagen.learning.metrics import (
    Aggregate,
    Max,
    Mean,
    combine_metrics,
    explained_variance,
    token_max,
    token_mean,
)
from vagen.learning.policy_loss import COVARIANCE_MODES, LossMode, covarying_tokens, policy_loss
from vagen.learning.reward_normalization import normalize_turn_rewards
from vagen.learning.rewards import overlong_penalty, token_rewards, turn_totals
from vagen.learning.value_loss import value_loss

__all__ = [
    "COVARIANCE_MODES",
    "AdaptiveKLController",
    "Aggregate",
    "EntropyController",
    "FixedKLController",
    "GroupStatistics",
    "KLController",
    "KLPenaltyKind",
    "LossAggMode",
    "LossMode",
    "Max",
    "Mean",
    "aggregate",
    "combine_metrics",
    "covarying_tokens",
    "critic_mask",
    "entropy_from_logits",
    "explained_variance",
    "group_statistics",
    "kl_penalty",
    "last_sampled_mask",
    "loss_denominator",
    "loss_scale",
    "make_kl_controller",
    "normalize_turn_rewards",
    "overlong_penalty",
    "policy_loss",
    "select_groups",
    "token_max",
    "token_mean",
    "token_rewards",
    "truncated_importance_weights",
    "turn_end_mask",
    "turn_start_mask",
    "turn_totals",
    "value_loss",
]
