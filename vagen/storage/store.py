"""Stores: where committed directories are kept, by key."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from vagen.storage.commit import partial_directory, publish
from vagen.storage.errors import StorageError, storage_errors
from vagen.storage.manifest import MANIFEST, verify_directory


class Store(Protocol):
    """Keeps committed directories under keys such as `runs/a/iterations/0000/rollout`.

    A directory is in the store whole or not at all, and is checked against its manifest on its
    way in and out.
    """

    def put_directory(self, source: Path, key: str) -> str:
        """Copies the committed directory `source` to `key`; returns its URI.

        Raises:
            CorruptArtifact: if `source` does not match its manifest.
            StorageError: if the key is taken, or the store cannot be written.
        """
        ...

    def fetch_directory(self, key: str, target: Path) -> Path:
        """Copies `key` to the local folder `target`, which appears whole; returns `target`.

        Raises:
            CorruptArtifact: if what arrived does not match its manifest.
            StorageError: if there is no such key, or `target` exists.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether a whole directory is stored under `key`."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Keys below `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Removes `key`; it vanishes at once. A missing key is no error."""
        ...


class LocalStore:
    """A store in a folder of this machine or of a mounted volume."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()

    def put_directory(self, source: Path, key: str) -> str:
        """See `Store.put_directory`."""
        target = self._path(key)
        _copy_whole(Path(source), target)
        return target.as_uri()

    def fetch_directory(self, key: str, target: Path) -> Path:
        """See `Store.fetch_directory`."""
        if not self.exists(key):
            raise StorageError(f"the store {self.root} has no {key!r}: see `list()` for its keys")
        return _copy_whole(self._path(key), Path(target))

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

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        if not path.exists():
            return
        with storage_errors(self.root):
            grave = Path(tempfile.mkdtemp(prefix=".deleted-", dir=path.parent))
            path.rename(grave)
            shutil.rmtree(grave)

    def _path(self, key: str) -> Path:
        parts = PurePosixPath(key).parts
        if not parts or key.startswith("/") or any(p == ".." or p.startswith(".") for p in parts):
            raise StorageError(
                f"{key!r} is not a key: give a relative path without `..` and hidden names, "
                "e.g. `runs/a/rollout`"
            )
        return self.root.joinpath(*parts)


def open_store(uri: str | Path) -> Store:
    """The store behind a URI: a path or `file:///path`.

    Raises:
        StorageError: if there is no store for the URI's scheme.
    """
    text = str(uri)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStore(Path(text))
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
        raise StorageError(
            f"there is no store for {scheme}:// (in {text!r}): use a path or one of {known}"
        )
    return SCHEMES[scheme](text)


def _open_local(uri: str) -> Store:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise StorageError(
            f"{uri!r} names the machine {parts.netloc!r}: write file:///{parts.netloc}{parts.path}"
        )
    return LocalStore(Path(unquote(parts.path)))


SCHEMES: dict[str, Callable[[str], Store]] = {"file": _open_local}
"""Stores by URI scheme."""


def _copy_whole(source: Path, target: Path) -> Path:
    """Copies a committed directory, files and manifest as they are, verified and atomically."""
    manifest = verify_directory(source)
    target = target.absolute()
    if target.exists():
        raise StorageError(f"{target} exists already: choose another place or delete it")
    with partial_directory(target) as partial:
        for name in (*manifest.files, MANIFEST):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, partial / name)
        verify_directory(partial)
        publish(partial, target)
    return target
