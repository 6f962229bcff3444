"""Judge: scores what the agent says it sees and predicts, turn by turn."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vagen.config.schema import ExperimentConfig
from vagen.judge.scoring import Scorer, statements
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Trajectory, Turn
from vagen.stages import progress
from vagen.stages.run import Run, committed, result


def judge(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Scores a rollout batch and commits it with verdicts and judge rewards."""
    source = source or run.step(iteration, "rollout")
    folder = out or run.step(iteration, "judge")
    if committed(folder) is None:
        batch = TrajectoryBatch.load(
            run.fetch(source), kind="rollout", config_digest=run.config_digest
        )
        metrics = score(run.experiment, batch.trajectories)
        replace(batch, kind="judge", metrics=metrics).save(folder, previous=source)
    return result(folder)


def score(config: ExperimentConfig, trajectories: list[Trajectory]) -> dict[str, float]:
    """Sets `verdict` and judge rewards of every turn in place; returns metrics.

    Only turns that earned the format reward are judged, and each only once: an engine may have
    judged an episode while others were still played. A missing score stays missing: the reward part
    is None, and it is counted.
    """
    if not config.judge.use_state_reward:
        return {}
    return asyncio.run(_score(config, trajectories))


async def _score(config: ExperimentConfig, trajectories: list[Trajectory]) -> dict[str, float]:
    scorer = Scorer(config)
    turns = [(t, turn) for t in trajectories for turn in statements(t)]
    with progress.bar("statements", len(turns)) as advance:
        for place, (trajectory, turn) in enumerate(turns):
            await scorer.score_turn(trajectory, turn)
            if place % 64 == 63:
                advance(64)
    return _metrics([turn for _, turn in turns], trajectories)


def _metrics(judged: list[Turn], trajectories: list[Trajectory]) -> dict[str, float]:
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    metrics = {"judge/judged_share": len(judged) / max(turns, 1)}
    for part in ("observation", "prediction"):
        verdicts = [turn.verdict[part] for turn in judged if turn.verdict is not None]
        scores = [value for value in verdicts if value is not None]
        metrics[f"judge/{part}_missing"] = float(len(verdicts) - len(scores))
        if scores:
            metrics[f"judge/{part}"] = float(np.mean(scores))
    flags = [flag for turn in judged if turn.verdict for flag in turn.verdict["flags"]]
    metrics["judge/flagged"] = len(flags) / max(len(judged), 1)
    return metrics
