"""A tracker beside the training, which waits neither for MLflow to load, nor for a database to be
made, nor for a server to answer.
"""

import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Concatenate, ParamSpec

from vagen.forks import begin_fork
from vagen.storage import StorageError
from vagen.tracking.server import TrackingError
from vagen.tracking.tracker import Tracker

P = ParamSpec("P")
LOOK_SECONDS = 1.0
"""How often a fork looks whether the process that it records for is still there."""

_LOG = logging.getLogger("vagen.tracking")


class BackgroundTracker:
    """A `Tracker` in a fork of this process, which records what it is told, in that order.

    Beside torch only Linux forks safely: elsewhere it is in a thread.
    """

    def __init__(self, opens: Callable[[], Tracker]):
        """Returns at once; `opens` makes the tracker, over there."""
        self._pipe, there = multiprocessing.Pipe()
        self._found: tuple[str, str] | Exception | None = None
        if sys.platform == "linux":
            fork = multiprocessing.get_context("fork")
            arguments = opens, there, self._pipe, os.getpid()
            self._worker = fork.Process(target=_forked, args=arguments, daemon=True)
            self._worker.start()
            there.close()  # the fork's end, which this process would hold open
        else:
            self._worker = threading.Thread(target=_serve, args=(opens, there), daemon=True)
            self._worker.start()

    def ready(self) -> tuple[str, str]:
        """MLflow's address and the run's name there, once the tracker is open.

        Raises:
            TrackingError: MLflow, or a tracker beside it, cannot be used.
            StorageError: A folder cannot be written.
        """
        found = self._found
        if found is None:
            try:
                found = self._pipe.recv()
            except (EOFError, OSError):
                found = TrackingError("the process that opens MLflow died; had it memory?")
            self._found = found
        if isinstance(found, Exception):
            raise found
        return found

    def tell(
        self, method: Callable[Concatenate[Tracker, P], None], *args: P.args, **options: P.kwargs
    ) -> None:
        """Has a method of the tracker called; what goes wrong over there is a line of the log.

        Raises:
            TrackingError, StorageError: It is known by now that the tracker could not be opened.
        """
        if self._found is not None or self._pipe.poll():
            self.ready()
        try:
            self._pipe.send((method, args, options))
        except OSError:
            _LOG.warning("the process that records died: %s is left out", method.__name__)

    @property
    def lost(self) -> bool:
        """Whether nobody listens any more; `ready` or `tell` has said so if nobody ever did."""
        failed = isinstance(self._found, Exception)
        return failed or (self._found is not None and not self._worker.is_alive())

    def close(self) -> None:
        """Returns when everything is recorded."""
        if self._found is None:
            try:
                self.ready()
            except (TrackingError, StorageError) as error:
                _LOG.warning("nothing is recorded: %s", error)
        with suppress(OSError):
            self._pipe.send(None)
        self._worker.join()
        self._pipe.close()


def _forked(opens: Callable[[], Tracker], pipe: Connection, theirs: Connection, pid: int) -> None:
    begin_fork()
    theirs.close()
    _serve(opens, pipe, lambda: os.getppid() == pid)


def _serve(
    opens: Callable[[], Tracker], pipe: Connection, needed: Callable[[], bool] = lambda: True
) -> None:
    """Opens the tracker and does what comes through the pipe, until that is None.

    A process that was killed is not served to the end: this fork has its lock on the run's folder,
    and who goes on with the run records what is missing.
    """
    try:
        tracker = opens()
    except Exception as error:
        known = isinstance(error, TrackingError | StorageError)
        pipe.send(error if known else TrackingError(f"{type(error).__name__}: {error}"))
        return
    pipe.send((tracker.uri, tracker.run_id))
    while (told := _received(pipe, needed)) is not None:
        method, args, options = told
        try:
            method(tracker, *args, **options)
        except Exception as error:  # of a server, a disk or a library: never a training's end
            _LOG.warning("%s is left out: %s: %s", method.__name__, type(error).__name__, error)
    for beside in tracker.beside:
        beside.finish(failed=False)


def _received(pipe: Connection, needed: Callable[[], bool]) -> Any:
    """What the pipe says next; None if nobody is there to say anything."""
    try:
        while not pipe.poll(LOOK_SECONDS):
            if not needed():
                return None
        return pipe.recv() if needed() else None
    except EOFError:
        return None
