"""Runs a tracker in the background, so that a training does not wait for MLflow."""

import logging
import multiprocessing
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Concatenate, ParamSpec

from vagen.forks import begin_fork
from vagen.storage import StorageError
from vagen.tracking.server import TrackingError
from vagen.tracking.tracker import Tracker

P = ParamSpec("P")

_LOG = logging.getLogger("vagen.tracking")


class BackgroundTracker:
    """Runs a `Tracker` in a fork of this process, which executes calls in order.

    With torch, forks are safe on Linux only; on other systems it runs in a thread.
    """

    def __init__(self, opens: Callable[[], Tracker]):
        """Returns at once; `opens` creates the tracker in the fork."""
        self._pipe, there = multiprocessing.Pipe()
        self._found: tuple[str, str] | Exception | None = None
        if sys.platform == "linux":
            fork = multiprocessing.get_context("fork")
            arguments = opens, there, self._pipe
            self._worker = fork.Process(target=_serve, args=arguments, daemon=True)
            self._worker.start()
            there.close()  # so that `recv` fails if the fork dies
        else:
            self._worker = threading.Thread(target=_serve, args=(opens, there), daemon=True)
            self._worker.start()

    def ready(self) -> tuple[str, str]:
        """Waits until the tracker is open; returns MLflow's address and the run's name.

        Raises:
            TrackingError: MLflow, or an additional tracker, cannot be used.
            StorageError: A folder cannot be written.
        """
        if self._found is None:
            try:
                self._found = self._pipe.recv()
            except (EOFError, OSError):
                self._found = TrackingError(
                    "the process that opens MLflow died, perhaps for lack of memory"
                )
        if isinstance(self._found, Exception):
            raise self._found
        assert self._found is not None
        return self._found

    def tell(
        self, method: Callable[Concatenate[Tracker, P], None], *args: P.args, **options: P.kwargs
    ) -> None:
        """Calls a method of the tracker; its errors are logged in the fork.

        Raises:
            TrackingError, StorageError: The tracker could not be opened.
        """
        if self._found is not None or self._pipe.poll():
            self.ready()
        try:
            self._pipe.send((method, args, options))
        except OSError:
            _LOG.warning("the process that records died: %s is left out", method.__name__)

    @property
    def lost(self) -> bool:
        """Whether the fork has ended; if it never started, `ready` or `tell` raises the error."""
        failed = isinstance(self._found, Exception)
        return failed or (self._found is not None and not self._worker.is_alive())

    def close(self) -> None:
        """Waits until everything is recorded."""
        if self._found is None:
            try:
                self.ready()
            except (TrackingError, StorageError) as error:
                _LOG.warning("nothing is recorded: %s", error)
        with suppress(OSError):
            self._pipe.send(None)
        self._worker.join()
        self._pipe.close()


def _serve(
    opens: Callable[[], Tracker], pipe: Connection, inherited: Connection | None = None
) -> None:
    """Opens the tracker and executes calls from the pipe until None arrives or the parent died.

    Args:
        opens: Creates the tracker.
        pipe: Receives the calls.
        inherited: The parent's end of the pipe, in a fork.
    """
    if inherited is not None:
        begin_fork()
        inherited.close()
    try:
        tracker = opens()
    except Exception as error:
        known = isinstance(error, TrackingError | StorageError)
        pipe.send(error if known else TrackingError(f"{type(error).__name__}: {error}"))
        return
    with suppress(EOFError, OSError):
        pipe.send((tracker.uri, tracker.run_id))
        while (call := pipe.recv()) is not None:
            method, args, options = call
            try:
                method(tracker, *args, **options)
            except Exception as error:  # must not end the training
                _LOG.warning("%s is left out: %s: %s", method.__name__, type(error).__name__, error)
    for extra in tracker.extra_trackers:
        extra.finish(failed=False)
