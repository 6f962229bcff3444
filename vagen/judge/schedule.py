"""Limits the judge's share of rewards: weights over the run, and a cap."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vagen.config.judge_options import JudgeConfig
from vagen.judge.base import SECTIONS
from vagen.judge.scoring import set_rewards
from vagen.rollout.types import NOTHING, SectionScores, Status, Trajectory


def schedule_factor(judge: JudgeConfig, iteration: int, iterations: int) -> float:
    """Factor on the judge's weights in an iteration: 1 at first, `floor` after the decay.

    Args:
        judge: The `judge` section with a `schedule`.
        iteration: Index of the iteration, from 0.
        iterations: Iterations of the run, for a schedule without a length.
    """
    schedule = judge.schedule
    if schedule.type == "constant":
        return 1.0
    progress = min(iteration / (schedule.iterations or iterations), 1.0)
    left = 1 - progress if schedule.type == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return schedule.floor + (1 - schedule.floor) * left


def cap_factor(trajectories: Sequence[Trajectory], most_share: float | None) -> float:
    """Factor that limits the deviation of judge rewards to a share of that of other rewards.

    Deviations are of sums over trajectories, without failed ones.

    Args:
        trajectories: A batch with judge rewards.
        most_share: `judge.schedule.max_return_share`; None for no cap.

    Returns:
        A factor in [0, 1]; 0 if judge rewards differ and others do not.
    """
    if most_share is None:
        return 1.0
    played = [t for t in trajectories if t.status is not Status.ENV_ERROR]
    if not played:
        return 1.0
    sums = np.array([_sums(trajectory) for trajectory in played])
    of_judge, others = sums.std(0)
    return 1.0 if of_judge <= most_share * others else float(most_share * others / of_judge)


def weigh(
    judge: JudgeConfig,
    trajectories: Sequence[Trajectory],
    *,
    iteration: int,
    iterations: int,
    blind: Mapping[str, SectionScores],
) -> dict[str, float]:
    """Sets the judge rewards of a judged batch by schedule, cap and chance level.

    Args:
        judge: The `judge` section.
        trajectories: The batch.
        iteration: Index of the iteration, from 0.
        iterations: Iterations of the run.
        blind: Chance-level scores by environment id (`judge.above_chance`).

    Returns:
        Metrics.
    """
    judged = [
        (turn, blind.get(trajectory.config_id, NOTHING))
        for trajectory in trajectories
        for turn in trajectory.turns
        if turn.verdict is not None
    ]

    def scale(factor: float) -> None:
        for turn, chance in judged:
            set_rewards(judge, turn, factor, chance)

    factor = schedule_factor(judge, iteration, iterations)
    scale(factor)
    cap = cap_factor(trajectories, judge.schedule.max_return_share)
    if cap < 1:
        scale(factor * cap)
    metrics = {"judge/weight_factor": factor * cap}
    for section in SECTIONS:
        if chances := [x for _, chance in judged if (x := getattr(chance, section)) is not None]:
            metrics[f"judge/blind_{section}"] = float(np.mean(chances))
    return metrics


def _sums(trajectory: Trajectory) -> tuple[float, float]:
    """Sums of a trajectory's judge rewards and of its other rewards."""
    of_judge = others = 0.0
    for turn in trajectory.turns:
        for value in (turn.rewards.judge_observation, turn.rewards.judge_prediction):
            of_judge += value or 0.0
        others += turn.rewards.env + turn.rewards.format
    return of_judge, others
