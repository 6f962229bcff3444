"""Reads and commits the batch of an iteration's step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vagen.rollout.batch import TrajectoryBatch
from vagen.run.folder import result
from vagen.run.run import Run
from vagen.steps import step_before


def read_batch(
    run: Run, step: str, iteration: int, source: Path | None = None
) -> tuple[TrajectoryBatch, Path]:
    """The batch that a step of an iteration starts from, and its folder.

    Args:
        run: The run.
        step: One of `vagen.steps.ITERATION`, but not the first.
        iteration: Index of the iteration.
        source: Folder of another batch, instead of the one of the step before.

    Raises:
        StorageError, BatchError: There is no such batch, or it is of another step or configuration.
    """
    before = step_before(step)
    folder = source or run.step(iteration, before)
    digest = run.config_digest
    return TrajectoryBatch.load(run.fetch(folder), kind=before, config_digest=digest), folder


def commit_batch(
    run: Run,
    step: str,
    batch: TrajectoryBatch,
    metrics: dict[str, float],
    source: Path,
    out: Path | None = None,
) -> dict[str, Any]:
    """Commits a step's batch, by default in the step's folder; returns the step's result."""
    folder = out or run.step(batch.iteration, step)
    replace(batch, kind=step, metrics=metrics).save(folder, previous=source)
    return result(folder)
