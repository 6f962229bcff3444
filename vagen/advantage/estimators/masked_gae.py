"""GAE over sampled tokens only (M^adv)."""

from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan


@estimator(mask="action", whiten_over="loss", value_mask="loss")
@by_chunks
def masked_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The recursion steps from one sampled token to the next and skips observations.

    With `next(i)` the next sampled token: `d_i = r_i + gamma V_next(i) - V_i`,
    `A_i = d_i + gamma lam A_next(i)`, target `A_i + V_i` (VAGEN, arXiv 2510.16907, section 4.1;
    the recursion is Schulman et al. 2016, eq. 16). Whitened over the loss mask; other tokens of the
    policy loss get the whitened 0, as in VAGEN's own trainer.

    Returns:
        Advantages [B, T], 0 off the action mask, and returns [B, T], 0 off the loss mask.
    """
    assert inputs.values is not None
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    values_N = tokens.take(inputs.values)
    raw_N = gae_scan(
        tokens,
        tokens.take(inputs.rewards),
        values_N,
        inputs.bootstrap_values,
        gamma=inputs.gamma,
        lam=inputs.lam,
    )
    return tokens.put(raw_N), tokens.put(raw_N + values_N)
