"""How much of a turn's reward the judge may give: its weights over the run, and the cap."""

import math
from collections.abc import Sequence

import numpy as np

from vagen.config.judge_options import JudgeConfig
from vagen.judge.scoring import set_rewards
from vagen.rollout.types import Status, Trajectory


def schedule_factor(judge: JudgeConfig, iteration: int, iterations: int) -> float:
    """Factor of the judge's weights in an iteration: 1 at first, `floor` at the end of the decay.

    Args:
        judge: Its `schedule`.
        iteration: Number of the iteration, from 0.
        iterations: Iterations of the run, for a schedule that names none.
    """
    schedule = judge.schedule
    if schedule.type == "constant":
        return 1.0
    progress = min(iteration / (schedule.iterations or iterations), 1.0)
    left = 1 - progress if schedule.type == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return schedule.floor + (1 - schedule.floor) * left


def cap_factor(trajectories: Sequence[Trajectory], most_share: float | None) -> float:
    """Factor that keeps the deviation of judge rewards to a share of that of the other rewards.

    Compared are trajectories' sums, those that failed in their environment left out.

    Args:
        trajectories: A batch with judge rewards.
        most_share: `judge.schedule.max_return_share`; None is no cap.

    Returns:
        In [0, 1]; 0 where the other rewards do not differ and the judge's do.
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
    judge: JudgeConfig, trajectories: Sequence[Trajectory], *, iteration: int, iterations: int
) -> dict[str, float]:
    """Sets the judge rewards of a judged training batch by schedule and cap; returns metrics."""
    factor = schedule_factor(judge, iteration, iterations)
    _scale(judge, trajectories, factor)
    cap = cap_factor(trajectories, judge.schedule.max_return_share)
    if cap < 1:
        _scale(judge, trajectories, factor * cap)
    return {"judge/weight_factor": factor * cap}


def _scale(judge: JudgeConfig, trajectories: Sequence[Trajectory], factor: float) -> None:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.verdict is not None:
                set_rewards(judge, turn, factor)


def _sums(trajectory: Trajectory) -> tuple[float, float]:
    """What the judge gave a trajectory, and everything else did."""
    of_judge = others = 0.0
    for turn in trajectory.turns:
        for value in (turn.rewards.judge_observation, turn.rewards.judge_prediction):
            of_judge += value or 0.0
        others += turn.rewards.env + turn.rewards.format
    return of_judge, others
