"""A run's resident actor: a detached process in the Ray cluster that holds the run's engine.

It outlives the jobs that call it. If a job dies, its stage is still finished, and the next job
finds it committed. The actor runs one stage at a time, so two attempts never overlap.
"""

import os
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.metrics import Gauge

from vagen import progress
from vagen.engines.verl.errors import ProcessDied
from vagen.launch.protocol import FailureKind, StepOutcome
from vagen.metrics import TOKENS
from vagen.storage import StoreAway

NAMESPACE = "vagen"
CHUNK = 1 << 20
"""Maximum bytes of output per copy."""


class ResidentActor:
    """The actor: opens the run for the first stage, and keeps it until the process ends."""

    def __init__(self, run: str) -> None:
        self._uri = run
        self._run: Any = None
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
        # Imports environments, torch and their libraries, which the calling job does not need.
        from vagen.launch.step import perform
        from vagen.run.run import Run

        try:
            if self._run is None:
                run = Run.open(self._uri)
                self._held.enter_context(run.session())
                progress.observe(Telemetry(run.name))
                self._run = run
            return {"result": perform(self._run, stage, **arguments)}
        except Exception as error:
            kind = kind_of(error)
            if kind not in ("user", "store"):
                traceback.print_exc()
            return {"kind": kind, "message": str(error) or type(error).__name__}


class Telemetry:
    """Prometheus metrics of a run, besides Ray's own: `progress.observe(Telemetry("lake-1"))`.

    Ray exports them at the port `metrics` of the actor's node, named `ray_vagen_...`.
    """

    def __init__(self, run: str) -> None:
        self._run = {"run": run}
        self._seconds = Gauge("vagen_step_seconds", "Duration of the latest step.", ("run", "step"))
        self._speed = Gauge(
            "vagen_tokens_per_second", "Sampled tokens per second, latest rollout.", ("run",)
        )
        self._engine = {
            name: Gauge(f"vagen_engine_{name}", text, ("run", "call"))
            for name, text in (
                ("tokens_per_second", "Tokens per second of the networks, latest step."),
                ("mfu", "Model FLOPs utilisation, latest step."),
                ("max_memory_allocated", "Peak GiB of tensors on a GPU, latest step."),
                ("max_memory_reserved", "Peak GiB that torch reserved on a GPU, latest step."),
            )
        }
        self._judge = {
            name: Gauge(f"vagen_judge_{name}", text, ("run",))
            for name, text in (
                ("seconds_per_request", "Latency of the judge's language models, latest batch."),
                ("decided_by_cache", "Share of verdicts from the cache, latest batch."),
                ("absent_share", "Share of missing verdicts, latest batch."),
                ("kappa", "Agreement with the second judge, latest batch."),
            )
        }
        self._iteration = Gauge("vagen_iteration", "Current iteration.", ("run",))

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Handles an event of `vagen.progress`."""
        if event == "stage_started" and fields["iteration"] is not None:
            self._iteration.set(fields["iteration"], self._run)
        if event != "stage_finished":
            return
        seconds = fields["seconds"]
        self._seconds.set(seconds, {**self._run, "step": fields["stage"]})
        if TOKENS in fields["metrics"] and seconds:
            self._speed.set(fields["metrics"][TOKENS] / seconds, self._run)
        if fields["stage"] == "judge":
            metrics = {**fields["metrics"], **fields.get("performance", {})}
            for name, gauge in self._judge.items():
                for key in (f"judge/{name}", f"perf/judge/{name}"):
                    if key in metrics:
                        gauge.set(metrics[key], self._run)
            return
        for name, value in fields.get("performance", {}).items():
            _, call, measure = name.split("/")
            self._engine[measure].set(value, {**self._run, "call": call})


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
