"""Executes a step: reuses a committed result, or runs, reports and uploads it."""

import errno
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.config.base import ConfigError
from vagen.rollout.batch import TrajectoryBatch
from vagen.run import layout
from vagen.run.folder import step_timings
from vagen.run.run import Run
from vagen.stages import interrupts
from vagen.stages.finalize import CANCELLED, finalize
from vagen.stages.tracking import log_iteration
from vagen.storage import StorageError, Superseded, storage_errors

Stage = Callable[..., dict[str, Any]]
"""`stage(run, **arguments)` commits one folder of the run; returns `uri`, `sha256`, `metrics`."""

COMPUTING = ("rollout", "advantage", "update")
"""Steps of an iteration in which the engine computes."""
RERUNNABLE = steps.ITERATION[1:]


class StageError(ValueError):
    """A stage cannot continue, for a reason that the user can fix."""


class StageFailed(RuntimeError):
    """A stage failed; the message has the error, the cause the traceback."""


def stage_named(name: str) -> Stage:
    """The function of a step.

    Its module is imported on use: a process that runs one step does not need the others, and most
    import torch.

    Args:
        name: One of `vagen.steps.STEPS`.
    """
    return getattr(import_module(f"vagen.stages.{name}"), name)


def execute(run: Run, stage: Stage, **arguments: Any) -> dict[str, Any]:
    """Executes one stage of a run, or returns its committed result.

    Uploads the stage's commits if the run has a store.

    Args:
        run: The run.
        stage: See `stage_named`.
        arguments: Arguments of the stage: `iteration`, or `name` and `split`.

    Returns:
        `uri` (in the store, if there is one), `sha256` and `metrics`.

    Raises:
        ValueError: An error that the user can fix.
        StageFailed: The stage failed.
    """
    name = stage.__name__
    about = {"iteration": arguments.get("iteration"), "label": arguments.get("name", "")}
    try:
        _take_over(run, stage)
        if stage is not finalize:
            with _explained(run, "checkpoint", {}):
                run.await_checkpoint(wait=False)
    except StorageError as error:
        if stage is finalize and not isinstance(error, Superseded):
            finalize(run, **arguments)  # to close tracking
        raise
    if (done := run.finished(name, **arguments)) is not None:
        return done
    try:
        with progress.step(name, **about) as record, _explained(run, name, arguments):
            with _profiled(run, name, about["iteration"]):
                produced = stage(run, **arguments)
            record.metrics = dict(produced["metrics"])
            if run.engine is not None:
                record.performance |= run.engine.performance.take()
            if record.performance and record.iteration is not None:
                log_iteration(run, record.iteration, record.performance)
            _put_into_store(run, stage, Path(produced["uri"]))
        if name == "update":
            number = arguments["iteration"]
            log_iteration(run, number, step_timings(run.path, number))
    finally:
        if run.mirror is not None:
            with suppress(StorageError):  # the first error is raised
                run.mirror.push_files()
    return run.located(produced)


@contextmanager
def closing(run: Run) -> Iterator[None]:
    """Finalizes the run at the end of the block, also after an error or an interrupt."""
    try:
        yield
    except BaseException as error:
        stopped = not isinstance(error, Exception)
        if stopped:
            progress.silence()
        try:
            execute(run, finalize, state=CANCELLED if stopped else "FAILED", message=str(error))
        except StorageError as problem:
            progress.note(str(problem))
        except Exception:
            traceback.print_exc()  # the first error is raised
        raise
    execute(run, finalize)


def rerun_stage(stage: str, run_dir: Path, batch_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Repeats one stage from a stored batch, outside its run.

    Args:
        stage: `judge`, `advantage` or `update`.
        run_dir: The run whose configuration and policy are used.
        batch_dir: Input of the stage.
        out_dir: New folder for its result.

    Raises:
        ConfigError: The stage does not use a stored batch.
    """
    if stage not in RERUNNABLE:
        raise ConfigError(
            f"stage {stage!r} does not start from a stored batch: use {', '.join(RERUNNABLE)}"
        )
    run = Run.open(run_dir)
    run.fetch(Path(batch_dir).absolute())
    iteration = TrajectoryBatch.load(batch_dir).iteration
    return stage_named(stage)(run, iteration, source=Path(batch_dir), out=Path(out_dir))


def _profiled(run: Run, name: str, iteration: int | None) -> AbstractContextManager[None]:
    """Records a trace of the step in the iteration `infra.profile_iteration`."""
    wanted = iteration is not None and iteration == run.infra.profile_iteration
    if run.engine is None or not wanted or name not in COMPUTING:
        return nullcontext()
    return run.engine.profiled(run.path / layout.PROFILES / f"{iteration:04d}-{name}.json.gz")


def _take_over(run: Run, stage: Stage) -> None:
    """Makes this process the newest attempt at a run in a store, with the store's results."""
    if run.mirror is None:
        return
    if stage.__name__ == "measure":
        run.mirror.pull()
        return
    if not run.mirror.is_current:
        with suppress(Exception):  # another attempt owns the pending commits
            run.await_checkpoint()
    if run.mirror.begin():
        run.next_rollout = None
        if run.engine is not None:
            # The other attempt may have trained different weights of this name.
            run.engine.version = None


def _put_into_store(run: Run, stage: Stage, folder: Path) -> None:
    if run.mirror is None:
        return
    if stage.__name__ == "measure":
        run.mirror.push_evaluation(folder)
    else:
        run.mirror.push()


@contextmanager
def _explained(run: Run, stage: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Adds the failed stage to an error, and advice for users."""
    iteration = arguments.get("iteration")
    what = stage if iteration is None else f"{stage} of iterations/{iteration:04d}"
    try:
        try:
            with storage_errors(run.path):
                yield
        finally:
            if stage != finalize.__name__:
                interrupts.check()
    except ValueError:
        raise
    except Exception as error:
        if os.strerror(errno.ENOSPC) in str(error):
            # Libraries with native writers (safetensors, Arrow) report it only in the message.
            raise StageError(
                f"{what} failed: the disk of {run.path} is full; free some space, then "
                "`vagen resume`: what was finished before is intact"
            ) from error
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise StageFailed(f"{what} failed: {text}") from error
