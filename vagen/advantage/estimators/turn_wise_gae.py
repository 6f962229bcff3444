"""GAE over turns: every token of a turn gets the turn's advantage."""

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
    """Advantage of each turn, the turn's last token `e_k` standing for the turn.

    `D_k = r(e_k) + G V(e_{k+1}) - V(e_k)` and `T_k = D_k + G L T_{k+1}` with discount G and
    lambda L per turn. After the last turn the value is the bootstrap value, or 0.

    Args:
        inputs: what the estimator reads.
        turns: the turn ends.
        gammas: discount from each turn to the next, one or [N]; None is `high_level_gamma`.
        lams: lambda from each turn to the next, one or [N]; None is `high_level_lam`.

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
    mask="loss",
    whiten_over="turn_end",
    value_mask="turn_end",
    needs_turn_end=True,
    reads_token_rewards=False,
)
@by_chunks
def turn_wise_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Turn-level PPO: `A = T_k` on every sampled token of turn k, target `T_k + V(e_k)` on `e_k`.

    Rewards and values elsewhere than on turn ends are not read, so the critic must learn on turn
    ends only. Whitening statistics are over turns, not tokens: a long turn does not count more.
    Source: Turn-PPO baseline of VAGEN (arXiv 2510.16907, section 5).

    Returns:
        Advantages [B, T], 0 off the loss mask, and returns [B, T], 0 off the turn ends.
    """
    assert inputs.values is not None and inputs.turn_end_mask is not None
    turns = Selection.of(inputs.turn_end_mask, inputs.trajectory_ids)
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    turn_N = turn_advantages(inputs, turns)
    raw_N = turn_N[turns_of(tokens.take(inputs.turn_end_mask))]
    return tokens.put(raw_N), turns.put(turn_N + turns.take(inputs.values))
