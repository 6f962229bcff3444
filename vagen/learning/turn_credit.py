"""Prepares estimator arguments for adaptive credit and state comparison.

Shape legend: B rows, T tokens of the longest row, K turns of a trajectory.
"""

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vagen.advantage import Credit, CreditReliability
from vagen.config.schema import ExperimentConfig
from vagen.envs.registry import get_environment
from vagen.rollout.types import Trajectory


def credit_arguments(
    credit: Credit | None, owners: Sequence[Trajectory]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Lambdas or discounts per turn of each row's trajectory, from earlier batches.

    Returns:
        `turn_lams` [K] or `turn_gammas` [B, K] for `estimate_advantages`, and metrics.
    """
    if credit is None:
        return {}, {}
    count = max((len(owner.turns) for owner in owners), default=0)
    if isinstance(credit, CreditReliability):
        lams = credit.lams(count)
        metrics = {f"credit/lam/turn_{k}": lam for k, lam in enumerate(lams)}
        return {"turn_lams": torch.tensor(lams, dtype=torch.float64)}, metrics
    gammas = np.ones((len(owners), count))
    used = []
    for row, owner in zip(gammas, owners, strict=True):
        if owner.turns:
            found = credit.gammas(owner.env_name, potentials(owner))
            row[: len(found)] = found
            used += found
    metrics = {}
    if used:
        metrics = {
            "credit/gamma/mean": float(np.mean(used)),
            "credit/gamma/std": float(np.std(used)),
        }
    return {"turn_gammas": torch.from_numpy(gammas)}, metrics


def update_credit(
    config: ExperimentConfig, credit: Credit | None, trajectories: Sequence[Trajectory]
) -> None:
    """Adds a batch with all columns to the running statistics.

    Skips trajectories without advantages: of failed environments, or dropped by the filter.
    """
    if credit is None:
        return
    used = [
        t for t in trajectories if any(r.loss_mask.any() and "values" in r.columns for r in t.rows)
    ]
    if isinstance(credit, CreditReliability):
        gamma = config.algorithm.high_level_gamma
        turns = [_turns(trajectory) for trajectory in used]
        credit.update([_to_go(r, gamma) for r, _ in turns], [v for _, v in turns])
        return
    for env in sorted({t.env_name for t in used}):
        credit.update(env, [potentials(t) for t in used if t.env_name == env])


def potentials(trajectory: Trajectory) -> list[float]:
    """Potential of the true state before each turn and after the last, [K + 1]."""
    env = get_environment(trajectory.env_name).load()
    turns = trajectory.turns
    start = turns[0].state
    states = [turn.state for turn in turns] + [turns[-1].next_state]
    return [env.potential(state, start) for state in states]


def anchor_ids(owners: Sequence[Trajectory], turn_index: Tensor) -> Tensor:
    """Ids of true states: [B, T] int64, on each token the state before its turn, -1 before turns.

    Args:
        owners: Trajectory of each row.
        turn_index: [B, T] int64, turn of each token, -1 at padding and in the first prompt.
    """
    numbers: dict[str, int] = {}
    anchors = torch.full_like(turn_index, -1)
    for row, owner in enumerate(owners):
        ids = [
            numbers.setdefault(json.dumps([turn.state, turn.summary], sort_keys=True), len(numbers))
            for turn in owner.turns
        ]
        # The observation after the last turn belongs to no turn.
        table = torch.tensor([*ids, -1, -1], dtype=torch.int64)
        anchors[row] = table[turn_index[row].clamp(max=len(ids))]
    return anchors


def _turns(trajectory: Trajectory) -> tuple[list[float], list[float]]:
    """Rewards and values at the last sampled token of each turn, in order."""
    rewards: list[float] = []
    values: list[float] = []
    for row in trajectory.rows:
        sampled = np.flatnonzero(row.loss_mask)
        turns = row.turn_index[sampled]
        ends = sampled[np.flatnonzero(np.append(turns[1:] != turns[:-1], len(turns) > 0))]
        rewards += row.columns["rewards"][ends].tolist()
        values += row.columns["values"][ends].tolist()
    return rewards, values


def _to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Discounted rewards from each turn on, without bootstrap values."""
    returns, carry = [], 0.0
    for reward in reversed(rewards):
        carry = reward + gamma * carry
        returns.append(carry)
    return returns[::-1]
