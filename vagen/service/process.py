"""A worker process, as the process that starts it and asks it sees it."""

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
from vagen.service.host import Call
from vagen.service.wire import BrokenStream, WireReply, pack, receive_from

_WORKER = "vagen.service.worker"
_BUFFER = 1 << 22
_LOOK_SECONDS = 0.01
_ENDING_SECONDS = 5.0
"""How long a process may take to end once its stream is closed."""


class WorkerProcess:
    """A process that holds environments and answers calls in the order they were asked.

    Calls asked while others are under way, or together, travel as one message.
    """

    def __init__(
        self, on_death: Callable[["WorkerProcess"], None], *, seconds: float, memory_mib: int
    ):
        """Prepares a worker; `start` spawns it.

        Args:
            on_death: Called once when it is gone, unless it was closed.
            seconds: A call that takes longer fails; 0: no bound.
            memory_mib: Memory it may take, MiB; 0: no bound.
        """
        self.faults = 0
        """Calls that failed, and not by a mistake of who asked."""
        self._limits = [f"{seconds:g}", str(memory_mib)]
        self.environments = 0
        """Environments that live in it."""
        self.has_answered = False
        """Whether it has come up: the first answer waits for what is imported."""
        self.cause = ""
        """Why it is gone; empty while it lives."""
        self._on_death = on_death
        self._calls = itertools.count()
        self._environments = itertools.count()
        self._pending: dict[int, asyncio.Future[WireReply]] = {}
        self._outbox: list[tuple[int, orjson.Fragment]] = []
        self._heard = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Spawns the process; it reads calls as soon as it has imported what it needs.

        Raises:
            OSError: No process can be made.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # Nothing of this process is shared but the socket, and the places modules come from.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            environment.setdefault("OMP_NUM_THREADS", "1")
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno()), *self._limits],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # a Ctrl-C on the terminal is not for it
            )
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_BUFFER)
        self._later(self._read(reader))

    @property
    def pid(self) -> int | None:
        """Process id."""
        return None if self._process is None else self._process.pid

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """The answer to a call.

        Raises:
            EnvironmentRaised: The environment failed.
            EnvironmentLost: The process is gone, or dies before it answers.
        """
        if self.cause:
            raise EnvironmentLost(self.cause)
        answer: asyncio.Future[WireReply] = asyncio.get_running_loop().create_future()
        if not self._pending:
            self._heard = time.monotonic()
        try:
            number = self._post({"op": op, **fields})
        except TypeError as error:  # such as a number that JSON has no room for
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
        """Makes an environment; returns its number here and its system prompt.

        Raises:
            EnvironmentRaised: It cannot be made.
            EnvironmentLost: The process died over it.
        """
        number = next(self._environments)
        self.environments += 1
        try:
            reply = await self.ask("create", env=number, **order)
        except BaseException:
            self.drop(number)  # also one that is made after nobody waits for it any more
            raise
        return number, reply.content["system_prompt"]

    def drop(self, number: int) -> None:
        """Closes an environment without waiting for it."""
        self.environments -= 1
        if not self.cause:
            self._post({"op": "close", "env": number})

    @property
    def silent_seconds(self) -> float:
        """How long an answer has been waited for without a sign of life."""
        return time.monotonic() - self._heard if self._pending else 0.0

    def kill(self, cause: str) -> None:
        """Ends the process at once; every answer still awaited is `EnvironmentLost`."""
        self._gone(cause)

    async def close(self) -> None:
        """Ends the process and waits until it is gone."""
        self.cause = self.cause or "the environment was closed"
        process = self._process
        if process is None:
            return
        self._writer.close()
        self._fail_pending()
        await _end(process)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _post(self, call: Call) -> int:
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
                self._heard, self.has_answered = time.monotonic(), True
                start = 0
                for number, content, count in message["answers"]:
                    answer = self._pending.get(number)
                    if answer is not None and not answer.done():
                        answer.set_result(WireReply(content, blobs[start : start + count]))
                    start += count
        except (asyncio.IncompleteReadError, ConnectionError, BrokenStream):
            if not self.cause:
                await _end(self._process)
                self._gone(f"its process (pid {self.pid}) {_ending(self._process.returncode)}")

    def _gone(self, cause: str) -> None:
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

    Asks for it again and again: at the end of the interpreter no thread can wait.
    """
    deadline = time.monotonic() + _ENDING_SECONDS
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
        await asyncio.sleep(_LOOK_SECONDS)


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
