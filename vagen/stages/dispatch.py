"""Stages by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vagen.config.base import ConfigError
from vagen.rollout.batch import TrajectoryBatch
from vagen.stages.advantage import advantage
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate, evaluate_model, iteration_of, measure
from vagen.stages.finalize import finalize
from vagen.stages.judge import judge
from vagen.stages.register import register
from vagen.stages.rollout import rollout
from vagen.stages.run import Run, result, stopped_at
from vagen.stages.session import ITERATION_STAGES
from vagen.stages.update import update
from vagen.stages.warm_start import warm_start

STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "build": build,
    "warm_start": warm_start,
    "rollout": rollout,
    "judge": judge,
    "advantage": advantage,
    "update": update,
    "evaluate": evaluate,
    "measure": measure,
    "register": register,
    "finalize": finalize,
}
RERUNNABLE = {"judge": judge, "advantage": advantage, "update": update}

__all__ = ["STAGES", "evaluate_model", "execute", "rerun_stage"]


def execute(run: Run, stage: str, **kwargs: Any) -> dict[str, Any]:
    """Runs one stage of a run; returns `uri`, `sha256`, `metrics`.

    A pipeline has all its iterations from the start. Those after the one that ended the training
    early pass on what that one's update left.

    Raises:
        ConfigError: No stage has this name.
    """
    if stage not in STAGES:
        raise ConfigError(f"no stage is named {stage!r}: there are {', '.join(STAGES)}")
    if (over := _passed_on(run, stage, kwargs)) is not None:
        return over
    return STAGES[stage](run, **kwargs)


def _passed_on(run: Run, stage: str, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The last update's result for a stage of an iteration that is not to be; else None."""
    iteration = None
    if stage in ITERATION_STAGES:
        iteration = kwargs["iteration"]
    elif stage == "evaluate":
        iteration = iteration_of(kwargs["name"])
    stop = stopped_at(run.path) if iteration is not None else None
    if iteration is None or stop is None or iteration <= stop.iteration:
        return None
    return {**result(run.step(stop.iteration, "update")), "metrics": {}}


def rerun_stage(stage: str, run_dir: Path, batch_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Runs one stage again from a stored batch, apart from the run that made it.

    Args:
        stage: `judge`, `advantage` or `update`.
        run_dir: The run whose configuration and policy are used.
        batch_dir: What the step before wrote.
        out_dir: Receives the result; must not exist.

    Raises:
        ConfigError: The stage starts from no batch.
        BatchError: The batch is not what the stage reads.
    """
    if stage not in RERUNNABLE:
        raise ConfigError(
            f"stage {stage!r} does not start from a stored batch: use {', '.join(RERUNNABLE)}"
        )
    run = Run.open(run_dir)
    iteration = TrajectoryBatch.load(batch_dir).iteration
    return RERUNNABLE[stage](run, iteration, source=Path(batch_dir), out=Path(out_dir))
