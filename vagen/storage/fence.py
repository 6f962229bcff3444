"""Fences: of several attempts at the same work, only the newest may still write.

An attempt that a cluster has given up may live on behind a broken connection, and finish. So an
attempt claims its folder at the start, by a file with its name; whoever claims later, writes over
it. What a process commits below a folder that it claimed (`vagen.storage.commit`) appears only
while the claim stands: the file stays locked from the look at it until the folder has its name.

The lock is `flock` on a file open for writing: NFS and other shared file systems pass it on to all
nodes.
"""

import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from vagen.storage.errors import StorageError, storage_errors

CLAIM = "attempt.json"

_claimed: dict[Path, str] = {}
"""Attempts of this process by folder."""


class Superseded(StorageError):
    """This attempt's work was taken over by a newer one."""


def claim(folder: Path, attempt: str | None = None) -> str:
    """Makes this process the newest attempt at what is in `folder`.

    Args:
        folder: Exists.
        attempt: Name of the attempt, which no other has; drawn if None.

    Returns:
        The attempt's name.
    """
    folder = Path(folder).absolute()
    attempt = attempt or uuid.uuid4().hex
    with _locked(folder) as file:
        file.truncate()
        json.dump(describe_attempt(attempt), file)
        file.flush()
        os.fsync(file.fileno())
    _claimed[folder] = attempt
    return attempt


def describe_attempt(attempt: str) -> dict[str, str | int]:
    """What a claim of this process says: the attempt, and who makes it since when."""
    return {
        "attempt": attempt,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def standing(path: Path) -> Iterator[None]:
    """Nobody takes over while the block puts `path` in its place.

    Raises:
        Superseded: Somebody has, since this process claimed a folder above `path`.
    """
    path = Path(path).absolute()
    folder = next((parent for parent in path.parents if parent in _claimed), None)
    if folder is None:
        yield
        return
    with _locked(folder) as file:
        newest = _read(file)
        if newest.get("attempt") != _claimed[folder]:
            raise Superseded(
                f"{path} was not written: a newer attempt (process {newest.get('pid')} on "
                f"{newest.get('host')}, since {newest.get('since')}) took over {folder}; leave the "
                "work to it, or stop it and start again"
            )
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[TextIO]:
    """The claim's file, locked on all nodes."""
    with storage_errors(folder), (folder / CLAIM).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _read(file: TextIO) -> dict[str, str | int]:
    """The newest claim; empty if its writer died over it."""
    try:
        return json.load(file)
    except ValueError:
        return {}
