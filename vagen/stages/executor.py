"""How a stage is executed, in a session or in the process of a single step."""

import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen.stages import progress
from vagen.stages.session import StageError, executor_name
from vagen.storage import StorageError, directory_digest, read_manifest

if TYPE_CHECKING:
    from vagen.stages.run import Run

Execute = Callable[..., dict[str, Any]]
"""`execute(stage, **kwargs)` on an open run."""

_LOCK_TIMEOUT = 10.0


class OpenRun:
    """A run with its engine; called as `Execute`."""

    def __init__(self, run: "Run") -> None:
        from vagen import stages

        # Looked up now: this loads torch while the pipeline is still being put together.
        self._execute = functools.partial(stages.execute, run)
        self._run = run

    def __call__(self, stage: str, **kwargs: Any) -> dict[str, Any]:
        """Executes a stage."""
        return self._execute(stage, **kwargs)

    def locate(self, uri: str) -> Path:
        """The folder that a URI of the run stands for, with its manifest."""
        from vagen.stages.dispatch import begin

        if self._run.mirror is None:
            return Path(uri)
        begin(self._run)
        return self._run.mirror.folder_of(uri)

    def settle(self) -> None:
        """After a stage, when its end has been reported: puts that into the store too."""
        if self._run.mirror is not None:
            self._run.mirror.push_files()

    def close(self) -> None:
        """Lets the engine go."""
        if self._run.engine is not None:
            self._run.engine.close()
            self._run.engine = None


def open_run(run_dir: Path) -> OpenRun:
    """Opens a run and what its stages need; progress is reported under the run's name.

    The process becomes the run's newest attempt: what older ones still commit is refused.
    """
    from vagen.stages.run import Run
    from vagen.storage import claim

    run = Run.open(run_dir)
    claim(run.path)
    progress.describe(
        run.experiment.name,
        run.experiment.trainer.total_training_steps,
        done=len(run.iteration_metrics()),
    )
    return OpenRun(run)


def load(executor: str) -> Callable[[Path], Execute]:
    """The function that `module:function` names."""
    module, _, name = executor.partition(":")
    return getattr(importlib.import_module(module), name)


def execute_here(
    run_dir: str, stage: str, *, source: dict[str, str], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Executes one stage in this process, alone on the run."""
    folder = Path(run_dir)
    if not folder.is_dir():
        raise StageError(f"no run at {folder}: the folder does not exist")
    with locked(folder):
        progress.configure(folder)
        try:
            return perform(load(executor_name())(folder), stage, source=source, kwargs=kwargs)
        finally:
            progress.close()


def perform(
    execute: Execute, stage: str, *, source: dict[str, str], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Executes a stage with its progress reported, after a check of what it continues from."""
    settle = getattr(execute, "settle", lambda: None)
    about = {"iteration": kwargs.get("iteration"), "label": str(kwargs.get("name", ""))}
    try:
        with progress.step(stage, **about) as record:
            check_source(**source, locate=getattr(execute, "locate", Path))
            result = execute(stage, **kwargs)
            record.metrics = dict(result.get("metrics") or {})
    except Exception:
        with suppress(StorageError):  # what went wrong first is what the user needs
            settle()
        raise
    settle()
    return result


def check_source(uri: str, sha256: str, locate: Callable[[str], Path] = Path) -> None:
    """Refuses an artifact that is not the one the step before handed on.

    Args:
        uri: Of the artifact; empty skips the check.
        sha256: Its digest, as handed on.
        locate: Gives the folder of a URI.

    Raises:
        StageError: If the folder's digest is another.
        StorageError: If the folder is missing or its manifest is damaged.
    """
    if not uri:
        return
    found = directory_digest(read_manifest(locate(uri)))
    if found != sha256:
        raise StageError(
            f"{uri} is not what the step before wrote: its digest is {found}, {sha256} was handed "
            "on; run the step before again"
        )


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Holds the run for this process; the system lets go of it if the process dies.

    Raises:
        StageError: Another process works on the run.
    """
    import fcntl

    folder = os.open(run_dir, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # One that was killed a moment ago may not be gone yet.
                if time.monotonic() > deadline:
                    raise StageError(
                        f"{run_dir} is in use by another process: wait for it, or stop it"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(folder)
