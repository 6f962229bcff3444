"""Rollout: the policy plays one batch of episodes."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vagen.models.processor import Processor
from vagen.rollout.batch import BatchError, TrajectoryBatch
from vagen.rollout.types import Status, Trajectory
from vagen.stages import progress
from vagen.stages.build import load_levels
from vagen.stages.episodes import play, training_specs
from vagen.stages.resident import engine_at, version_before
from vagen.stages.run import Run, committed, result


def rollout(run: Run, iteration: int, out: Path | None = None) -> dict[str, Any]:
    """Plays the iteration's episodes with the policy before it and commits the batch."""
    folder = out or run.step(iteration, "rollout")
    if committed(folder) is None:
        engine = engine_at(run, version_before(iteration))
        config = run.experiment
        specs = training_specs(config, load_levels(run), iteration)
        with progress.bar("episodes", len(specs)) as advance:
            wins = _Wins()
            trajectories, images = play(
                config,
                specs,
                policy=engine.policy(slots=config.actor_rollout_ref.rollout.max_concurrency),
                processor=engine.processor,
                sampling=config.actor_rollout_ref.rollout,
                split="train",
                on_finish=lambda trajectory: advance(1, success=wins.add(trajectory)),
            )
        check_images(trajectories, engine.processor, folder)
        batch = TrajectoryBatch(
            trajectories=trajectories,
            images=images,
            policy_version=engine.version,
            config_digest=run.config_digest,
            kind="rollout",
            iteration=iteration,
            metrics=episode_metrics(trajectories, "train"),
        )
        batch.save(folder)
    return result(folder)


def episode_metrics(trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Means over episodes and turns; per environment too where there are several.

    Episodes that an environment's failure ended are counted and left out of every mean.
    """
    metrics = _metrics_of(trajectories)
    by_config: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_config[trajectory.config_id].append(trajectory)
    out = {f"{prefix}/{name}": value for name, value in metrics.items()}
    if len(by_config) > 1:
        for config_id, part in sorted(by_config.items()):
            values = _metrics_of(part)
            out |= {f"{prefix}/{name}/{config_id}": value for name, value in values.items()}
    return out


def check_images(trajectories: Sequence[Trajectory], processor: Processor, folder: Path) -> None:
    """Image tokens must equal what the frames have; the offender is named.

    Raises:
        BatchError: They differ.
    """
    if not processor.has_vision:
        return
    for trajectory in trajectories:
        for row in trajectory.rows:
            blocks = int((row.input_ids == processor.image_token_id).sum())
            opened = _blocks(row.input_ids, processor.image_token_id)
            if opened != len(row.images):
                raise BatchError(
                    f"{folder}: trajectory {trajectory.trajectory_id} shows {len(row.images)} "
                    f"frames in {opened} image blocks ({blocks} image tokens)"
                )


class _Wins:
    """Share of successes so far."""

    def __init__(self) -> None:
        self.count = self.won = 0

    def add(self, trajectory: Trajectory) -> float:
        self.count += 1
        self.won += trajectory.success
        return self.won / self.count


def _blocks(ids: np.ndarray, image_token_id: int | None) -> int:
    """Number of runs of image tokens."""
    is_image = ids == image_token_id
    return int(is_image[0]) + int((is_image[1:] & ~is_image[:-1]).sum())


def _metrics_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    valid = [t for t in trajectories if t.status is not Status.ENV_ERROR]
    failed = len(trajectories) - len(valid)
    if not valid:
        return {"env_error": float(failed)}
    turns = [turn for trajectory in valid for turn in trajectory.turns]
    sampled = [int(row.loss_mask.sum()) for t in valid for row in t.rows]

    def share(values: Sequence[bool]) -> float:
        return float(np.mean(values)) if values else 0.0

    return {
        "success": share([t.success for t in valid]),
        "score": float(np.mean([t.score for t in valid])),
        "turns": float(np.mean([len(t.turns) for t in valid])),
        "format_correct": share([bool(t.parsed["format_correct"]) for t in turns]),
        "action_is_valid": share([t.metrics["action_is_valid"] for t in turns]),
        "action_is_effective": share([t.metrics["action_is_effective"] for t in turns]),
        "response_length": float(np.sum(sampled) / max(len(turns), 1)),
        "length_cut": share([t.length_cut for t in turns]),
        "truncated": share([t.truncated for t in valid]),
        "truncated_tokens": share([t.status is Status.TRUNCATED_TOKENS for t in valid]),
        "env_error": float(failed),
    }
