"""Directories that appear whole or not at all.

A step writes into a hidden folder beside its destination; when it is done the folder gets a
manifest, is flushed to the disk and renamed. Whatever kills the process before the rename leaves
the destination as it was, and the next attempt removes the remains.
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
    """Yields a folder to write into; it becomes `final` when the block ends without an error.

    Args:
        final: where the directory shall appear; its parents are made.
        kind: what it holds, e.g. `rollout`.
        schema_version: version of the layout of its files.
        payload: goes into the manifest, JSON-able. It is read when the block ends, so the block
            may fill the mapping that was passed.
        replace: put the new directory in the place of an existing one.
        known: digests that were taken as files were written; the others are taken when the block
            ends. Like the payload it is read then.

    Raises:
        StorageError: if `final` exists and `replace` is not set, or if the folder cannot be
            written (full disk, read-only, a file in the way): says which folder and what to do.
        Superseded: if a newer attempt took over the work; see `vagen.storage.writer`.
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
    """Yields a hidden folder beside `final`, locked by this process and removed at the end.

    Errors of the disk inside the block become `StorageError`.
    """
    with storage_errors(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(final)
        partial = _beside(final)
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
    with assert_ownership(final):
        _check_destination(final, replace)
        if final.exists():
            _replace(partial, final)
        else:
            partial.rename(final)
    _sync(final.parent)


def publish_manifest(final: Path, content: bytes) -> None:
    """Makes `final` a folder that holds a manifest alone, in the place of what was there.

    It says what was committed; the files that it names are elsewhere. See
    `vagen.storage.materialize`.

    Raises:
        StorageError: if the folder cannot be written.
        CorruptArtifact: if the content is no manifest.
    """
    parse_manifest(content, str(final / MANIFEST))
    with partial_directory(final) as partial:
        (partial / MANIFEST).write_bytes(content)
        publish(partial, final, replace=True)


def remove_stale(final: Path) -> list[Path]:
    """Removes what dead attempts to write `final` left; a live attempt holds a lock and is kept.

    Returns:
        The folders that were removed.
    """
    return _remove_unlocked(final.parent, f"{glob.escape(_prefix(final))}*")


def remove_all_stale(parent: Path) -> list[Path]:
    """As `remove_stale`, of every folder that was to be in `parent`."""
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
    """Makes `target` the same file as `source`: a hard link where possible, otherwise a copy.

    Files of committed directories never change, so sharing their bytes is safe.
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


def _replace(partial: Path, final: Path) -> None:
    """Two renames; a kill between them leaves no `final`, which reads as a step not yet done."""
    aside = _beside(final)
    final.rename(aside)
    partial.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def _beside(final: Path) -> Path:
    path = final.parent / f"{_prefix(final)}{uuid.uuid4().hex[:12]}"
    path.mkdir()
    return path


def _prefix(final: Path) -> str:
    return f".{final.name}.partial-"


def _lock(directory: Path) -> int | None:
    """Takes the directory's lock, which dies with the process; None if it is not to be had."""
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
