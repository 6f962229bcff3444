"""Comparison of trajectory scores within groups.

Shape legend: B rows, T tokens, L trajectories, M compared items.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vagen.advantage.chunks import row_slices
from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs
from vagen.advantage.rows import Normalization

EPSILON = 1e-6
"""Added to the standard deviation."""
ZERO = 1e-8
"""Standard deviations up to this are rounding errors of equal scores."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Statistics of each item's group, all [M] float64."""

    sizes: Tensor
    means: Tensor
    stds: Tensor
    """Unbiased; 0 in a group of one."""


def peers_of(
    x_M: Tensor, ids_M: Tensor, counted_M: Tensor, *, deviating_M: Tensor | None = None
) -> Peers:
    """Statistics of `x_M` within groups.

    Args:
        x_M: [M] float64.
        ids_M: [M] int64, group of each item, in [0, M).
        counted_M: [M] bool, items that count in the statistics.
        deviating_M: [M] float64, source of the deviation; `x_M` if None.
    """
    if deviating_M is not None:
        stds = peers_of(deviating_M, ids_M, counted_M).stds
        return replace(peers_of(x_M, ids_M, counted_M), stds=stds)
    counted = counted_M.to(x_M.dtype)

    def per_group(y: Tensor) -> Tensor:
        return x_M.new_zeros(ids_M.numel()).index_add_(0, ids_M, y * counted)[ids_M]

    sizes = per_group(torch.ones_like(x_M))
    means = per_group(x_M) / sizes.clamp(min=1.0)
    variances = per_group((x_M - means) ** 2) / (sizes - 1.0).clamp(min=1.0)
    return Peers(sizes=sizes, means=means, stds=variances.sqrt())


def normalized(x_M: Tensor, peers: Peers, normalization: Normalization) -> Tensor:
    """`x - mean`, over `std + 1e-6` for `mean_std`; 0 in groups of one or of equal values."""
    relative = torch.where(peers.sizes < 2, 0.0, x_M - peers.means)
    if normalization == "mean":
        return relative
    return torch.where(peers.stds <= ZERO, 0.0, relative / (peers.stds + EPSILON))


def compared(
    inputs: AdvantageInputs, ids_L: Tensor, mask_BT: Tensor, normalization: Normalization
) -> Tensor:
    """Each trajectory's score against its group, [L] float64.

    The mean is of the scores, the deviation of scores before any KL penalty: where all trajectories
    succeed or all fail, dividing by the deviation would amplify the penalty's noise.
    """
    scores = trajectory_scores(inputs.rewards, inputs, mask_BT)
    earned = trajectory_scores(inputs.task_rewards, inputs, mask_BT)
    peers = peers_of(scores, ids_L, inputs.counted, deviating_M=earned)
    return normalized(scores, peers, normalization)


def trajectory_scores(rewards_BT: Tensor, inputs: AdvantageInputs, mask_BT: Tensor) -> Tensor:
    """Sum of the rewards over the mask in all rows of each trajectory, [L] float64."""
    rows = [
        torch.where(mask_BT[part], rewards_BT[part].double(), 0.0).sum(1)
        for part in row_slices(mask_BT)
    ]
    scores = inputs.rewards.new_zeros(inputs.counted.numel(), dtype=torch.float64)
    return scores.index_add_(0, inputs.trajectory_ids, torch.cat(rows)) if rows else scores


def spread(inputs: AdvantageInputs, x_L: Tensor, mask_BT: Tensor) -> AdvantageEstimate:
    """Assigns each trajectory's value to its tokens of the mask, as advantages and as returns."""
    advantages = torch.where(mask_BT, x_L.to(inputs.dtype)[inputs.trajectory_ids][:, None], 0.0)
    return AdvantageEstimate(advantages, advantages.clone())
