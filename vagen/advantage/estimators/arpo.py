"""Scores as advantages."""

from vagen.advantage.estimator import estimator
from vagen.advantage.groups import spread, trajectory_scores
from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs


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
