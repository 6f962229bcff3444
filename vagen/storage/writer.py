"""One writer at a time: what protects a run's folder, and its copy in a store, from a second one.

A process that works on a run is an *attempt* at it, and `attempt.json` names the newest attempt: in
the run's folder, and beside the run in its store.

- **On a disk** an attempt holds a lock on that file as long as it lives; the system lets go of it
  when the process dies, however it dies. A second process is refused, and told who is at work
  (`sole_writer`). The lock is `flock` on a file that is open for writing, which NFS and other
  shared file systems pass on to all nodes. Such a lock can be lost, with the connection of a node
  that lives on. So whatever is committed below the folder (`vagen.storage.commit`) takes the lock
  once more and checks that the file still names its attempt (`assert_ownership`).
- **In a store** nobody holds a lock: the newest attempt is right. A stage begins by writing its
  attempt's name and taking over what older attempts have put there; before anything of it appears,
  and before anything is deleted, the name must still be its own (`check_newest`). Two writers of
  one key are kept apart by conditional writes, or by `vagen.storage.s3_lock` where a server has
  none.
- **Evaluations beside a training** (`measure`, `vagen eval`) write one folder that nobody else
  writes, and claim nothing.

The older attempt gets `Superseded`; nothing that the newer one wrote is changed.
"""

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from vagen.storage.errors import StorageError, storage_errors

ATTEMPT = "attempt.json"
PATIENCE = 10.0
"""Seconds to wait for a writer that may have been killed a moment ago."""


class InUse(StorageError):
    """Another process works on the folder."""


class Superseded(StorageError):
    """This attempt's work was taken over by a newer one."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A process at work.

    >>> Attempt.parse(b'{"name": "5f0c", "host": "node-1", "pid": 7, "since": "2026-11-22"}').pid
    7
    """

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """UTC, ISO 8601."""

    def to_json(self) -> str:
        """The content of `attempt.json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(content: str | bytes | None) -> "Attempt | None":
        """The attempt that a file names; None if there is no file, or its writer died over it."""
        try:
            return Attempt(**json.loads(content or b""))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


_held: dict[Path, tuple[Attempt, TextIO]] = {}
"""Folders that this process writes, each with its locked file."""


@contextmanager
def sole_writer(folder: Path, *, patience: float | None = None) -> Iterator[Attempt]:
    """Makes this process the newest attempt at what is in `folder`, and keeps others out.

    Args:
        folder: Exists.
        patience: Seconds to wait for another process that holds it; None is `PATIENCE`.

    Raises:
        InUse: Another process works on it.
        StorageError: The folder cannot be written.
    """
    folder = Path(folder).absolute()
    attempt = Attempt()
    with storage_errors(folder):
        file = (folder / ATTEMPT).open("a+")
    with file:
        deadline = time.monotonic() + (PATIENCE if patience is None else patience)
        while not _lock(file):
            if time.monotonic() > deadline:
                raise InUse(
                    f"{folder} is in use by another process ({_read(folder)}): wait for it, or "
                    "stop it"
                )
            time.sleep(0.1)
        with storage_errors(folder):
            file.truncate(0)
            file.write(attempt.to_json())
            file.flush()
            os.fsync(file.fileno())
        _held[folder] = attempt, file
        try:
            yield attempt
        finally:
            del _held[folder]


@contextmanager
def assert_ownership(path: Path) -> Iterator[None]:
    """Nobody takes over while the block puts `path` in its place.

    Raises:
        Superseded: Somebody has, since this process became the writer of a folder above `path`.
    """
    path = Path(path).absolute()
    folder = next((parent for parent in path.parents if parent in _held), None)
    if folder is not None:
        attempt, file = _held[folder]
        newest = _read(folder)
        if not _lock(file) or newest != attempt:
            raise Superseded(_message(path, newest))
    yield


def is_held(folder: Path) -> bool:
    """Whether a process is at work on a folder: one on this machine, or on any that shares it."""
    try:
        with (Path(folder) / ATTEMPT).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_newest(content: bytes | None, attempt: Attempt | None, what: str) -> None:
    """Refuses to write to a store that another attempt writes now.

    Args:
        content: Of the store's `attempt.json`.
        attempt: This process's.
        what: Is to be written.

    Raises:
        Superseded: It is another one.
    """
    newest = Attempt.parse(content)
    if newest is None or newest != attempt:
        raise Superseded(_message(what, newest))


def _lock(file: TextIO) -> bool:
    """Whether this process has the lock; taking it again while it is held changes nothing."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(folder: Path) -> Attempt | None:
    with storage_errors(folder):
        path = folder / ATTEMPT
        return Attempt.parse(path.read_bytes() if path.exists() else None)


def _message(what: Path | str, newest: Attempt | None) -> str:
    who = newest or "an unknown process"
    return (
        f"{what} was not written: a newer attempt ({who}) took it over; leave the work to it, or "
        "stop it and start again"
    )
