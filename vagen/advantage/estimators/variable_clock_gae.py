"""GAE that counts tokens within a turn, and turns between turns."""

import torch
from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan


@estimator(mask="action", whiten_over="loss", value_mask="loss", needs_turn_end=True)
@by_chunks
def variable_clock_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """One recursion over sampled tokens, with its own discount and lambda after each turn.

    `d_i = r_i + g_i V_next(i) - V_i` and `A_i = d_i + g_i l_i A_next(i)`, where `g_i, l_i` are
    `high_level_gamma, high_level_lam` on a turn's last token and `gamma, lam` elsewhere. With `A0`
    the advantage of `masked_gae` (`gamma, lam` on every token) and m = `bi_level_mix`, the result
    is `A0 + m (A - A0)`, the target `A0 + m (A - A0) + V_i`.

    Source: `bi_level_gae` of VAGEN's main branch (commit 1fc6b4b, 2026), which requires `gamma` 1
    and defaults to .95, .95 between turns, lambda 1 within, and a mix of .75. In contrast to
    `bi_level_gae` here (VAGEN's paper), the advantage of a turn includes the values of all of its
    tokens, not only of its last, and a reward inside a turn also counts for earlier turns.

    Returns:
        Advantages [B, T], 0 off the action mask, and returns [B, T], 0 off the loss mask.
    """
    assert inputs.values is not None and inputs.turn_end_mask is not None
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    ends_N = tokens.take(inputs.turn_end_mask)
    rewards_N, values_N = tokens.take(inputs.rewards), tokens.take(inputs.values)

    def gae(gamma: float | Tensor, lam: float | Tensor) -> Tensor:
        after_L = inputs.bootstrap_values
        return gae_scan(tokens, rewards_N, values_N, after_L, gamma=gamma, lam=lam)

    def clocks(per_turn: float, per_token: float) -> Tensor:
        return torch.where(ends_N, values_N.new_tensor(per_turn), per_token)

    raw_N = gae(
        clocks(inputs.high_level_gamma, inputs.gamma), clocks(inputs.high_level_lam, inputs.lam)
    )
    if inputs.bi_level_mix < 1:
        raw_N = torch.lerp(gae(inputs.gamma, inputs.lam), raw_N, inputs.bi_level_mix)
    return tokens.put(raw_N), tokens.put(raw_N + values_N)
