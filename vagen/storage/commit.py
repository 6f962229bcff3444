"""Directories that appear atomically.

A step writes into a hidden folder next to its destination. Then the folder gets a manifest, is
flushed to disk and renamed. If the process is killed before the rename, the destination is
unchanged, and the next attempt removes the remains. Single files appear whole or not at all
(`write_whole`), and files of JSON lines grow by whole lines.
"""

import fcntl
import glob
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vagen.storage.errors import StorageError, storage_errors
from vagen.storage.manifest import MANIFEST, FileEntry, Manifest, parse_manifest, scan_files
from vagen.storage.writer import assert_ownership


@contextmanager
def commit_directory(
    final: Path,
    *,
    kind: str = "directory",
    schema_version: int = 1,
    payload: Mapping[str, Any] | None = None,
    replace: bool = False,
    known: Mapping[str, FileEntry] | None = None,
) -> Iterator[Path]:
    """Yields a folder that becomes `final` if the block ends without an error.

    Args:
        final: Path of the directory; parents are created.
        kind: Kind of its content, e.g. `rollout`.
        schema_version: Version of its file layout.
        payload: JSON-serialisable part of the manifest, read when the block ends, so the block may
            fill the mapping.
        replace: Whether to replace an existing directory.
        known: Digests computed while files were written, read when the block ends; others are
            computed then.

    Raises:
        StorageError: `final` exists without `replace`, or the folder cannot be written (full disk,
            read-only, a file in the way); the message says which folder and what to do.
        Superseded: A newer attempt took over the work; see `vagen.storage.writer`.
    """
    final = Path(final).absolute()
    _check_destination(final, replace)
    with partial_directory(final) as partial:
        yield partial
        manifest = Manifest(
            kind=kind,
            schema_version=schema_version,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            payload=json.loads(json.dumps(dict(payload or {}))),
            files=scan_files(partial, known),
        )
        (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        publish(partial, final, replace=replace)


@contextmanager
def partial_directory(final: Path) -> Iterator[Path]:
    """Yields a hidden folder next to `final`, locked by this process and removed at the end.

    Disk errors inside the block become `StorageError`.
    """
    with storage_errors(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        # Remains of dead attempts; live attempts hold a lock.
        _remove_unlocked(final.parent, f".{glob.escape(final.name)}.partial-*")
        partial = _partial_path(final)
    lock = _lock(partial)
    try:
        with storage_errors(final.parent):
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def publish(partial: Path, final: Path, *, replace: bool = False) -> None:
    """Flushes `partial` to the disk and renames it to `final`.

    Raises:
        Superseded: A newer attempt took over the work.
    """
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    assert_ownership(final)
    _check_destination(final, replace)
    if final.exists():
        # A kill between the two leaves no `final`, which looks like an unfinished step.
        aside = _partial_path(final)
        final.rename(aside)
        partial.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        partial.rename(final)
    _sync(final.parent)


def publish_manifest(final: Path, content: bytes) -> None:
    """Replaces `final` by a folder with only a manifest.

    It describes committed files that are elsewhere; see `vagen.storage.materialize`.

    Raises:
        StorageError: The folder cannot be written.
        CorruptArtifact: The content is not a manifest.
    """
    parse_manifest(content, str(final / MANIFEST))
    with partial_directory(final) as partial:
        (partial / MANIFEST).write_bytes(content)
        publish(partial, final, replace=True)


def remove_all_stale(parent: Path) -> list[Path]:
    """Removes remains of dead attempts to write any folder in `parent`.

    Returns:
        The removed folders.
    """
    return _remove_unlocked(parent, ".*.partial-*")


def _remove_unlocked(parent: Path, pattern: str) -> list[Path]:
    removed = []
    for path in parent.glob(pattern):
        lock = _lock(path)
        if lock is None:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        removed.append(path)
    return removed


def reuse_file(source: Path, target: Path) -> None:
    """Makes `target` a hard link to `source` if possible, otherwise a copy.

    Sharing is safe, since files of committed directories never change.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _check_destination(final: Path, replace: bool) -> None:
    if not replace and (final.is_symlink() or final.exists()):
        raise StorageError(
            f"the folder {final} exists already: finished steps are never overwritten; "
            "choose another folder or delete it"
        )


def _partial_path(final: Path) -> Path:
    path = final.parent / f".{final.name}.partial-{uuid.uuid4().hex[:12]}"
    path.mkdir()
    return path


def _lock(directory: Path) -> int | None:
    """Locks the directory until the process ends; None if it is locked."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; it takes its name when the block ends well.

    Raises:
        StorageError: The folder is full, read-only or missing.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        with storage_errors(path.parent):
            yield partial
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Writes a UTF-8 file that appears whole (`write_whole`); returns its path."""
    with write_whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def read_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines, without lines truncated by a crash.

    Returns:
        The values, oldest first; an empty list if there is no file.
    """
    values = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return values


def append_line(path: Path, line: str) -> None:
    """Appends a line with a single write, so that lines of several processes do not mix."""
    with path.open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")
