"""The manifest of a committed directory: its files and their digests."""

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from vagen.storage.errors import CorruptArtifact, StorageError, storage_errors

MANIFEST = "manifest.json"
T = TypeVar("T")
THREADS = 8
"""Number of threads for writing, reading and hashing files, which release the GIL."""
_SETTLED_NS = 10**9
"""A file modified more recently may change again within the same clock tick."""
_known_digests: dict[tuple[int, ...], str] = {}
"""Digests by device, inode, size and times of a file, which change when it is written."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a committed directory."""

    sha256: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a committed directory."""

    kind: str
    schema_version: int
    created: str
    """UTC, ISO 8601; not part of the digest."""
    payload: dict[str, Any] = field(default_factory=dict)
    """JSON-serialisable data of the writer."""
    files: dict[str, FileEntry] = field(default_factory=dict)
    """Files by path relative to the directory, with forward slashes."""

    @property
    def digest(self) -> str:
        """SHA-256 of everything but `created`; equal for equal content."""
        text = json.dumps(self._body(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def part(self, folder: str) -> dict[str, FileEntry]:
        """Files in a subfolder, or the file of that name; all for an empty name."""
        start = f"{folder}/" if folder else ""
        return {n: entry for n, entry in self.files.items() if n == folder or n.startswith(start)}

    def to_json(self) -> str:
        """Text of `manifest.json`, which ends with the digest of the rest."""
        own = {"created": self.created, "digest": self.digest}
        return json.dumps({**self._body(), **own}, indent=2)

    def _body(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "schema_version": self.schema_version,
            "payload": self.payload,
            "files": {name: asdict(entry) for name, entry in sorted(self.files.items())},
        }


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; cached in the process while the file is unchanged."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        times = stat.st_mtime_ns, stat.st_ctime_ns
        key = (stat.st_dev, stat.st_ino, stat.st_size, *times)
        found = _known_digests.get(key)
        if found is None:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if max(times) < time.time_ns() - _SETTLED_NS:
                _known_digests[key] = found
        return found


def file_entry(path: Path) -> FileEntry:
    """Digest and size of a file."""
    return FileEntry(sha256=file_digest(path), size=path.stat().st_size)


def scan_files(
    directory: Path, known: Mapping[str, FileEntry] | None = None
) -> dict[str, FileEntry]:
    """Entries of every file below `directory` except its manifest, sorted by path.

    Args:
        directory: The directory, whose files are read in parallel.
        known: Known entries by name; these files are not read.

    Raises:
        StorageError: An entry is neither a file nor a folder (a link, a socket).
    """
    names = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StorageError(f"{path} is neither a file nor a folder: copy what it points to")
        if path.is_file() and name != MANIFEST:
            names.append(name)
    entries = dict(known or {})
    due = [name for name in names if name not in entries]
    entries |= zip(due, in_threads(lambda name: file_entry(directory / name), due), strict=True)
    return {name: entries[name] for name in names}


def write_files(
    directory: Path, writers: Mapping[str, Callable[[Path], None]]
) -> dict[str, FileEntry]:
    """Writes files in parallel; each is hashed right after writing, from the page cache.

    Args:
        directory: An existing folder.
        writers: Functions by name that write a file or folder at the given path.

    Returns:
        Entries of all files, for `commit_directory`.

    Raises:
        OSError: A file could not be written; all others are.
    """

    def write(name: str) -> dict[str, FileEntry]:
        path = directory / name
        try:
            writers[name](path)
        except Exception as error:
            # Libraries with native writers (safetensors, Arrow) report it only in the message.
            if isinstance(error, OSError) or os.strerror(errno.ENOSPC) not in str(error):
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if path.is_file():
            return {name: file_entry(path)}
        return {f"{name}/{inner}": entry for inner, entry in scan_files(path).items()}

    entries: dict[str, FileEntry] = {}
    for written in in_threads(write, writers):
        entries |= written
    return entries


def read_manifest(directory: Path) -> Manifest:
    """Reads `manifest.json` and checks its own digest, but not the files.

    Raises:
        StorageError: The folder does not exist or was never committed.
        CorruptArtifact: The manifest was changed or truncated.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        what = "holds no manifest.json" if Path(directory).is_dir() else "does not exist"
        raise StorageError(
            f"the folder {directory} {what}: give the folder of a step that finished"
        )
    with storage_errors(Path(directory)):
        content = path.read_bytes()
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, name: str) -> Manifest:
    """Parses a manifest and checks its own digest.

    Raises:
        CorruptArtifact: It was changed or truncated.
    """
    try:
        data = json.loads(content)
        manifest = Manifest(
            kind=str(data["kind"]),
            schema_version=int(data["schema_version"]),
            created=str(data["created"]),
            payload=dict(data["payload"]),
            files={
                str(file): FileEntry(sha256=str(entry["sha256"]), size=int(entry["size"]))
                for file, entry in data["files"].items()
            },
        )
        recorded = str(data["digest"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptArtifact(f"{name} is not a manifest: {error!r}") from error
    if manifest.digest != recorded:
        raise CorruptArtifact(
            f"{name} was changed after it was written: "
            f"it says digest {recorded}, its content has {manifest.digest}"
        )
    for file in manifest.files:
        path = PurePosixPath(file)
        if not file or path.is_absolute() or ".." in path.parts or "\\" in file:
            raise CorruptArtifact(f"{name} names a file outside its folder: {file}")
    return manifest


def verify_directory(directory: Path, part: str = "") -> Manifest:
    """Checks every file of a committed directory against the manifest.

    Files that are not in the manifest are ignored.

    Args:
        directory: The committed directory.
        part: A folder or file in it, to check only that.

    Raises:
        StorageError: The folder does not exist or was never committed.
        CorruptArtifact: A file is missing or differs; the message has both digests.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    names = manifest.part(part)
    with storage_errors(directory):
        for name, entry in names.items():
            if not (directory / name).is_file():
                raise CorruptArtifact(
                    f"{directory / name} is missing; the manifest has it with SHA-256 "
                    f"{entry.sha256}"
                )
        entries = in_threads(lambda name: file_entry(directory / name), names)
    for (name, entry), found in zip(names.items(), entries, strict=True):
        if found.sha256 != entry.sha256:
            raise CorruptArtifact(
                f"{directory / name} is corrupt: the manifest has SHA-256 {entry.sha256} "
                f"({entry.size} bytes), the file has {found.sha256} ({found.size} bytes)"
            )
    return manifest


def in_threads(
    function: Callable[[str], T], names: Iterable[str], workers: int = THREADS
) -> list[T]:
    """Results in order; the first error in order cancels pending calls."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, names))
