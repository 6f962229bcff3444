"""The pipeline on one machine, without Docker or a cluster: `vagen run --pipeline`.

`kfp.local` drives the definition that Kubeflow gets. Each step is a process of its own that loads
what it needs from what is committed, so this is slower than `vagen.train` and does the same: it
shows on a laptop what a cluster will do.
"""

import contextlib
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from kfp import local

from pipelines.definition import training_pipeline
from pipelines.schedule import stretches
from vagen.run.run import Run


class PipelineFailed(RuntimeError):
    """A step of the pipeline failed; what it said stands above, in kfp's own output."""


def run_pipeline(run: Run) -> None:
    """Runs the pipeline of a training; what is committed in the run is not done again.

    Raises:
        PipelineFailed: A step failed.
    """
    root = run.path / "pipeline"
    with _scratch(root) as scratch, warnings.catch_warnings():
        # Said for every task: an image without "python" in its name, a name only a cluster shows.
        warnings.filterwarnings("ignore", "You may be attemping", RuntimeWarning)
        warnings.filterwarnings("ignore", "Task .* have no effect in the current local runner")
        local.init(
            local.SubprocessRunner(use_venv=False),
            pipeline_root=str(root),
            workspace_root=str(scratch),
        )
        items = stretches(run.experiment, run.infra)
        try:
            training_pipeline(run.infra)(run=str(run.path), stretches=items)
        except RuntimeError as error:
            raise PipelineFailed(str(error)) from error


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
