"""How a step is executed: found committed, or done, reported, and put into the run's store."""

import errno
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from vagen import progress
from vagen.config.base import ConfigError
from vagen.rollout.batch import TrajectoryBatch
from vagen.run import layout
from vagen.run.history import step_timings
from vagen.run.run import Run
from vagen.stages import interrupts
from vagen.stages.finalize import CANCELLED, finalize
from vagen.stages.tracking import log_iteration
from vagen.storage import StorageError, Superseded, storage_errors

Stage = Callable[..., dict[str, Any]]
"""`stage(run, **arguments)` commits one folder of the run; returns `uri`, `sha256`, `metrics`."""

COMPUTING = ("rollout", "advantage", "update")
"""Steps of an iteration in which the engine computes."""
RERUNNABLE = ("judge", "advantage", "update")


class StageError(ValueError):
    """A stage cannot go on, and the user can put it right."""


class StageFailed(RuntimeError):
    """A stage broke; the text names the error, the cause has the traceback."""


def stage_named(name: str) -> Stage:
    """The function of a step.

    Each has a module of its own, which is loaded when it is asked for: a step that runs in a
    process of its own needs no other, and most load torch.

    Args:
        name: Of `layout.STAGES`.
    """
    return getattr(import_module(f"vagen.stages.{name}"), name)


def execute(run: Run, stage: Stage, **arguments: Any) -> dict[str, Any]:
    """Executes one stage of a run, unless its folder is committed: that is its result then.

    Of a run in a store, what the stage committed has been put there.

    Args:
        run: The run.
        stage: See `stage_named`.
        arguments: Of the stage: `iteration`, or `name` and `split`.

    Returns:
        `uri`, which is one in the store if there is one, `sha256` and `metrics`.

    Raises:
        ValueError: The user can put it right.
        StageFailed: The stage broke.
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
            finalize(run, **arguments)  # tracking is closed all the same
        raise
    if (done := run.finished(name, **arguments)) is not None:
        return done
    try:
        with progress.step(name, **about) as record, _explained(run, name, arguments):
            with _profiled(run, name, about["iteration"]):
                produced = stage(run, **arguments)
            record.metrics = dict(produced["metrics"])
            record.performance |= _performance(run)
            if record.performance and record.iteration is not None:
                log_iteration(run, record.iteration, record.performance)
            _put_into_store(run, stage, Path(produced["uri"]))
        if name == "update":
            number = arguments["iteration"]
            log_iteration(run, number, step_timings(run.path, number))
    finally:
        if run.mirror is not None:
            with suppress(StorageError):  # of what has gone wrong, the first is told
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
            traceback.print_exc()  # what ended the training is told, not what followed from it
        raise
    execute(run, finalize)


def rerun_stage(stage: str, run_dir: Path, batch_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Runs one stage again from a stored batch, apart from the run that made it.

    Args:
        stage: `judge`, `advantage` or `update`.
        run_dir: The run whose configuration and policy are used.
        batch_dir: What the stage reads.
        out_dir: Folder of its result; must not exist.

    Raises:
        ConfigError: The stage does not start from a stored batch.
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
    """Records the step if it is of the iteration that `infra.profile_iteration` names."""
    wanted = iteration is not None and iteration == run.infra.profile_iteration
    if run.engine is None or not wanted or name not in COMPUTING:
        return nullcontext()
    return run.engine.profiled(run.path / layout.PROFILES / f"{iteration:04d}-{name}.json.gz")


def _performance(run: Run) -> dict[str, float]:
    """How fast the engine was in this step."""
    return {} if run.engine is None else run.engine.performance.take()


def _take_over(run: Run, stage: Stage) -> None:
    """Makes this process the newest attempt at a run in a store, with all that is there."""
    if run.mirror is None:
        return
    if stage.__name__ == "measure":
        run.mirror.pull()
        return
    if not run.mirror.is_current:
        with suppress(Exception):  # what was to be saved is not this process's any more
            run.await_checkpoint()
    if run.mirror.begin():
        run.next_rollout = None
        if run.engine is not None:
            # Its weights may bear the name of what another attempt has learnt since.
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
    """Says which stage failed, and what a user can do about it."""
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
            # Libraries that write files by themselves (safetensors, Arrow) say it in text alone.
            raise StageError(
                f"{what} failed: the disk of {run.path} is full; free some space, then "
                "`vagen resume`: what was finished before is intact"
            ) from error
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise StageFailed(f"{what} failed: {text}") from error
