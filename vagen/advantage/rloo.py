"""Leave-one-out advantages."""

import torch
from torch import Tensor

from vagen.advantage.groups import group_scores
from vagen.advantage.inputs import AdvantageInputs


def _rloo(inputs: AdvantageInputs, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    group = group_scores(inputs, mask_BT)
    factor = group.sizes / (group.sizes - 1.0).clamp(min=1.0)
    relative = torch.where(group.sizes < 2, group.scores, factor * (group.scores - group.means))
    advantages = torch.where(mask_BT, relative[:, None], 0.0)
    return advantages, advantages.clone()


def rloo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """`A = s - mean of the other rows' scores = n / (n - 1) (s - mean_group)`, on attended tokens.

    A group of one has no baseline: `A = s`. Source: Ahmadian et al. 2024, arXiv 2402.14740, eq. 8
    (Kool et al. 2019).

    Returns:
        Advantages and returns [B, T], equal, 0 at padding.
    """
    return _rloo(inputs, inputs.attention_mask)


def masked_rloo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """As `rloo`, with rewards summed over and advantages given to sampled tokens only.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask.
    """
    return _rloo(inputs, inputs.loss_mask)
