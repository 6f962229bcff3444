"""Judge: scores what the agent says it sees and predicts, turn by turn."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vagen.config.schema import ExperimentConfig
from vagen.envs import make, parse_env_config
from vagen.judge import Judge, make_judge
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Status, Trajectory, Turn
from vagen.stages import progress
from vagen.stages.run import Run, committed, result


def judge(
    run: Run, iteration: int, source: Path | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Scores a rollout batch and commits it with verdicts and judge rewards."""
    source = source or run.step(iteration, "rollout")
    folder = out or run.step(iteration, "judge")
    if committed(folder) is None:
        batch = TrajectoryBatch.load(source, kind="rollout", config_digest=run.config_digest)
        metrics = score(run.experiment, batch.trajectories)
        replace(batch, kind="judge", metrics=metrics).save(folder, previous=source)
    return result(folder)


def score(config: ExperimentConfig, trajectories: list[Trajectory]) -> dict[str, float]:
    """Sets `verdict` and judge rewards of every turn in place; returns metrics.

    Only turns that earned the format reward are judged. A missing score stays missing: the reward
    part is None, and it is counted.
    """
    if not config.judge.use_state_reward:
        return {}
    return asyncio.run(_score(config, trajectories))


async def _score(config: ExperimentConfig, trajectories: list[Trajectory]) -> dict[str, float]:
    judges = {config_id: _judge_for(config, config_id) for config_id in config.envs}
    turns = [
        (judges[trajectory.config_id], trajectory, turn)
        for trajectory in trajectories
        if trajectory.status is not Status.ENV_ERROR
        for turn in trajectory.turns
        if turn.parsed["format_correct"]
    ]
    with progress.bar("statements", len(turns)) as advance:
        for place, (member, trajectory, turn) in enumerate(turns):
            await _score_turn(config, member, trajectory.env_name, turn)
            if place % 64 == 63:
                advance(64)
    return _metrics([turn for _, _, turn in turns], trajectories)


async def _score_turn(config: ExperimentConfig, judge: Judge, env_name: str, turn: Turn) -> None:
    verdict = await judge.score(
        env_name=env_name,
        observation=turn.parsed["observation"],
        prediction=turn.parsed["prediction"],
        state=turn.state,
        next_state=turn.next_state,
    )
    turn.verdict = {
        "observation": verdict.observation,
        "prediction": verdict.prediction,
        "flags": list(verdict.flags),
    }
    weights = {
        "observation": config.judge.observation_weight,
        "prediction": config.judge.prediction_weight,
    }
    for part, weight in weights.items():
        value = getattr(verdict, part)
        turn.rewards[f"judge_{part}"] = None if value is None else weight * value


def _judge_for(config: ExperimentConfig, config_id: str) -> Judge:
    spec = config.envs[config_id]
    env_config = parse_env_config(spec.env_name, spec.env_config)
    env = make(spec.env_name, spec.env_config)
    prompts = {spec.env_name: env.system_prompt()}
    env.close()
    return make_judge(
        config.judge,
        require_holes=getattr(env_config, "describes_holes", False),
        prompts=prompts if env_config.prompt_detail == "full" else None,
    )


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
