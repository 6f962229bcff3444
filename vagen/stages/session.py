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
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import Popen
    from types import TracebackType

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
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 15.0


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
    if "://" in run_dir:
        from vagen.stages.mirror import restore

        run_dir = str(restore(run_dir))
    source = {"uri": source_uri, "sha256": source_sha256}
    request = {"op": "execute", "stage": stage, "source": source, "kwargs": kwargs}
    if (address := cluster_address(run_dir)) is not None:
        from vagen.stages.cluster_session import ask

        return _result(ask(run_dir, address, request))
    required = os.environ.get(REQUIRED) == _identity(run_dir)
    endpoint = read_endpoint(run_dir)
    connection = _connect(endpoint) if endpoint else None
    if endpoint and connection:
        with connection:
            reply = _exchange(connection, endpoint, request)
        if reply is None:
            raise SessionError(_death_message(run_dir, stage, kwargs.get("iteration")))
        return _result(reply)
    if required and stage != "finalize":
        raise SessionError(_death_message(run_dir, stage, kwargs.get("iteration")))
    from vagen.stages.executor import execute_here

    return execute_here(run_dir, stage, source=source, kwargs=kwargs)


def iterate(run_dir: str, start: int, stop: int) -> dict[str, Any]:
    """Executes all stages of the iterations `start` to `stop - 1`; returns the last result."""
    result: dict[str, Any] = {}
    for iteration in range(start, stop):
        for stage in ITERATION_STAGES:
            result = call(run_dir, stage, iteration=iteration)
    return result


def cluster_address(run_dir: str | Path) -> str | None:
    """Address of the Ray cluster that a run's session lives in; None if it lives on this machine.

    The run's `infra.verl.ray_address` names a cluster that is there already; an engine that starts
    a Ray of its own lives and ends with the process that started it.
    """
    path = Path(run_dir) / "config" / "infra.yaml"
    if not path.exists():
        return None
    import yaml

    infra = yaml.safe_load(path.read_text())
    if infra.get("engine") != "verl":
        return None
    return infra["verl"]["ray_address"]


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


