"""Played batches without a model: real states, statements about them, and a token per turn."""

from random import Random
from typing import Any

import numpy as np
from judge_samples import frozenlake_state, language

from vagen.envs.parsing import ParsedResponse
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import (
    CONTEXT,
    Status,
    TokenRow,
    Trajectory,
    Turn,
    TurnMetrics,
    TurnRewards,
)


def trajectories(
    count: int, *, turns: int = 2, seed: int = 0, unread: float = 0.0, config_id: str = "game"
) -> list[Trajectory]:
    """FrozenLake episodes whose statements are true or, half of them, of another state."""
    rng = Random(seed)
    return [_trajectory(rng, number, turns, unread, config_id) for number in range(count)]


def batch(made: list[Trajectory], config_digest: str, iteration: int = 0) -> TrajectoryBatch:
    return TrajectoryBatch(
        trajectories=made,
        images={},
        policy_version="warm_start",
        config_digest=config_digest,
        kind="rollout",
        iteration=iteration,
        metrics={},
    )


def _trajectory(rng: Random, number: int, turns: int, unread: float, config_id: str) -> Trajectory:
    name = f"{config_id}-{number}"
    played = [_turn(rng, name, index, unread) for index in range(turns)]
    index = np.arange(-1, turns, dtype=np.int16)
    row = TokenRow(
        trajectory_id=name,
        row_index=0,
        input_ids=np.arange(turns + 1, dtype=np.int32),
        loss_mask=index != CONTEXT,
        turn_index=index,
        rollout_logprobs=np.zeros(turns + 1, np.float32),
        images=[],
    )
    rewards = [turn.rewards.env for turn in played]
    return Trajectory(
        trajectory_id=name,
        group_id=f"group-{number}",
        config_id=config_id,
        env_name="FrozenLake",
        env_config_digest="digest",
        seed=number,
        level_hash=f"{number:x}",
        terminated=True,
        truncated=False,
        success=number % 2 == 0,
        status=Status.OK,
        score=sum(rewards),
        turns=played,
        rows=[row],
    )


def _turn(rng: Random, name: str, index: int, unread: float) -> Turn:
    state, next_state = frozenlake_state(rng), frozenlake_state(rng)
    return Turn(
        trajectory_id=name,
        turn_index=index,
        response_text="",
        parsed=ParsedResponse(
            format_correct=True,
            observation=_statement(rng, state, unread),
            prediction=_statement(rng, next_state, unread),
        ),
        rewards=TurnRewards(env=rng.choice([0.0, 1.0]), format=0.5),
        metrics=TurnMetrics(action_is_valid=True, action_is_effective=True),
        state=state,
        next_state=next_state,
    )


def _statement(rng: Random, state: dict[str, Any], unread: float) -> str:
    if rng.random() < unread:
        return (
            f"the frozen thing number {rng.randrange(10**9)} hums at the {rng.choice('abc')} shore"
        )
    return language(rng, state if rng.random() < 0.5 else frozenlake_state(rng))
