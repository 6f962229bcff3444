"""REINFORCE with the score of a greedy episode as baseline."""

from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.estimators.reinforce_plus_plus import returns_to_go
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection


@estimator(mask="loss", needs_baselines=True)
@by_chunks
def remax(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """`A_i = G_i - b` with `G_i = r_i + gamma G_next(i)` over sampled tokens, not whitened.

    `b` is the score of a greedy episode on the same level, so each level costs one more episode.
    Source: Li et al. 2024, arXiv 2310.10505, section 4.1 (with gamma 1).

    Returns:
        Advantages and returns `G` [B, T], 0 off the loss mask.
    """
    assert inputs.baselines is not None
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    returns_N = returns_to_go(inputs, tokens)
    return tokens.put(returns_N - inputs.baselines[tokens.lines]), tokens.put(returns_N)
