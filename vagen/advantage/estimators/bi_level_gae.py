"""Bi-level GAE: credit between turns first, then within each turn."""

import torch
from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.estimators.turn_wise_gae import turn_advantages
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, reverse_linear_scan, turns_of


@estimator(mask="action", whiten_over="loss", value_mask="loss", needs_turn_end=True)
@by_chunks
def bi_level_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """A recursion over turns with its own discount, then one over the tokens of each turn.

    Outer, over the last tokens `e_k` of the turns, with discount G and lambda L per turn:
    `D_k = r(e_k) + G V(e_{k+1}) - V(e_k)`, `T_k = D_k + G L T_{k+1}`.
    Inner, over sampled tokens with `gamma` and `lam`, never across turns: `A(e_k) = T_k`, and
    before it `d_i = r_i + gamma V_next(i) - V_i`, `A_i = d_i + gamma lam A_next(i)`.
    Target `A_i + V_i`; whitened over the loss mask as `masked_gae` is.

    Source: VAGEN, arXiv 2510.16907, section 4.2. `V(e_k)` is the value before the turn's last
    token, so target and value of a token belong together. The reward of a turn belongs on its
    last token; a reward inside a turn is credited to the tokens before it in that turn only.
    With G = gamma = 1, L = lam = 1 and rewards on turn ends only, the result equals that of
    `masked_gae`. At equal discounts below 1 it differs, since the outer discount counts turns and
    the other one tokens (they agree where every turn is one token long).

    Returns:
        Advantages [B, T], 0 off the action mask, and returns [B, T], 0 off the loss mask.
    """
    assert inputs.turn_end_mask is not None
    turns = Selection.of(inputs.turn_end_mask, inputs.trajectory_ids)
    return within_turns(inputs, turn_advantages(inputs, turns))


def within_turns(inputs: AdvantageInputs, turn_advantages_N: Tensor) -> tuple[Tensor, Tensor]:
    """The inner recursion, starting from the advantage of each turn.

    Args:
        inputs: The estimator's inputs.
        turn_advantages_N: one entry per turn of all trajectories.

    Returns:
        Advantages and returns [B, T], 0 off the loss mask.
    """
    assert inputs.values is not None and inputs.turn_end_mask is not None
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    ends_N = tokens.take(inputs.turn_end_mask)
    values_N = tokens.take(inputs.values)
    following_N = tokens.following(values_N, None)
    deltas_N = tokens.take(inputs.rewards) + inputs.gamma * following_N - values_N
    raw_N = reverse_linear_scan(
        torch.where(ends_N, turn_advantages_N[turns_of(ends_N)], deltas_N),
        (~ends_N).to(deltas_N.dtype) * (inputs.gamma * inputs.lam),
    )
    return tokens.put(raw_N), tokens.put(raw_N + values_N)
