"""A run's resident session, and how a pipeline step reaches it.

A pipeline step is a process of its own. What it needs — torch, the model, optimizer state — takes
seconds to load and would be loaded for every step anew. So a run has one resident process, the
session, that keeps them and executes stages on request over a Unix socket; a step is a thin client.
Without a session (one step on a cluster, one step run again) the stage is executed in the calling
process: the same function, the same result.

The protocol is one JSON line there and one back. `session.json` in the run's folder, readable by
its owner only, names the socket and a random token that every request carries. This module imports
nothing heavy: it is loaded by every step.
"""

import json
import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.stages.routing import ray_address, ray_jobs

ENDPOINT = "session.json"
LOG = "session.log"
REQUIRED = "VAGEN_SESSION"
"""Environment variable: the run whose session has to be used, so that a step that outlives it
cannot start working on its own beside the next attempt."""
EXECUTOR = "VAGEN_EXECUTOR"
"""Environment variable: another `module:function` to open a run with, see `executor_name`."""

ITERATION_STAGES = ("rollout", "judge", "advantage", "update")
"""Stages of one iteration, in order."""

_TAIL_LINES = 15


class SessionError(RuntimeError):
    """The session could not be started, or ended while a stage was running."""


class StageError(ValueError):
    """A stage refused what the user gave it; the text is the stage's own message."""


class StageFailed(RuntimeError):
    """A stage broke; the text names the error, the run's log has the traceback."""


@dataclass(frozen=True)
class Endpoint:
    """Where a session listens."""

    socket: str
    token: str
    pid: int


@dataclass(frozen=True)
class Failure:
    """Why a stage did not finish."""

    kind: str
    """`user`, what the user gave was refused; `internal`, something broke."""
    message: str


def call(
    run_dir: str, stage: str, *, source_uri: str = "", source_sha256: str = "", **kwargs: Any
) -> dict[str, Any]:
    """Executes one stage of a run, in its session if there is one.

    Args:
        run_dir: The run's folder, or its URI in a store: then it is taken up in a folder here.
        stage: Name of the stage.
        source_uri: Folder of the artifact the stage continues from; empty skips the check.
        source_sha256: Digest that the artifact must have.
        kwargs: Arguments of the stage, JSON-able.

    Returns:
        What the stage returned: `uri`, `sha256`, `metrics`.

    Raises:
        StageError: The stage refused its input (raised by a session).
        StageFailed: The stage broke (raised by a session).
        SessionError: The session ended before it answered.
    """
    run, run_dir = run_dir, _folder_of(run_dir)
    source = {"uri": source_uri, "sha256": source_sha256}
    if (infra := ray_jobs(run, run_dir, stage)) is not None:
        from vagen.stages.launcher import ask

        handed_on = {"source_uri": source_uri, "source_sha256": source_sha256} if source_uri else {}
        return ask(run, infra, stage, kwargs | handed_on)
    request = {"op": "execute", "stage": stage, "source": source, "kwargs": kwargs}
    if (address := ray_address(run, run_dir)) is not None:
        from vagen.stages.cluster_session import ask

        return _result(ask(run_dir, address, request))
    required = os.environ.get(REQUIRED) == identity(run_dir)
    endpoint = read_endpoint(run_dir)
    connection = connect(endpoint) if endpoint else None
    if endpoint and connection:
        with connection:
            reply = exchange(connection, endpoint, request)
        if reply is None:
            raise SessionError(_death_message(run_dir, stage, kwargs.get("iteration")))
        return _result(reply)
    if required and stage != "finalize":
        raise SessionError(_death_message(run_dir, stage, kwargs.get("iteration")))
    from vagen.stages.executor import execute_here

    return execute_here(run_dir, stage, source=source, kwargs=kwargs)


def iterate(run_dir: str, start: int, stop: int) -> dict[str, Any]:
    """Executes all stages of the iterations `start` to `stop - 1`; returns the last result."""
    if (infra := ray_jobs(run_dir, _folder_of(run_dir), "train")) is not None:
        from vagen.stages.launcher import ask

        return ask(run_dir, infra, "train", {"start": start, "stop": stop})
    result: dict[str, Any] = {}
    for iteration in range(start, stop):
        for stage in ITERATION_STAGES:
            result = call(run_dir, stage, iteration=iteration)
    return result


def finite(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers: the only ones a pipeline backend stores."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def executor_name() -> str:
    """`module:function` that opens a run: `function(run_dir)` gives `execute(stage, **kwargs)`."""
    return os.environ.get(EXECUTOR, "vagen.stages.executor:open_run")


def read_endpoint(run_dir: str | Path) -> Endpoint | None:
    """The endpoint recorded in a run's folder, whether or not anyone still listens there."""
    try:
        return Endpoint(**json.loads((Path(run_dir) / ENDPOINT).read_text()))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, TypeError):
        return None


def log_tail(run_dir: str | Path) -> str:
    """The last lines of the session's log."""
    path = Path(run_dir) / LOG
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def forget(run_dir: Path | str, endpoint: Endpoint) -> None:
    """Removes the traces of a session that is gone: its socket's folder and `session.json`."""
    path = Path(endpoint.socket)
    if path.is_socket():
        path.unlink()
        path.parent.rmdir()
    (Path(run_dir) / ENDPOINT).unlink(missing_ok=True)


def _folder_of(run: str) -> str:
    """The folder of a run that is named by it, or by its URI in a store."""
    if "://" not in run:
        return run
    from vagen.stages.mirror import restore

    return str(restore(run))


def connect(endpoint: Endpoint) -> socket.socket | None:
    """A connection to a session; None if nobody listens there any more."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(endpoint.socket)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    return connection


def exchange(
    connection: socket.socket, endpoint: Endpoint, request: dict[str, Any]
) -> dict[str, Any] | None:
    """Sends a request and waits for its answer; None if the session ended instead."""
    try:
        connection.sendall(json.dumps({"token": endpoint.token, **request}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    except (ConnectionError, TimeoutError):
        return None
    return json.loads(line) if line.endswith(b"\n") else None


def _result(reply: dict[str, Any]) -> dict[str, Any]:
    if reply["ok"]:
        return reply["result"]
    raise {"user": StageError}.get(reply["kind"], StageFailed)(reply["message"])


def _death_message(run_dir: str | Path, stage: str, iteration: int | None) -> str:
    where = stage if iteration is None else f"{stage} of iteration {iteration}"
    return f"the session of {run_dir} ended during {where}; its last lines:\n{log_tail(run_dir)}"


def identity(run_dir: str | Path) -> str:
    """How `REQUIRED` names a run."""
    return str(Path(run_dir).absolute())
