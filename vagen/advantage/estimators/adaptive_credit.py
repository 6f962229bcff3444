"""Bi-level GAE whose lambda or discount differs from turn to turn."""

from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.estimators.bi_level_gae import within_turns
from vagen.advantage.estimators.turn_wise_gae import turn_advantages
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection


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
