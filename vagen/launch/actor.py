"""A run's resident actor: a detached process in the Ray cluster that holds the run's engine.

It outlives the jobs that call it. If a job dies, its stage is still finished, and the next job
finds it committed. The actor runs one stage at a time, so two attempts never overlap.
"""

import os
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from vagen import progress
from vagen.engines.verl.errors import ProcessDied
from vagen.launch.protocol import FailureKind, StepOutcome
from vagen.launch.telemetry import Telemetry
from vagen.storage import StoreAway

if TYPE_CHECKING:
    from vagen.run.run import Run

NAMESPACE = "vagen"
CHUNK = 1 << 20
"""Maximum bytes of output per copy."""


class ResidentActor:
    """The actor: opens the run for the first stage, and keeps it until the process ends."""

    def __init__(self, run: str) -> None:
        self._uri = run
        self._run: Run | None = None
        self._held = ExitStack()

    def output(self) -> tuple[str, str, int]:
        """Location of this process's output: id of its node, file, and current size in bytes."""
        path = os.readlink("/proc/self/fd/2")
        return ray.get_runtime_context().get_node_id(), path, Path(path).stat().st_size

    def read(self, path: str, position: int) -> bytes:
        """`read_lines` for this process's output."""
        return read_lines(path, position)

    def perform(self, stage: str, arguments: dict[str, Any]) -> StepOutcome:
        """Runs a stage; returns failures as outcomes too."""
        # Imports torch, which the calling job does not need.
        from vagen.launch.here import perform

        try:
            return {"result": perform(self._opened(), stage, **arguments)}
        except Exception as error:
            kind = kind_of(error)
            if kind not in ("user", "store"):
                traceback.print_exc()
            return {"kind": kind, "message": str(error) or type(error).__name__}

    def _opened(self) -> "Run":
        if self._run is None:
            # Imports environments and their libraries, which the calling job does not need.
            from vagen.run.run import Run

            run = Run.open(self._uri)
            self._held.enter_context(run.session())
            progress.observe(Telemetry(run.name))
            self._run = run
        return self._run


def read_lines(path: str, position: int) -> bytes:
    """Whole lines of a file from a position on; empty if there are none yet."""
    with open(path, "rb") as file:
        file.seek(position)
        text = file.read(CHUNK)
    return text if len(text) == CHUNK else text[: text.rfind(b"\n") + 1]


def attach(run: str, environment: dict[str, str]) -> Any:
    """Gets or starts the resident actor of a run.

    Args:
        run: URI of the run, which is the actor's name.
        environment: Environment variables of its process and its children.
    """
    return (
        ray.remote(ResidentActor)
        .options(
            name=run,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=1,
            # The next job starts a new one; Ray would restart it unnoticed, without state.
            max_restarts=0,
            runtime_env={"env_vars": environment},
        )
        .remote(run)
    )


def kind_of(error: BaseException) -> FailureKind:
    """Kind of an error, which decides on retries; for an error of a stage, of its cause."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    if any(isinstance(one, StoreAway) for one in causes):
        return "store"
    if isinstance(error, ValueError):
        return "user"
    lost = any(
        isinstance(one, ProcessDied)
        or (isinstance(one, RayError) and not isinstance(one, RayTaskError))
        for one in causes
    )
    return "infrastructure" if lost else "internal"
