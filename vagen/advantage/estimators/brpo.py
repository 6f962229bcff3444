"""Scores normalised over the whole batch."""

import torch

from vagen.advantage.estimator import estimator
from vagen.advantage.groups import compared, spread
from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs


@estimator(mask="loss", batch_based=True)
def brpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """`A = (s - mean_batch) / (std_batch + 1e-6)` on sampled tokens.

    Like `masked_grpo` with the whole batch as one group: it compares levels of different
    difficulty, and needs only one trajectory per level. Source: RAGEN (arXiv 2504.20073), `brpo`.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask.
    """
    together_L = torch.zeros_like(inputs.counted, dtype=torch.int64)
    relative_L = compared(inputs, together_L, inputs.loss_mask, "mean_std")
    return spread(inputs, relative_L, inputs.loss_mask)
