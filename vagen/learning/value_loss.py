"""Clipped value loss of the critic."""

import torch
from torch import Tensor

from vagen.learning.aggregate import LossAggMode, aggregate, require_same_shape
from vagen.learning.metrics import Aggregate, token_mean


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    cliprange_value: float = 0.5,
    denominator: Tensor | float | None = None,
    loss_agg_mode: LossAggMode = "token-mean",
    row_ids: Tensor | None = None,
) -> tuple[Tensor, dict[str, Aggregate]]:
    """`1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)`.

    The clip keeps the new value close to the one used for advantages (Schulman et al.,
    PPO's reference implementation in OpenAI baselines).

    Args:
        values: [B, T] or packed [N] floats, with gradient.
        old_values: same shape, values at the start of the update.
        returns: same shape, un-whitened targets.
        mask: same shape, non-zero on tokens that have a target (`critic_mask`).
        cliprange_value: c, in units of the value.
        denominator: tokens or rows of the whole mini batch, so that micro batches add up; None
            takes those of this call.
        loss_agg_mode: Averaging mode.
        row_ids: row of each token of packed tensors; only the `seq-` modes read it.

    Returns:
        The loss (0-d) and metrics: `vf_clipfrac` (share of tokens whose clipped error is the
        larger), `vf_error` (mean of value minus return), `value_mean`, `return_mean`.

    Raises:
        ValueError: Unequal shapes.
    """
    require_same_shape(values=values, old_values=old_values, returns=returns, mask=mask)
    mask = mask != 0
    values = torch.where(mask, values, 0.0)
    old = torch.where(mask, old_values.detach(), 0.0)
    target = torch.where(mask, returns.detach(), 0.0)
    near = torch.minimum(torch.maximum(values, old - cliprange_value), old + cliprange_value)
    free, clipped = (values - target) ** 2, (near - target) ** 2
    loss = 0.5 * aggregate(
        torch.maximum(free, clipped),
        mask,
        mode=loss_agg_mode,
        denominator=denominator,
        row_ids=row_ids,
    )
    return loss, {
        "vf_clipfrac": token_mean((clipped > free).to(values.dtype), mask),
        "vf_error": token_mean(values - target, mask),
        "value_mean": token_mean(values, mask),
        "return_mean": token_mean(target, mask),
    }
