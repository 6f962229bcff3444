"""GAE over turns: every token of a turn gets the turn's advantage."""

import torch
from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan, turns_of


def turn_advantages(
    inputs: AdvantageInputs,
    turns: Selection,
    gammas: float | Tensor | None = None,
    lams: float | Tensor | None = None,
) -> Tensor:
    """Advantage of each turn, computed at its last token `e_k`.

    `D_k = r(e_k) + G V(e_{k+1}) - V(e_k)` and `T_k = D_k + G L T_{k+1}` with discount G and
    lambda L per turn. After the last turn the value is the bootstrap value, or 0.

    Args:
        inputs: The estimator's inputs.
        turns: The turn ends.
        gammas: Discount from each turn to the next, scalar or [N]; None for `high_level_gamma`.
        lams: Lambda from each turn to the next, scalar or [N]; None for `high_level_lam`.

    Returns:
        [N] float64, one entry per turn.
    """
    assert inputs.values is not None
    return gae_scan(
        turns,
        turns.take(inputs.rewards),
        turns.take(inputs.values),
        inputs.bootstrap_values,
        gamma=inputs.high_level_gamma if gammas is None else gammas,
        lam=inputs.high_level_lam if lams is None else lams,
    )


@estimator(
    mask="action",
    whiten_over="turn_end",
    value_mask="turn_end",
    needs_turn_end=True,
    reads_token_rewards=False,
)
@by_chunks
def turn_wise_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Turn-level PPO: `A = T_k` on every token of turn k, target `T_k + V(e_k)` on `e_k`.

    The tokens are those of the policy loss. Without the loss mask they include the observation
    before turn k, and those after the last turn have 0 before whitening. Only rewards and values on
    turn ends are read, so the critic must learn on turn ends only. Whitening statistics are over
    turns, not tokens: a long turn does not count more.
    Source: Turn-PPO baseline of VAGEN (arXiv 2510.16907, section 5).

    Returns:
        Advantages [B, T], 0 off the action mask, and returns [B, T], 0 off the turn ends.
    """
    assert inputs.values is not None and inputs.turn_end_mask is not None
    turns = Selection.of(inputs.turn_end_mask, inputs.trajectory_ids)
    tokens = Selection.of(inputs.action_mask, inputs.trajectory_ids)
    turn_N = turn_advantages(inputs, turns)
    # Tokens after a trajectory's last turn end would belong to the next trajectory's first turn.
    turn_of_N = turns_of(tokens.take(inputs.turn_end_mask))
    line_of_turn = torch.cat([turns.lines, turns.lines.new_tensor([-1])])
    raw_N = torch.cat([turn_N, turn_N.new_zeros(1)])[turn_of_N]
    raw_N = torch.where(line_of_turn[turn_of_N] == tokens.lines, raw_N, 0.0)
    return tokens.put(raw_N), turns.put(turn_N + turns.take(inputs.values))
