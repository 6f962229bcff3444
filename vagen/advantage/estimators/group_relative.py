"""Estimators that compare the scores of whole trajectories."""

import torch
from torch import Tensor

from vagen.advantage.estimator import estimator
from vagen.advantage.groups import compared, normalized, peers_of, spread, trajectory_scores
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


def _rloo(inputs: AdvantageInputs, mask_BT: Tensor) -> AdvantageEstimate:
    assert inputs.group_ids is not None
    scores = trajectory_scores(inputs.rewards, inputs, mask_BT)
    peers = peers_of(scores, inputs.group_ids, inputs.counted)
    factor = peers.sizes / (peers.sizes - 1.0).clamp(min=1.0)
    return spread(inputs, factor * normalized(scores, peers, "mean"), mask_BT)


@estimator(mask="attention", group_based=True)
def rloo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """`A = s - mean of the others' scores = n / (n - 1) (s - mean_group)`, on attended tokens.

    `s` is the sum of the trajectory's rewards over all its rows. A group of one has no baseline and
    gets 0. Source: Ahmadian et al. 2024, arXiv 2402.14740, eq. 8 (Kool et al. 2019).

    Returns:
        Advantages and returns [B, T], equal, 0 at padding.
    """
    return _rloo(inputs, inputs.attention_mask)


@estimator(mask="loss", group_based=True)
def masked_rloo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Like `rloo`, with rewards and advantages on sampled tokens only.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask.
    """
    return _rloo(inputs, inputs.loss_mask)


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


@estimator(mask="loss")
def arpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """`A = s`, the sum of the trajectory's rewards, on sampled tokens: REINFORCE without baseline.

    Source: RAGEN (arXiv 2504.20073), `arpo`.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask.
    """
    return spread(
        inputs, trajectory_scores(inputs.rewards, inputs, inputs.loss_mask), inputs.loss_mask
    )
