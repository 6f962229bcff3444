"""Ensures a single writer of a run's folder, and of its copy in a store.

A process that works on a run is an *attempt*. `attempt.json` names the newest attempt, in the run's
folder and next to the run in its store.

- **On a disk** an attempt locks that file; the system releases the lock when the process ends in
any way. A second process is rejected with a message that names the first (`sole_writer`). The lock
is `flock` on a file open for writing, which NFS and other shared file systems pass on to all nodes.
A node may lose it with its connection and still run. So every commit below the folder
(`vagen.storage.commit`) takes the lock again and checks that the file still names its attempt
(`assert_ownership`).
- **In a store** there is no lock: the newest attempt wins. A stage starts by writing its attempt's
name and taking over the results of older attempts. Before it publishes or deletes anything, the
name must still be its own (`check_newest`). Two writers of one key are separated by conditional
writes.
- **Evaluations during a training** (`measure`, `vagen eval`) write a folder of their own and need
no attempt.

The older attempt gets `Superseded`; results of the newer one do not change.
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
"""Seconds to wait for a writer that may just have been killed."""


class InUse(StorageError):
    """Another process is working on the folder."""


class Superseded(StorageError):
    """A newer attempt took over this attempt's work."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A process that works on a run.

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
        """The attempt in a file; None if the file is missing or incomplete."""
        try:
            return Attempt(**json.loads(content or b""))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


_held: dict[Path, tuple[Attempt, TextIO]] = {}
"""Folders that this process writes, with their locked files."""


@contextmanager
def sole_writer(folder: Path, *, patience: float | None = None) -> Iterator[Attempt]:
    """Makes this process the newest attempt at a folder, and locks others out.

    Args:
        folder: An existing folder.
        patience: Seconds to wait for another process that holds it; None for `PATIENCE`.

    Raises:
        InUse: Another process is working on it.
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


def assert_ownership(path: Path) -> None:
    """Prevents takeovers while the caller moves `path` into place, by taking the lock again.

    Raises:
        Superseded: A newer attempt has taken over a folder above `path`.
    """
    path = Path(path).absolute()
    folder = next((parent for parent in path.parents if parent in _held), None)
    if folder is not None:
        attempt, file = _held[folder]
        newest = _read(folder)
        if not _lock(file) or newest != attempt:
            raise Superseded(_message(path, newest))


def is_held(folder: Path) -> bool:
    """Whether a process on any machine is working on a folder."""
    try:
        with (Path(folder) / ATTEMPT).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_newest(content: bytes | None, attempt: Attempt | None, what: str) -> None:
    """Rejects writing to a store that another attempt writes.

    Args:
        content: The store's `attempt.json`.
        attempt: This process's attempt.
        what: The object to write, for messages.

    Raises:
        Superseded: The newest attempt is another one.
    """
    newest = Attempt.parse(content)
    if newest is None or newest != attempt:
        raise Superseded(_message(what, newest))


def _lock(file: TextIO) -> bool:
    """Takes the lock if possible; idempotent."""
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
