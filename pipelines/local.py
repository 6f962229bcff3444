"""Runs the pipeline on one machine, without Docker or a cluster: `vagen run --pipeline`.

`kfp.local` executes the definition that Kubeflow gets. Each step is a process that loads committed
results, so this is slower than `vagen.train` but does the same: it shows on a laptop what a cluster
will do.
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
    """A step of the pipeline failed; kfp's output has the details."""


def run_pipeline(run: Run) -> None:
    """Runs the pipeline of a training, without committed steps.

    Raises:
        PipelineFailed: A step failed.
    """
    root = run.path / "pipeline"
    with _scratch(root) as scratch, warnings.catch_warnings():
        # Repeated for every task, about the image's name and a name that only clusters use.
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
    """A folder for kfp's temporary folders and workspace.

    Meanwhile the interpreter's path is quoted, because kfp inserts it into a shell script.
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
