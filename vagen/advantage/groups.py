"""Scores of trajectories, compared.

Shape legend: B rows, T tokens, L trajectories, M things compared.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vagen.advantage.chunks import row_slices
from vagen.advantage.inputs import AdvantageInputs, Estimate
from vagen.advantage.rows import Normalization

EPSILON = 1e-6
"""Added to the standard deviation."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Statistics of the group that each of M things is in, all [M] float64."""

    sizes: Tensor
    means: Tensor
    stds: Tensor
    """Unbiased; 0 in a group of one."""


def peers_of(x_M: Tensor, ids_M: Tensor, counted_M: Tensor) -> Peers:
    """Statistics of `x_M` within groups.

    Args:
        x_M: [M] float64.
        ids_M: [M] int64, group of each, in [0, M).
        counted_M: [M] bool, what belongs to its group's statistics.
    """
    counted = counted_M.to(x_M.dtype)

    def per_group(y: Tensor) -> Tensor:
        return x_M.new_zeros(ids_M.numel()).index_add_(0, ids_M, y * counted)[ids_M]

    sizes = per_group(torch.ones_like(x_M))
    means = per_group(x_M) / sizes.clamp(min=1.0)
    variances = per_group((x_M - means) ** 2) / (sizes - 1.0).clamp(min=1.0)
    return Peers(sizes=sizes, means=means, stds=variances.sqrt())


def normalized(x_M: Tensor, peers: Peers, normalization: Normalization) -> Tensor:
    """`x - mean`, and over `std + 1e-6` for `mean_std`; a group of one has mean 0 and std 1."""
    alone = peers.sizes < 2
    relative = x_M - torch.where(alone, 0.0, peers.means)
    if normalization == "mean":
        return relative
    return relative / (torch.where(alone, 1.0, peers.stds) + EPSILON)


def trajectory_scores(inputs: AdvantageInputs, mask_BT: Tensor) -> Tensor:
    """Sum of the rewards over the mask in all rows of each trajectory, [L] float64."""
    rows = [
        torch.where(mask_BT[part], inputs.rewards[part].double(), 0.0).sum(1)
        for part in row_slices(mask_BT)
    ]
    scores = inputs.rewards.new_zeros(inputs.counted.numel(), dtype=torch.float64)
    return scores.index_add_(0, inputs.trajectory_ids, torch.cat(rows)) if rows else scores


def spread(inputs: AdvantageInputs, x_L: Tensor, mask_BT: Tensor) -> Estimate:
    """Gives every token of the mask what its trajectory has, as advantages and as returns."""
    advantages = torch.where(mask_BT, x_L.to(inputs.dtype)[inputs.trajectory_ids][:, None], 0.0)
    return Estimate(advantages, advantages.clone())
