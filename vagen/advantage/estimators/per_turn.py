"""Estimators that credit turns: the turn is one action, or tokens are credited within it."""

import torch
from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan, reverse_linear_scan, turn_starts, turns_of


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


@estimator(mask="action", whiten_over="loss", value_mask="loss", needs_turn_end=True, adapts=True)
@by_chunks
def adaptive_credit(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Like `bi_level_gae`, with the outer recursion's constants given per turn.

    `D_k = r(e_k) + G_{k+1} V(e_{k+1}) - V(e_k)`, `T_k = D_k + G_{k+1} L_{k+1} T_{k+1}`; the inner
    recursion is that of `bi_level_gae`. With constant `G` and `L` the results are identical.

    `turn_lams[k]` is `L_k`: the weight of later rewards and values against the value before turn k.
    `turn_gammas[k]` is `G_{k+1}`: the discount from turn k to the state after it. Both are inputs
    without gradient; `vagen.advantage.credit` has two ways to choose them (`CreditReliability`,
    `ProgressDiscount`). This estimator is ours, not from a paper.

    Returns:
        Like `bi_level_gae`.
    """
    assert inputs.turn_end_mask is not None
    turns = Selection.of(inputs.turn_end_mask, inputs.trajectory_ids)
    ranks = turns.ranks()
    gammas, lams = inputs.turn_gammas, inputs.turn_lams
    return within_turns(
        inputs,
        turn_advantages(
            inputs,
            turns,
            gammas=None if gammas is None else gammas[turns.lines, ranks],
            lams=None if lams is None else _next_lams(lams, turns, ranks),
        ),
    )


def _next_lams(lams_LK: Tensor, turns: Selection, ranks: Tensor) -> Tensor:
    """Lambda of the turn after each; arbitrary after the last turn."""
    return lams_LK[turns.lines, (ranks + 1).clamp(max=lams_LK.shape[1] - 1)]


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
        turns,
        rewards,
        turn_values,
        inputs.bootstrap_values,
        gamma=inputs.gamma,
        lam=inputs.lam,
    )
    returns_N = values_N.new_zeros(values_N.shape)
    returns_N[valued_N] = advantages + turn_values
    return tokens.put(advantages[turns_of(ends_N)]), tokens.put(returns_N)
