"""Scores of trajectories against their group.

Shape legend: B rows, T tokens, G groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vagen.advantage.inputs import AdvantageInputs


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Score of each row and the statistics of its group, all [B] float64."""

    scores: Tensor
    sizes: Tensor
    """Rows of the row's group, padding rows not counted."""
    means: Tensor
    stds: Tensor
    """Unbiased; 0 in a group of one."""


def group_scores(inputs: AdvantageInputs, mask_BT: Tensor) -> GroupScores:
    """Sums each row's rewards over `mask_BT` and compares within groups.

    A row whose attention mask is empty is a padding row: it counts in no group.
    """
    assert inputs.group_ids is not None
    ids = inputs.group_ids
    scores = torch.where(mask_BT, inputs.rewards, 0.0).sum(1)
    counted = inputs.attention_mask.any(1).to(scores.dtype)

    def per_group(x: Tensor) -> Tensor:
        return scores.new_zeros(ids.numel()).index_add_(0, ids, x * counted)[ids]

    sizes = per_group(torch.ones_like(scores))
    means = per_group(scores) / sizes.clamp(min=1.0)
    variances = per_group((scores - means) ** 2) / (sizes - 1.0).clamp(min=1.0)
    return GroupScores(scores=scores, sizes=sizes, means=means, stds=variances.sqrt())
