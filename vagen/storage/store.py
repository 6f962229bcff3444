"""Stores: where committed directories are kept, by key."""

import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

from vagen.storage.commit import partial_directory, publish
from vagen.storage.errors import StorageError, storage_errors
from vagen.storage.manifest import MANIFEST, verify_directory


class Store(Protocol):
    """Keeps committed directories under keys such as `runs/a/iterations/0000/rollout`.

    A directory is in the store whole or not at all, and is checked against its manifest on its
    way in and out. Beside them it keeps loose files, which have no manifest and may change.
    """

    uri: str
    """Where it is; what is under a key has the URI `<uri>/<key>`."""

    def put_directory(
        self,
        source: Path,
        key: str,
        *,
        replace: bool = False,
        guard: Callable[[], None] | None = None,
    ) -> str:
        """Copies the committed directory `source` to `key`; returns its URI.

        Args:
            source: the directory.
            key: where it shall be.
            replace: put it in the place of what is there.
            guard: called last, right before the directory appears; if it raises, it does not.

        Raises:
            CorruptArtifact: if `source` does not match its manifest.
            StorageError: if the key is taken, or the store cannot be written.
        """
        ...

    def fetch_directory(self, key: str, target: Path, part: str = "") -> Path:
        """Copies `key` to the local folder `target`, which appears whole; returns `target`.

        Args:
            key: what to copy.
            target: does not exist.
            part: a folder in it: what is not in that is left out, but for the manifest.

        Raises:
            CorruptArtifact: if what arrived does not match its manifest.
            StorageError: if there is no such key, or `target` exists.
        """
        ...

    def manifest(self, key: str) -> bytes:
        """The bytes of `manifest.json` of what is stored under `key`.

        Raises:
            StorageError: if there is no such key.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether a whole directory is stored under `key`."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Keys below `prefix`, sorted."""
        ...

    def delete(self, key: str, *, guard: Callable[[], None] | None = None) -> None:
        """Removes `key`; it vanishes at once. A missing key is no error.

        Args:
            key: what to remove.
            guard: called last; if it raises, nothing is removed.
        """
        ...

    def write_file(self, name: str, content: bytes) -> None:
        """Writes a loose file, e.g. `runs/a/events.jsonl`, whole and in the place of an older."""
        ...

    def read_file(self, name: str) -> bytes | None:
        """Content of a loose file; None if there is none."""
        ...


class LocalStore:
    """A store in a folder of this machine or of a mounted volume."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()
        self.uri = self.root.as_uri()

    def put_directory(
        self,
        source: Path,
        key: str,
        *,
        replace: bool = False,
        guard: Callable[[], None] | None = None,
    ) -> str:
        """See `Store.put_directory`."""
        target = self._path(key)
        _copy_whole(Path(source), target, replace=replace, guard=guard)
        return target.as_uri()

    def fetch_directory(self, key: str, target: Path, part: str = "") -> Path:
        """See `Store.fetch_directory`."""
        if not self.exists(key):
            raise nothing_there(str(self.root), key)
        return _copy_whole(self._path(key), Path(target), part=part)

    def manifest(self, key: str) -> bytes:
        """See `Store.manifest`."""
        if not self.exists(key):
            raise nothing_there(str(self.root), key)
        with storage_errors(self.root):
            return (self._path(key) / MANIFEST).read_bytes()

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        return (self._path(key) / MANIFEST).is_file()

    def list(self, prefix: str = "") -> list[str]:
        """See `Store.list`."""
        keys = (path.parent.relative_to(self.root).as_posix() for path in self.root.rglob(MANIFEST))
        return sorted(
            key
            for key in keys
            if (not prefix or PurePosixPath(key).is_relative_to(prefix.rstrip("/")))
            and not any(part.startswith(".") for part in PurePosixPath(key).parts)
        )

    def delete(self, key: str, *, guard: Callable[[], None] | None = None) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        if not path.exists():
            return
        if guard is not None:
            guard()
        with storage_errors(self.root):
            grave = Path(tempfile.mkdtemp(prefix=".deleted-", dir=path.parent))
            path.rename(grave)
            shutil.rmtree(grave)

    def write_file(self, name: str, content: bytes) -> None:
        """See `Store.write_file`."""
        path = self._path(name)
        with storage_errors(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}"
            partial.write_bytes(content)
            partial.replace(path)

    def read_file(self, name: str) -> bytes | None:
        """See `Store.read_file`."""
        path = self._path(name)
        with storage_errors(self.root):
            return path.read_bytes() if path.is_file() else None

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*PurePosixPath(check_key(key)).parts)


def check_key(key: str) -> str:
    """The key, if it is one.

    Raises:
        StorageError: It is empty or absolute, or a part of it is `.`, `..`, hidden or empty.
    """
    parts = key.split("/")
    if any(not part or part.startswith(".") for part in parts):
        raise StorageError(
            f"{key!r} is not a key: give a relative path without `..` and hidden names, "
            "e.g. `runs/a/rollout`"
        )
    return key


def nothing_there(store: str, key: str) -> StorageError:
    """The error of a key that is not in the store."""
    return StorageError(f"the store {store} has no {key!r}: see `list()` for its keys")


def materialize(store: Store, key: str, folder: Path, part: str = "") -> None:
    """Fills a folder that holds a manifest alone: puts the whole directory in its place.

    Args:
        store: Has the directory.
        key: Where it is there.
        folder: With the directory's manifest.
        part: A folder in it, if no more is needed.

    Raises:
        StorageError: if the store has no such key, or by now another directory under it.
        CorruptArtifact: if what arrived does not match its manifest.
    """
    wanted = (folder / MANIFEST).read_bytes()
    with partial_directory(folder) as partial:
        whole = store.fetch_directory(key, partial / folder.name, part)
        if (whole / MANIFEST).read_bytes() != wanted:
            raise StorageError(
                f"{store.uri}/{key} is not what {folder} says it is: another attempt replaced it; "
                "open the run again"
            )
        publish(whole, folder, replace=True)


def _copy_whole(
    source: Path,
    target: Path,
    *,
    replace: bool = False,
    guard: Callable[[], None] | None = None,
    part: str = "",
) -> Path:
    """Copies a committed directory or a part of it, as it is, verified and atomically."""
    manifest = verify_directory(source, part)
    target = target.absolute()
    if target.exists() and not replace:
        raise StorageError(f"{target} exists already: choose another place or delete it")
    with partial_directory(target) as partial:
        for name in (*manifest.part(part), MANIFEST):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, partial / name)
        verify_directory(partial, part)
        if guard is not None:
            guard()
        publish(partial, target, replace=replace)
    return target
