"""The pipeline on one machine: `kfp.local` drives it, the run's session does the work.

kfp starts each step as a process of its own, which asks the session (see
`vagen.stages.session`). kfp's own output goes to `pipeline.log` in the run's folder, so that the
terminal belongs to the session's progress display.
"""

import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vagen.stages import progress
from vagen.stages.session import StageError, call
from vagen.stages.session_process import Session
from vagen.storage import storage_errors

if TYPE_CHECKING:
    from vagen.stages.run import Run

LOG = "pipeline.log"
_ROOT = "pipeline"
_TAIL_LINES = 15
_TERMINATED = 128 + signal.SIGTERM


class PipelineFailed(RuntimeError):
    """A step broke or its session ended; the text says which and why."""


def execute(run: "Run") -> None:
    """Runs a training to its end, from wherever it stands.

    Whatever is committed in the run's folder is kept: training goes on at the first iteration
    without an update. The run is closed (`finalize`) however this ends.

    Raises:
        StageError: A step refused what the user gave it; its own message.
        StorageError: The run's folder cannot be written any more.
        PipelineFailed: A step broke.
    """
    closing = _Closing(run.path)
    with Session(run.path) as session:
        try:
            with _terminable(session), storage_errors(run.path), _kfp_output(run.path):
                failure = _run_pipeline(run)
            if failure is None:
                closing.state = "SUCCEEDED"
                return
            reason = session.last_failure()
        except (KeyboardInterrupt, SystemExit):
            closing.state = "CANCELLED"
            session.stop(wait=False)
            raise
        finally:
            closing.ensure()
    if reason is None:
        raise PipelineFailed(f"{failure}\n{_tail(run.path / LOG)}\n(from {run.path / LOG})")
    raise (StageError if reason.kind == "user" else PipelineFailed)(reason.message)


def first_open_iteration(run_dir: Path) -> int:
    """The first iteration whose update is not committed."""
    iteration = 0
    while (_update(run_dir, iteration) / "manifest.json").exists():
        iteration += 1
    return iteration


class _Closing:
    """Sees to it that `finalize` ran since this object was made."""

    def __init__(self, run_dir: Path) -> None:
        self.state = "FAILED"
        self._run_dir = run_dir
        self._before = self._count()

    def ensure(self) -> None:
        """Runs it if the pipeline did not get to it: in the session, or here if that is gone."""
        if self._count() > self._before:
            return
        try:
            call(str(self._run_dir), "finalize", state=self.state, message="")
        except Exception as error:
            if self.state == "SUCCEEDED":
                raise
            # What ended the pipeline is the message for the user, not what followed from it.
            with contextlib.suppress(OSError), (self._run_dir / LOG).open("a") as log:
                log.write(f"finalize failed: {error!r}\n")

    def _count(self) -> int:
        return sum(
            event["event"] == "stage_finished" and event["stage"] == "finalize"
            for event in progress.read_events(self._run_dir)
        )


def _run_pipeline(run: "Run") -> str | None:
    """Runs the pipeline; returns what kfp says if a task failed."""
    from kfp import local

    from pipelines.definition import Produced, training_pipeline
    from vagen.stages.run import stopped_at
    from vagen.storage import directory_digest, read_manifest

    total = run.experiment.trainer.total_training_steps
    start = done = min(first_open_iteration(run.path), total)
    if stopped_at(run.path):
        start = total
    source = None
    if start:
        folder = _update(run.path, done - 1)
        source = Produced(str(folder), directory_digest(read_manifest(folder)))
    pipeline = training_pipeline(
        run.infra,
        iterations=total,
        start=start,
        source=source,
        test_freq=run.experiment.trainer.test_freq,
    )
    with _scratch(run.path / _ROOT) as scratch:
        local.init(
            local.SubprocessRunner(use_venv=False),
            pipeline_root=str(run.path / _ROOT),
            workspace_root=str(scratch),
        )
        try:
            pipeline(run=str(run.path))
        except RuntimeError as error:
            return str(error)
    return None


def _update(run_dir: Path, iteration: int) -> Path:
    return run_dir / "iterations" / f"{iteration:04d}" / "update"


@contextlib.contextmanager
def _kfp_output(run_dir: Path) -> Iterator[None]:
    """Sends what kfp prints, logs and warns to the run's `pipeline.log`."""
    with (
        (run_dir / LOG).open("a", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
        warnings.catch_warnings(),
    ):
        # Said for every task: an image without "python" in its name, a name only a cluster shows.
        warnings.filterwarnings("ignore", "You may be attemping", RuntimeWarning)
        warnings.filterwarnings("ignore", "Task .* have no effect in the current local runner")
        yield


@contextlib.contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """A folder for what kfp leaves behind: a temporary folder per task, and its workspace.

    Meanwhile the interpreter's path is quoted, because kfp pastes it into a shell script.
    """
    scratch = root / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    earlier, interpreter = os.environ.get("TMPDIR"), sys.executable
    os.environ["TMPDIR"] = str(scratch)
    sys.executable = shlex.quote(interpreter)
    try:
        yield scratch
    finally:
        sys.executable = interpreter
        if earlier is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = earlier
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _terminable(session: Session) -> Iterator[None]:
    """Makes SIGTERM end the session, whose step then ends too, and unwind like an interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: object) -> None:
        session.kill()
        raise SystemExit(_TERMINATED)

    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
