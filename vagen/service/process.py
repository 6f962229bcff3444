"""The parent's view of a worker process."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from vagen.service.base import EnvironmentLost, EnvironmentRaised
from vagen.service.wire import BrokenStream, WireReply, pack, receive_from

_WORKER = "vagen.service.worker"
_BUFFER = 1 << 22
_POLL_SECONDS = 0.01
_ENDING_SECONDS = 5.0
"""Seconds that a process may take to end after its stream is closed."""


class WorkerProcess:
    """A process that runs environments and executes calls in order.

    Calls made together, or while others are pending, are sent as one message.
    """

    def __init__(
        self, on_death: Callable[["WorkerProcess"], None], *, seconds: float, memory_mib: int
    ):
        """Prepares a worker; `start` spawns it.

        Args:
            on_death: Called once if it dies.
            seconds: Seconds after which a call fails; 0 for no limit.
            memory_mib: Memory limit in MiB; 0 for none.
        """
        self.faults = 0
        """Number of failed calls, without errors of the caller."""
        self._limits = [f"{seconds:g}", str(memory_mib)]
        self.environments = 0
        """Number of its environments."""
        self.has_answered = False
        """Whether it has started; the first reply waits for imports."""
        self.cause = ""
        """Why it is gone; empty while it is alive."""
        self._on_death = on_death
        self._calls = itertools.count()
        self._environments = itertools.count()
        self._pending: dict[int, asyncio.Future[WireReply]] = {}
        self._outbox: list[tuple[int, orjson.Fragment]] = []
        self._last_message = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Spawns the process, which reads calls after its imports.

        Raises:
            OSError: The process cannot be created.
        """
        parent_end, child_end = socket.socketpair()
        with child_end:
            # It inherits only the socket and the paths of modules from this process.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            environment.setdefault("OMP_NUM_THREADS", "1")
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(child_end.fileno()), *self._limits],
                env=environment,
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C on the terminal must not reach it
            )
        parent_end.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=parent_end, limit=_BUFFER)
        self._later(self._read(reader))

    @property
    def pid(self) -> int | None:
        """Process id."""
        return None if self._process is None else self._process.pid

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """The reply to a call.

        Raises:
            EnvironmentRaised: The environment failed.
            EnvironmentLost: The process is gone, or dies before the reply.
        """
        if self.cause:
            raise EnvironmentLost(self.cause)
        answer: asyncio.Future[WireReply] = asyncio.get_running_loop().create_future()
        if not self._pending:
            self._last_message = time.monotonic()
        try:
            number = self._post({"op": op, **fields})
        except TypeError as error:  # such as a number too large for JSON
            raise EnvironmentRaised.of(error) from None
        self._pending[number] = answer
        try:
            reply = await answer
        finally:
            self._pending.pop(number, None)
        if "error" in reply.content:
            self.faults += bool(reply.content.get("fault"))
            raise EnvironmentRaised(reply.content["error"])
        return reply

    async def open(self, **order: Any) -> tuple[int, str]:
        """Creates an environment; returns its number in the process and its system prompt.

        Raises:
            EnvironmentRaised: It cannot be created.
            EnvironmentLost: The process died while creating it.
        """
        number = next(self._environments)
        self.environments += 1
        try:
            reply = await self.ask("create", env=number, **order)
        except BaseException:
            self.drop(number)  # even if it is created after a cancellation
            raise
        return number, reply.content["system_prompt"]

    def drop(self, number: int) -> None:
        """Closes an environment without waiting for it."""
        self.environments -= 1
        if not self.cause:
            self._post({"op": "close", "env": number})

    @property
    def silent_seconds(self) -> float:
        """Seconds since the process last sent anything while a call is pending."""
        return time.monotonic() - self._last_message if self._pending else 0.0

    async def close(self) -> None:
        """Ends the process and waits for it."""
        self.cause = self.cause or "the environment was closed"
        process = self._process
        if process is None:
            return
        self._writer.close()
        self._fail_pending()
        await _end(process)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _post(self, call: dict[str, Any]) -> int:
        content = orjson.Fragment(orjson.dumps(call))
        number = next(self._calls)
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append((number, content))
        return number

    def _flush(self) -> None:
        calls, self._outbox = self._outbox, []
        if not self.cause:
            self._writer.writelines(pack({"calls": calls}))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        assert self._process is not None
        try:
            while True:
                message, blobs = await receive_from(reader)
                self._last_message, self.has_answered = time.monotonic(), True
                start = 0
                for number, content, count in message["answers"]:
                    answer = self._pending.get(number)
                    if answer is not None and not answer.done():
                        answer.set_result(WireReply(content, blobs[start : start + count]))
                    start += count
        except (asyncio.IncompleteReadError, ConnectionError, BrokenStream):
            if not self.cause:
                await _end(self._process)
                self.kill(f"its process (pid {self.pid}) {_ending(self._process.returncode)}")

    def kill(self, cause: str) -> None:
        """Kills the process; pending calls raise `EnvironmentLost`."""
        if self.cause or self._process is None:
            return
        self.cause = cause
        self._process.kill()
        self._writer.close()
        self._fail_pending()
        self._later(_end(self._process))
        self._on_death(self)

    def _fail_pending(self) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(EnvironmentLost(self.cause))

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a process whose stream is closed; kills it if it does not end.

    Polls, since threads cannot wait during the interpreter's shutdown.
    """
    deadline = time.monotonic() + _ENDING_SECONDS
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
        await asyncio.sleep(_POLL_SECONDS)


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"was ended by signal {name}{hint}"
