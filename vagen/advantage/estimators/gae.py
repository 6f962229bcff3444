"""Token-level GAE over the whole sequence, observations included."""

import torch
from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan


@estimator(
    mask="attention",
    whiten_over="attention",
    value_mask="attention",
    stitches=False,
    reads_padding=True,
)
@by_chunks
def gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Treats every position as an action, like single-turn PPO.

    `d_p = r_p + gamma V_{p+1} - V_p`, `A_p = d_p + gamma lam A_{p+1}`, target `A_p + V_p`
    (Schulman et al. 2016, eq. 16). Advantages are whitened over the attention mask.

    With bootstrap values the recursion ends on a row's last attended token. Without them it
    runs over *all* positions, as in the published trainers: values at padding must then be 0, or
    they act as further bootstrap values. Rows cannot be stitched, since the next row repeats
    history instead of a following action.

    Returns:
        Advantages and returns [B, T], 0 at padding.
    """
    values = inputs.values
    assert values is not None
    bootstrap = inputs.bootstrap_values
    attended = inputs.attention_mask
    positions = Selection.of(torch.ones_like(attended) if bootstrap is None else attended)
    raw = positions.put(
        gae_scan(
            positions,
            positions.take(inputs.rewards),
            positions.take(values),
            None if bootstrap is None else bootstrap[inputs.trajectory_ids],
            gamma=inputs.gamma,
            lam=inputs.lam,
        )
    )
    return torch.where(attended, raw, 0.0), torch.where(attended, raw + values, 0.0)
