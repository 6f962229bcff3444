"""Group-in-group advantages: compares trajectories of a level, and turns from the same state.

Shape legend: B rows, T tokens, L trajectories, M turns of all of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vagen.advantage.chunks import chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.estimators.no_concat_gae import turn_rewards
from vagen.advantage.groups import Peers, compared, normalized, peers_of
from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs
from vagen.advantage.segments import Selection, reverse_linear_scan, turns_of


@dataclass(frozen=True, slots=True)
class _StepAdvantages:
    """The second level: compares each turn with those of its level that began in the same state."""

    advantages: Tensor
    """[M] float64."""
    peers: Peers
    """Statistics of its anchor group, [M]."""

    def metrics(self) -> dict[str, float]:
        """Shares of turns that are alone in their anchor group, and whose advantage is not 0.

        Turns that are alone learn from the episode's score only.
        """
        if not self.advantages.numel():
            return {}
        return {
            "gigpo/singleton_turns": float((self.peers.sizes < 2).double().mean()),
            "gigpo/nonzero_turns": float((self.advantages != 0).double().mean()),
        }


@estimator(mask="loss", needs_turn_end=True, needs_anchors=True, group_based=True)
def gigpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """`A = A_E + w A_S` on every sampled token of a turn.

    `A_E` compares the trajectory's score with those of its group, each trajectory once. `A_S`
    compares the turn's return `R_k = sum_{j >= k} g^(j-k) r_j` with those of all turns of the group
    that started from the same state (`anchor_ids`); a single turn has 0. Both are differences from
    the mean, over `std + 1e-6` for `mean_std`. Source: Feng et al. 2025, arXiv 2505.10978, eq. 3 to
    8.

    Returns:
        Advantages and returns [B, T], equal, 0 off the loss mask; if there is a turn, metrics
        `gigpo/singleton_turns`, the share of turns alone in their group, and `gigpo/nonzero_turns`,
        the share whose `A_S` is not 0.
    """
    assert inputs.group_ids is not None
    episode_L = compared(inputs, inputs.group_ids, inputs.loss_mask, inputs.step_normalization)
    steps = _step_advantages(inputs)
    step_M = inputs.step_advantage_weight * steps.advantages
    advantages = torch.zeros_like(inputs.rewards, dtype=inputs.dtype)
    done_lines = done_turns = 0
    for rows, part in chunks(inputs):
        assert part.turn_end_mask is not None
        tokens = Selection.of(part.loss_mask, part.trajectory_ids)
        ends_N = tokens.take(part.turn_end_mask)
        of_token_N = step_M[done_turns + turns_of(ends_N)]
        of_token_N += episode_L[done_lines + tokens.lines]
        advantages[rows] = tokens.put(of_token_N).to(inputs.dtype)
        done_lines += part.counted.numel()
        done_turns += int(ends_N.sum())
    return AdvantageEstimate(advantages, advantages.clone(), steps.metrics())


def _step_advantages(inputs: AdvantageInputs) -> _StepAdvantages:
    """Second-level advantages, in the order of `chunks`."""
    returns, earned, keys = [], [], []
    for _, part in chunks(inputs):
        assert part.turn_end_mask is not None and part.anchor_ids is not None
        assert part.group_ids is not None
        turns = Selection.of(part.turn_end_mask, part.trajectory_ids)
        tokens = Selection.of(part.loss_mask, part.trajectory_ids)
        ends_N = tokens.take(part.turn_end_mask)
        for found, given in ((returns, part.rewards), (earned, part.task_rewards)):
            rewards = turn_rewards(ends_N, tokens.take(given), turns.lines.numel())
            found.append(reverse_linear_scan(rewards, turns.within(part.step_gamma)))
        keys.append(torch.stack([part.group_ids[turns.lines], turns.take(part.anchor_ids)]))
    if not returns:
        empty = inputs.rewards.new_zeros(0, dtype=torch.float64)
        return _StepAdvantages(empty, Peers(empty, empty, empty))
    returns_M = torch.cat(returns)
    _, anchor_M = torch.cat(keys, 1).unique(dim=1, return_inverse=True)
    every = torch.ones_like(anchor_M, dtype=torch.bool)
    peers = peers_of(returns_M, anchor_M, every, deviating_M=torch.cat(earned))
    return _StepAdvantages(normalized(returns_M, peers, inputs.step_normalization), peers)
