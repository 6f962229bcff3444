"""The resident process of a run, as the one who starts it sees it.

Started with `python -m vagen.stages.session_process`; what it does then is in
`vagen.stages.server`.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagen.stages.session import (
    LOG,
    REQUIRED,
    Failure,
    SessionError,
    StageError,
    call,
    connect,
    exchange,
    executor_name,
    forget,
    identity,
    log_tail,
    read_endpoint,
)

if TYPE_CHECKING:
    from subprocess import Popen
    from types import TracebackType

_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 15.0


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
        os.environ[REQUIRED] = identity(self.run_dir)
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
        connection = connect(endpoint) if endpoint and self.alive else None
        if endpoint and connection:
            with connection:
                reply = exchange(connection, endpoint, {"op": "status"})
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
        if self.alive and wait and endpoint and (connection := connect(endpoint)):
            with connection:
                connection.settimeout(_STOP_TIMEOUT)
                exchange(connection, endpoint, {"op": "shutdown"})
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
            *(sys.executable, "-m", "vagen.stages.session_process", str(self.run_dir)),
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
