"""Truncated importance weights between the rollout's policy and the trainer's."""

import torch
from torch import Tensor

from vagen.learning.aggregate import require_same_shape
from vagen.learning.kl import LOG_RATIO_LIMIT
from vagen.learning.metrics import Aggregate, token_mean


def truncated_importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, sampled: Tensor, *, cap: float
) -> tuple[Tensor, dict[str, Aggregate]]:
    """`min(pi_trainer / pi_rollout, cap)` per sampled token, before the update.

    The two engines compute the same weights differently (kernels, precision), so PPO's ratio
    compares with a policy that did not sample the tokens. The weight corrects for this with bounded
    variance (Espeholt et al. 2018, arXiv 1802.01561, eq. 1, as the truncated importance sampling of
    verl's pull request 2953).

    Args:
        old_logprobs: Any shape, the trainer's log-probs at the start of the update.
        rollout_logprobs: same shape, log-probs as sampled.
        sampled: Same shape, non-zero on tokens that the policy sampled. Others, which are in the
            policy loss without a loss mask, have no rollout log-prob and weight 1.
        cap: Largest weight, above 0.

    Returns:
        Weights without gradient, same shape, and metrics over the sampled tokens: `tis_mean` (mean
        weight) and `tis_capped` (share of tokens whose ratio is above `cap`).

    Raises:
        ValueError: Unequal shapes, or a cap that is not above 0.
    """
    require_same_shape(
        old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs, sampled=sampled
    )
    if cap <= 0.0:
        raise ValueError(f"tis_imp_ratio_cap = {cap}; it must be above 0")
    mask = sampled != 0
    log_ratio = torch.where(mask, (old_logprobs - rollout_logprobs).detach(), 0.0)
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weights = torch.where(mask, ratio.clamp(max=cap), 1.0)
    return weights, {
        "tis_mean": token_mean(weights, mask),
        "tis_capped": token_mean((ratio > cap).to(weights.dtype), mask),
    }
