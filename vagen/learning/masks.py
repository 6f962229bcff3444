"""Masks derived from the loss mask.

Shape legend: masks are [B, T], or [T] of a single row.
"""

import torch
from torch import Tensor


def turn_end_mask(loss_mask: Tensor, turn_index: Tensor) -> Tensor:
    """Marks the last sampled token of each turn.

    Args:
        loss_mask: [B, T] or [T], non-zero on sampled tokens.
        turn_index: same shape, integers, turn of each token.

    Returns:
        Same shape, bool.
    """
    sampled = loss_mask.reshape(-1, loss_mask.shape[-1]) != 0
    rows, columns = sampled.nonzero(as_tuple=True)
    turns = turn_index.reshape(sampled.shape)[rows, columns]
    last = torch.ones_like(rows, dtype=torch.bool)
    last[:-1] = (rows[1:] != rows[:-1]) | (turns[1:] != turns[:-1])
    ends = torch.zeros_like(sampled)
    ends[rows, columns] = last
    return ends.reshape(loss_mask.shape)


def turn_start_mask(loss_mask: Tensor, turn_index: Tensor) -> Tensor:
    """Marks the first sampled token of each turn; see `turn_end_mask`."""
    return turn_end_mask(loss_mask.flip(-1), turn_index.flip(-1)).flip(-1)


def last_sampled_mask(loss_mask: Tensor) -> Tensor:
    """Marks the last sampled token of each row; same shape, bool."""
    sampled = loss_mask != 0
    return sampled & (sampled.flip(-1).long().cumsum(-1).flip(-1) == 1)


def critic_mask(
    *,
    attention_mask: Tensor,
    loss_mask: Tensor | None = None,
    turn_start_mask: Tensor | None = None,
    turn_end_mask: Tensor | None = None,
) -> Tensor:
    """Tokens of the value loss: turn ends, turn starts, sampled tokens or attended ones.

    Uses the first mask that is given. Give only applicable ones: `turn_end_mask` with
    `critic.use_reward_mask`, the others where returns exist on such tokens only
    (an estimator's `value_mask`).

    Returns:
        bool, shaped like `attention_mask`.
    """
    for mask in (turn_end_mask, turn_start_mask, loss_mask):
        if mask is not None:
            return mask != 0
    return attention_mask != 0
