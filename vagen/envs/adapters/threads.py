"""A thread for code that may never return."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class DaemonThread:
    """Runs calls one after the other in a thread.

    Unlike `ThreadPoolExecutor(1)`, a call that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        """Starts the thread."""
        self._calls = Calls()
        Thread(target=_serve, args=(self._calls,), daemon=True).start()

    def submit(self, call: Callable[[], ResultT]) -> "Future[ResultT]":
        """Queues a call."""
        future = Future[ResultT]()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Ends the thread after the calls so far, without waiting."""
        self._calls.put(None)

    __del__ = close


def _serve(calls: Calls) -> None:
    while queued := calls.get():
        future, call = queued
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # the caller's to handle, whatever it is
                future.set_exception(error)
        del queued, future, call  # which would hold an environment until the next call
