"""GAE over turns: every token of a turn gets the turn's advantage."""

import torch
from torch import Tensor

from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan
from vagen.advantage.whitening import whiten


def turn_advantages(inputs: AdvantageInputs, turns: Selection) -> Tensor:
    """Advantage of each turn, the turn's last token `e_k` standing for the turn.

    `D_k = r(e_k) + G V(e_{k+1}) - V(e_k)` and `T_k = D_k + G L T_{k+1}` with discount G and
    lambda L per turn. After the last turn the value is the bootstrap value, or 0.

    Args:
        inputs: what the estimator reads.
        turns: the turn ends.

    Returns:
        [B, K] float64, 0 after a row's last turn.
    """
    assert inputs.values is not None
    return gae_scan(
        turns.take(inputs.rewards),
        turns.take(inputs.values),
        turns.lengths,
        inputs.bootstrap_values,
        gamma=inputs.high_level_gamma,
        lam=inputs.high_level_lam,
    )


def turn_wise_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Turn-level PPO: `A = T_k` on every sampled token of turn k, target `T_k + V(e_k)` on `e_k`.

    Rewards and values elsewhere than on turn ends are not read, so the critic must learn on turn
    ends only. Whitening statistics are over turns, not tokens: a long turn does not count more.
    Source: Turn-PPO baseline of VAGEN (arXiv 2510.16907, section 5).

    Returns:
        Advantages [B, T], 0 off the loss mask, and returns [B, T], 0 off the turn ends.
    """
    assert inputs.values is not None and inputs.turn_end_mask is not None
    ends = inputs.turn_end_mask
    turns = Selection.of(ends)
    tokens = Selection.of(inputs.loss_mask)
    turn_BK = turn_advantages(inputs, turns)
    returns = torch.where(ends, turns.put(turn_BK) + inputs.values, 0.0)
    if tokens.width == 0:
        return torch.zeros_like(returns), returns

    ends_BS = tokens.take(ends).long()
    turn_of_token_BS = (ends_BS.cumsum(1) - ends_BS).clamp(max=turn_BK.shape[1] - 1)
    raw = tokens.put(turn_BK.gather(1, turn_of_token_BS))
    return (whiten(raw, inputs.loss_mask, statistics_BT=ends) if inputs.whiten else raw), returns
