"""Leave-one-out advantages."""

from torch import Tensor

from vagen.advantage.estimator import estimator
from vagen.advantage.groups import normalized, peers_of, spread, trajectory_scores
from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs


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
