"""A run's resident actor: one detached process of the Ray cluster that holds the run's engine.

It outlives the jobs that ask it. If a job dies, its stage is finished all the same, and the next
job finds it committed. The actor performs one stage at a time, so two attempts never overlap.
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
"""Bytes of its output that are copied at once."""


class ResidentActor:
    """The actor's code: the run is opened for the first stage, and held until the process ends."""

    def __init__(self, run: str) -> None:
        self._uri = run
        self._run: Run | None = None
        self._held = ExitStack()

    def output(self) -> tuple[str, str, int]:
        """Where this process prints: id of its node, file there, and its size now in bytes."""
        path = os.readlink("/proc/self/fd/2")
        return ray.get_runtime_context().get_node_id(), path, Path(path).stat().st_size

    def read(self, path: str, position: int) -> bytes:
        """As `read_lines`, of what this process prints."""
        return read_lines(path, position)

    def perform(self, stage: str, arguments: dict[str, Any]) -> StepOutcome:
        """Performs a stage; every failure is an answer too."""
        # Loads torch, which only this process needs, and not the job that asks it.
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
            # As with torch: the job that asks loads neither environments nor their libraries.
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
    """The resident actor of a run; started if there is none.

    Args:
        run: URI of the run; the actor's name.
        environment: Variables of its process and of those that it starts.
    """
    return (
        ray.remote(ResidentActor)
        .options(
            name=run,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=1,
            # Restarted by Ray, it would begin anew with nobody knowing; the next job does that.
            max_restarts=0,
            runtime_env={"env_vars": environment},
        )
        .remote(run)
    )


def kind_of(error: BaseException) -> FailureKind:
    """Whose fault an error is: of a stage's own error, its cause decides."""
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
