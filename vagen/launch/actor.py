"""A run's resident actor: one detached process of the Ray cluster that holds the run's engine.

It outlives the jobs that ask it. If a job dies, its stage is finished all the same, and the next
job finds it committed. The actor performs one stage at a time, so two attempts never overlap.
"""

import os
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from vagen import progress
from vagen.engines.verl.errors import ProcessDied
from vagen.launch.protocol import Kind, Verdict
from vagen.launch.telemetry import Telemetry
from vagen.run.run import Run
from vagen.storage import StoreAway

NAMESPACE = "vagen"


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

    def perform(self, stage: str, arguments: dict[str, Any]) -> Verdict:
        """Performs a stage; every failure is an answer too."""
        # Loads torch, which only this process needs, and not the job that asks it.
        from vagen.launch.here import perform

        try:
            return {"result": perform(self._opened(), stage, **arguments)}
        except Exception as error:
            kind = kind_of(error)
            if kind != "user":
                traceback.print_exc()
            return {"kind": kind, "message": str(error) or type(error).__name__}

    def _opened(self) -> Run:
        if self._run is None:
            run = Run.open(self._uri)
            self._held.enter_context(run.at_work())
            progress.observe(Telemetry(run.name))
            self._run = run
        return self._run


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


def kind_of(error: BaseException) -> Kind:
    """Whose fault an error is: of a stage's own error, its cause decides."""
    if isinstance(error, ValueError) and not isinstance(error, StoreAway):
        return "user"
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    lost = any(
        isinstance(one, ProcessDied | StoreAway)
        or (isinstance(one, RayError) and not isinstance(one, RayTaskError))
        for one in causes
    )
    return "infrastructure" if lost else "internal"
