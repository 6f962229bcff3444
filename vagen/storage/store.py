"""Stores that keep committed directories by key."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

from vagen.storage.commit import partial_directory, publish, write_whole
from vagen.storage.errors import StorageError, storage_errors
from vagen.storage.manifest import MANIFEST, verify_directory


class Store(Protocol):
    """Keeps committed directories under keys such as `runs/a/iterations/0000/rollout`.

    Directories appear atomically and are checked against their manifest on the way in and out. A
    store also keeps loose files, which have no manifest and may change.
    """

    uri: str
    """URI of the store; a key has the URI `<uri>/<key>`."""

    def check(self) -> None:
        """Checks that the store answers and can keep runs; writes nothing.

        Raises:
            StorageError: It cannot.
        """
        ...

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
            source: The directory.
            key: Its key.
            replace: Whether to replace an existing directory.
            guard: Called right before the directory appears; it does not if this raises.

        Raises:
            CorruptArtifact: `source` does not match its manifest.
            StorageError: The key is taken, or the store cannot be written.
        """
        ...

    def fetch_directory(self, key: str, target: Path, part: str = "") -> Path:
        """Copies `key` atomically to the local folder `target`; returns `target`.

        Args:
            key: The key.
            target: A new folder.
            part: A folder in it, to copy only that and the manifest.

        Raises:
            CorruptArtifact: The copy does not match its manifest.
            StorageError: There is no such key, or `target` exists.
        """
        ...

    def manifest(self, key: str) -> bytes:
        """The bytes of `manifest.json` under `key`.

        Raises:
            StorageError: There is no such key.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether `key` has a complete directory."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Keys below `prefix`, sorted."""
        ...

    def delete(self, key: str, *, guard: Callable[[], None] | None = None) -> None:
        """Removes `key` atomically, if it exists.

        Args:
            key: The key.
            guard: Called last; if it raises, nothing is removed.
        """
        ...

    def write_file(self, name: str, content: bytes) -> None:
        """Writes or replaces a loose file atomically, e.g. `runs/a/events.jsonl`."""
        ...

    def read_file(self, name: str) -> bytes | None:
        """Content of a loose file; None if it does not exist."""
        ...


class LocalStore:
    """A store in a local folder or a mounted volume."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()
        self.uri = self.root.as_uri()

    def check(self) -> None:
        """See `Store.check`."""
        self.read_file("check")

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
            raise missing_key(str(self.root), key)
        return _copy_whole(self._path(key), Path(target), part=part)

    def manifest(self, key: str) -> bytes:
        """See `Store.manifest`."""
        if not self.exists(key):
            raise missing_key(str(self.root), key)
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
            with write_whole(path) as partial:
                partial.write_bytes(content)

    def read_file(self, name: str) -> bytes | None:
        """See `Store.read_file`."""
        path = self._path(name)
        with storage_errors(self.root):
            return path.read_bytes() if path.is_file() else None

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*PurePosixPath(check_key(key)).parts)


def check_key(key: str) -> str:
    """Returns a valid key.

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


def missing_key(store: str, key: str) -> StorageError:
    """The error for a key that is not in the store."""
    return StorageError(f"the store {store} has no {key!r}: see `list()` for its keys")


def materialize(store: Store, key: str, folder: Path, part: str = "") -> None:
    """Replaces a folder that has only a manifest by the complete directory.

    Args:
        store: A store with the directory.
        key: Its key.
        folder: The folder with the manifest.
        part: A folder in it, to fetch only that.

    Raises:
        StorageError: The store has no such key, or now has another directory under it.
        CorruptArtifact: The copy does not match its manifest.
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
    """Copies a committed directory or a part of it, verified and atomically."""
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
