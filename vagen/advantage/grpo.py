"""Group-relative advantages, normalised by the group's standard deviation."""

import torch
from torch import Tensor

from vagen.advantage.groups import group_scores
from vagen.advantage.inputs import AdvantageInputs

EPSILON = 1e-6
"""Added to the standard deviation."""


def _grpo(inputs: AdvantageInputs, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    group = group_scores(inputs, mask_BT)
    alone = group.sizes < 2
    means = torch.where(alone, 0.0, group.means)
    stds = torch.where(alone, 1.0, group.stds)
    advantages = torch.where(mask_BT, ((group.scores - means) / (stds + EPSILON))[:, None], 0.0)
    return advantages, advantages.clone()


def grpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """`A = (s - mean_group) / (std_group + 1e-6)` on every attended token.

    `s` is the sum of the row's rewards, the standard deviation unbiased; a group of one has mean 0
    and standard deviation 1. Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2.

    Returns:
        Advantages and returns [B, T], equal, 0 at padding.
    """
    return _grpo(inputs, inputs.attention_mask)


def masked_grpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """As `grpo`, with rewards summed over and advantages given to sampled tokens only.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask.
    """
    return _grpo(inputs, inputs.loss_mask)
