"""REINFORCE with returns to go, whitened over the batch."""

from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, reverse_linear_scan


def returns_to_go(inputs: AdvantageInputs, tokens: Selection) -> Tensor:
    """Discounted reward from each selected token on, [N]: `G_i = r_i + gamma G_next(i)`."""
    return reverse_linear_scan(tokens.take(inputs.rewards), tokens.within(inputs.gamma))


@estimator(mask="loss", whiten_over="loss")
@by_chunks
def reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """`A_i = G_i = r_i + gamma G_next(i)` over sampled tokens, whitened over the loss mask.

    Source: Hu et al. 2025, arXiv 2501.03262, section 3. Published trainers reset the sum at every
    token off the mask, so that a reward never reaches earlier turns; here the sum skips
    observations.

    Returns:
        Advantages and returns [B, T], 0 off the loss mask.
    """
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    returns = tokens.put(returns_to_go(inputs, tokens))
    return returns, returns
