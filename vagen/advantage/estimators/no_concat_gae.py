"""GAE over turns with one value per turn, for contexts with one turn each."""

from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan, turn_starts, turns_of


@estimator(mask="loss", whiten_over="loss", value_mask="turn_start", needs_turn_end=True)
@by_chunks
def no_concat_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """A turn is one action, valued before its first token `f_k`.

    `r_k` is the sum of the turn's rewards; `D_k = r_k + gamma V(f_{k+1}) - V(f_k)`,
    `A_k = D_k + gamma lam A_{k+1}` with the token-level discount and lambda applied per turn. Every
    sampled token of turn k gets `A_k`, and `f_k` the target `A_k + V(f_k)`: the critic must learn
    on first tokens only. Whitened over the loss mask. The turns of a trajectory may be in one row
    or in several. Source: the no-concat mode of VAGEN's 2026 release (VAGEN-Lite).

    Returns:
        Advantages [B, T], 0 off the loss mask, and returns [B, T], 0 off the first tokens.
    """
    return _per_turn(inputs, at_end=False)


@estimator(mask="loss", whiten_over="loss", value_mask="turn_end", needs_turn_end=True)
@by_chunks
def no_concat_gae_last(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Like `no_concat_gae`, with value and target of a turn on its last token `e_k`.

    Returns:
        Advantages [B, T], 0 off the loss mask, and returns [B, T], 0 off the turn ends.
    """
    return _per_turn(inputs, at_end=True)


def turn_rewards(ends_N: Tensor, rewards_N: Tensor, turns: int) -> Tensor:
    """Sums rewards over each turn's tokens: [N] to one entry per turn."""
    return rewards_N.new_zeros(turns).index_add_(0, turns_of(ends_N), rewards_N)


def _per_turn(inputs: AdvantageInputs, *, at_end: bool) -> tuple[Tensor, Tensor]:
    assert inputs.values is not None and inputs.turn_end_mask is not None
    turns = Selection.of(inputs.turn_end_mask, inputs.trajectory_ids)
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    ends_N = tokens.take(inputs.turn_end_mask)
    valued_N = ends_N if at_end else turn_starts(ends_N)
    values_N = tokens.take(inputs.values)
    rewards = turn_rewards(ends_N, tokens.take(inputs.rewards), turns.lines.numel())
    turn_values = values_N[valued_N]
    advantages = gae_scan(
        turns, rewards, turn_values, inputs.bootstrap_values, gamma=inputs.gamma, lam=inputs.lam
    )
    returns_N = values_N.new_zeros(values_N.shape)
    returns_N[valued_N] = advantages + turn_values
    return tokens.put(advantages[turns_of(ends_N)]), tokens.put(returns_N)
