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
from vagen.storage import StorageError, Superseded

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
APART = ("measure",)
"""Stages beside a training that may be going on: they write one folder, which no other does."""
RERUNNABLE = {"judge": judge, "advantage": advantage, "update": update}

__all__ = ["STAGES", "begin", "evaluate_model", "execute", "rerun_stage"]


def execute(run: Run, stage: str, **kwargs: Any) -> dict[str, Any]:
    """Runs one stage of a run; returns `uri`, `sha256`, `metrics`.

    A pipeline has all its iterations from the start. Those after the one that ended the training
    early pass on what that one's update left. Of a run in a store, the URI is one there, and what
    the stage committed has been put there.

    Raises:
        ConfigError: No stage has this name.
        StorageError: The run is in a store that cannot be used.
    """
    if stage not in STAGES:
        raise ConfigError(f"no stage is named {stage!r}: there are {', '.join(STAGES)}")
    mirror = run.mirror
    if mirror is None:
        return _execute(run, stage, kwargs)
    if stage in APART:
        mirror.pull()
        produced = _execute(run, stage, kwargs)
        mirror.push_apart(Path(produced["uri"]))
    else:
        try:
            begin(run)
        except StorageError as error:
            if stage == "finalize" and not isinstance(error, Superseded):
                _execute(run, stage, kwargs)  # tracking is closed all the same
            raise
        produced = _execute(run, stage, kwargs)
        mirror.push()
    return {**produced, "uri": mirror.uri_of(produced["uri"])}


def begin(run: Run) -> None:
    """Makes this process the newest attempt at a run in a store, with all that is there.

    Raises:
        StorageError: The store cannot be used.
    """
    if run.mirror is not None and run.mirror.begin():
        run.ahead = None
        if run.engine is not None:
            # Its weights may bear the name of what another attempt has learnt since.
            run.engine.version = "another attempt's"


def _execute(run: Run, stage: str, kwargs: dict[str, Any]) -> dict[str, Any]:
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
    run.fetch(Path(batch_dir).absolute())
    iteration = TrajectoryBatch.load(batch_dir).iteration
    return RERUNNABLE[stage](run, iteration, source=Path(batch_dir), out=Path(out_dir))
