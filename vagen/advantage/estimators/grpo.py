"""Group-relative advantages, normalised by the group's standard deviation."""

from torch import Tensor

from vagen.advantage.estimator import estimator
from vagen.advantage.groups import compared, spread
from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs


def _grpo(inputs: AdvantageInputs, mask_BT: Tensor) -> AdvantageEstimate:
    assert inputs.group_ids is not None
    return spread(inputs, compared(inputs, inputs.group_ids, mask_BT, "mean_std"), mask_BT)


@estimator(mask="attention", group_based=True)
def grpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """`A = (s - mean_group) / (std_group + 1e-6)` on every attended token.

    `s` is the sum of the trajectory's rewards over all its rows. The mean and the unbiased standard
    deviation are over trajectories; the deviation ignores any KL penalty. A group of one, or of
    equal scores, gets 0. Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2 (which has the
    KL in the loss).

    Returns:
        Advantages and returns [B, T], equal, 0 at padding.
    """
    return _grpo(inputs, inputs.attention_mask)


@estimator(mask="loss", group_based=True)
def masked_grpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Like `grpo`, with rewards and advantages on sampled tokens only.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask.
    """
    return _grpo(inputs, inputs.loss_mask)