class Session:
    """The resident process of a run: started on entry, ended on exit, whatever happened.

    It dies with the process (on Linux: with the thread) that started it, also if that is killed.

    Args:
        run_dir: The run's folder; has to exist.
        executor: What opens the run in the session; None is `executor_name()`.
        terminal: File descriptor that the session draws its progress on.
    """

    def __init__(
        self, run_dir: str | Path, *, executor: str | None = None, terminal: int = 2
    ) -> None:
        self.run_dir = Path(run_dir).absolute()
        self._executor = executor or executor_name()
        self._terminal = terminal
        self._process: Popen[bytes] | None = None

    def __enter__(self) -> "Session":
        self._start()
        os.environ[REQUIRED] = _identity(self.run_dir)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        os.environ.pop(REQUIRED, None)
        self.stop(wait=kind is None or issubclass(kind, Exception))

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self.alive else None

    def call(self, stage: str, **kwargs: Any) -> dict[str, Any]:
        """`vagen.stages.session.call` on this run."""
        return call(str(self.run_dir), stage, **kwargs)

    def last_failure(self) -> Failure | None:
        """The last failure of a stage, or why the session ended; None if all is well."""
        endpoint = read_endpoint(self.run_dir)
        connection = _connect(endpoint) if endpoint and self.alive else None
        if endpoint and connection:
            with connection:
                reply = _exchange(connection, endpoint, {"op": "status"})
            if reply is not None:
                failure = reply["last_failure"]
                return Failure(**failure) if failure else None
        if self._process is None:
            return None
        # A process that was just killed is not reaped yet.
        self._reap(timeout=1.0)
        return None if self.alive else Failure("internal", self._end_message())

    def stop(self, *, wait: bool = True) -> None:
        """Ends the process: politely if `wait`, so that it finishes what it is doing, else now."""
        import signal
        import subprocess

        process, endpoint = self._process, read_endpoint(self.run_dir)
        if process is None:
            return
        if self.alive and wait and endpoint and (connection := _connect(endpoint)):
            with connection:
                connection.settimeout(_STOP_TIMEOUT)
                _exchange(connection, endpoint, {"op": "shutdown"})
            self._reap(_STOP_TIMEOUT)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive:
                break
            # Its children are in its process group.
            os.killpg(process.pid, number)
            self._reap(timeout=3.0)
        if process.poll() is None:
            raise subprocess.TimeoutExpired(process.args, 3.0)
        self._process = None
        if endpoint and endpoint.pid == process.pid:
            forget(self.run_dir, endpoint)

    def kill(self) -> None:
        """Ends the process and its children at once; `stop` still has to clear up."""
        import signal

        if self._process is not None and self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _start(self) -> None:
        import subprocess

        if not self.run_dir.is_dir():
            raise StageError(f"no run at {self.run_dir}: the folder does not exist")
        try:
            log = os.open(self.run_dir / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise StageError(f"cannot write to {self.run_dir}: {error.strerror}") from error
        ready, ready_write = os.pipe()
        # The child's own descriptors 1 and 2 are its log.
        terminal = os.dup(self._terminal)
        command = [
            *(sys.executable, "-m", "vagen.stages.session", str(self.run_dir)),
            *("--executor", self._executor, "--parent", str(os.getpid())),
            *("--ready", str(ready_write), "--terminal", str(terminal)),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(ready_write, terminal),
                # Ctrl-C is for the orchestrator, which then ends the session.
                start_new_session=True,
            )
        finally:
            for descriptor in (log, ready_write, terminal):
                os.close(descriptor)
        self._await_ready(ready)

    def _await_ready(self, descriptor: int) -> None:
        import select

        with os.fdopen(descriptor, "rb") as pipe:
            readable, _, _ = select.select([pipe], [], [], _START_TIMEOUT)
            message = pipe.readline().decode().strip() if readable else None
        if message == "ready":
            return
        if message is None:
            self.stop(wait=False)
            raise SessionError(
                f"the session of {self.run_dir} did not start within {_START_TIMEOUT:.0f} s; "
                f"see {self.run_dir / LOG}"
            )
        self._reap(timeout=5.0)
        end = message or self._end_message()
        self.stop(wait=False)
        raise (StageError if message else SessionError)(end)

    def _reap(self, timeout: float) -> None:
        import subprocess

        assert self._process is not None
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def _end_message(self) -> str:
        import signal

        code = self._process.returncode if self._process else None
        how = ""
        if code is not None and code < 0:
            how = f", killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (out of memory?)"
        elif code:
            how = f" with exit code {code}"
        return (
            f"the session of {self.run_dir} ended{how}; its last lines:\n{log_tail(self.run_dir)}"
        )


def forget(run_dir: Path | str, endpoint: Endpoint) -> None:
    """Removes the traces of a session that is gone: its socket's folder and `session.json`."""
    path = Path(endpoint.socket)
    if path.is_socket():
        path.unlink()
        path.parent.rmdir()
    (Path(run_dir) / ENDPOINT).unlink(missing_ok=True)


def _connect(endpoint: Endpoint) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(endpoint.socket)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    return connection


def _exchange(
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


def _identity(run_dir: str | Path) -> str:
    return str(Path(run_dir).absolute())


def _main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="The resident session of a run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--executor", required=True, help="`module:function` that opens the run")
    parser.add_argument("--parent", type=int, required=True, help="process to die with")
    parser.add_argument("--ready", type=int, required=True, help="descriptor to say `ready` on")
    parser.add_argument("--terminal", type=int, default=2, help="descriptor to draw on")
    options = parser.parse_args()

    from vagen.stages.server import serve

    serve(
        options.run_dir,
        executor=options.executor,
        parent=options.parent,
        ready=options.ready,
        terminal=options.terminal,
    )


if __name__ == "__main__":
    _main()
