"""Rewards per token, from rewards per turn and the KL divergence from the reference policy; masks.

Shape legend: B rows, T tokens of the padded row, K turns. Masks may also be [T], of a single row.
"""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vagen.learning.kl import kl_penalty
from vagen.rollout.types import TurnRewards


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


def turn_totals(rewards: Sequence[TurnRewards], share: float = 1.0) -> list[float]:
    """Reward of each turn of an episode, K floats, with text rewards (format, judge) times `share`.

    With a budget of b turns the share is b / K, so that the text rewards of an episode of any
    length add up to b times their mean. A plain sum would reward long episodes: an expert that
    walks into walls until the last turn would earn more than one that wins at once.

    >>> turn_totals([TurnRewards(1.0, 0.5), TurnRewards(0.0, 0.5)])
    [1.5, 0.5]
    >>> turn_totals([TurnRewards(1.0, 0.5), TurnRewards(0.0, 0.5)], share=0.5)
    [1.25, 0.25]
    """
    return [each.env + share * (each.total - each.env) for each in rewards]


def token_rewards(
    turn_rewards: Sequence[Sequence[float]],
    *,
    loss_mask: Tensor,
    turn_end_mask: Tensor,
    use_multi_turn_reward: bool = True,
    trajectory_ids: Sequence[Hashable] | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """Places rewards on tokens and subtracts `kl_coef` times k1 on sampled tokens only.

    Args:
        turn_rewards: B sequences, reward of each turn of the row, in order.
        loss_mask: [B, T], non-zero on sampled tokens.
        turn_end_mask: [B, T], non-zero on the last sampled token of each turn.
        use_multi_turn_reward: Whether each turn's reward is on its last token; otherwise their sum
            is on the trajectory's last sampled token.
        trajectory_ids: B ids, equal for the rows of a trajectory, in order; None for a
            trajectory per row.
        old_logprobs: [B, T], log-probs of the sampled tokens at the start of the update.
        ref_logprobs: [B, T], log-probs of the reference policy.
        kl_coef: Coefficient of the penalty; 0 needs no log-probs.

    Returns:
        [B, T] float32, 0 off the loss mask.

    Raises:
        ValueError: A row whose rewards and turn ends differ in number, turn ends that do not end
            the sampled tokens, or a KL coefficient without both log-probs.
    """
    sampled, ends = loss_mask != 0, turn_end_mask != 0
    counts = ends.sum(1).tolist()
    given = [len(row) for row in turn_rewards]
    if counts != given:
        row = next((b for b, (n, m) in enumerate(zip(counts, given, strict=False)) if n != m), None)
        detail = (
            f"{len(given)} rows of rewards for {len(counts)} rows of tokens"
            if row is None
            else f"row {row} has {given[row]} turn rewards for {counts[row]} turn ends"
        )
        raise ValueError(f"turn_rewards: {detail}")

    last = last_sampled_mask(sampled)
    if bool((ends & ~sampled | last & ~ends).any()):
        raise ValueError(
            "turn_end_mask: it must mark sampled tokens, the last of each row included"
        )

    rewards = torch.zeros(sampled.shape, dtype=torch.float64, device=sampled.device)
    if use_multi_turn_reward:
        where, amounts = ends, [reward for row in turn_rewards for reward in row]
    else:
        sums = _trajectory_sums(turn_rewards, trajectory_ids)
        where = last & torch.tensor([b in sums for b in range(len(counts))])[:, None]
        amounts = [sums[b] for b in sorted(sums)]
    rewards[where] = rewards.new_tensor(amounts)

    if kl_coef != 0.0:
        if old_logprobs is None or ref_logprobs is None:
            raise ValueError(f"kl_coef = {kl_coef} needs old_logprobs and ref_logprobs")
        penalty = kl_penalty(old_logprobs.detach().double(), ref_logprobs.double(), "k1")
        rewards = rewards - torch.where(sampled, kl_coef * penalty, 0.0)
    return rewards.float()


def _trajectory_sums(
    turn_rewards: Sequence[Sequence[float]], trajectory_ids: Sequence[Hashable] | None
) -> dict[int, float]:
    """Sum of each trajectory's turn rewards, by the last of its rows that has a turn."""
    ids = range(len(turn_rewards)) if trajectory_ids is None else trajectory_ids
    rows: dict[Hashable, list[int]] = {}
    for b, (name, rewards) in enumerate(zip(ids, turn_rewards, strict=True)):
        if rewards:
            rows.setdefault(name, []).append(b)
    return {part[-1]: sum(sum(turn_rewards[b]) for b in part) for part in rows.values()}


def overlong_penalty(
    lengths: NDArray[np.int64], *, max_length: int, buffer_len: int, penalty_factor: float
) -> NDArray[np.float64]:
    """`-factor min(max((n - (max_length - buffer)) / buffer, 0), 1)` for a turn of n tokens.

    0 up to the buffer, then linear to the whole factor at the limit (DAPO, arXiv 2503.14476,
    eq. 13, applied to each turn instead of the response).

    Args:
        lengths: [K] sampled tokens of each turn.
        max_length: Maximum tokens of a turn.
        buffer_len: Number of penalised tokens before the limit, above 0.
        penalty_factor: Penalty at the limit.

    Returns:
        [K], at most 0.
    """
    over = (lengths - (max_length - buffer_len)) / buffer_len
    return -penalty_factor * over.clip(0.0, 1.0)
