"""Storage errors, with messages for users."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or choose another `output_dir`",
    errno.EDQUOT: "the disk quota is used up: free some space, or choose another `output_dir`",
    errno.EROFS: "the file system is read-only: choose a writable `output_dir`",
    errno.EACCES: "permission denied: make the folder writable, or choose another `output_dir`",
    errno.EPERM: "permission denied: make the folder writable, or choose another `output_dir`",
    errno.ENOENT: "a part of the path does not exist and cannot be created: check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder: check the path",
    errno.EEXIST: "a part of the path is a file, not a folder: check the path",
    errno.ENAMETOOLONG: "a name in the path is too long: choose a shorter one",
    errno.EIO: "the disk reports an input/output error: check the device",
}
_ANYWHERE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors of the disk, which concern the folder even if they name no path in it."""


class StorageError(ValueError):
    """A folder that cannot be read or written; the message says which, why, and what to do."""


class StoreAway(StorageError):
    """A store that does not respond or is temporarily failing; a retry may succeed."""


class CorruptArtifact(StorageError):
    """A file that differs from its manifest; the message has its name and both digests."""


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Converts `OSError` about `folder` to `StorageError`.

    Passes errors about other paths unchanged.
    """
    try:
        yield
    except OSError as error:
        advice, where, concerns = _ADVICE.get(error.errno or 0), "", error.errno in _ANYWHERE
        if error.filename is not None:
            path, whole = Path(str(error.filename)).absolute(), folder.absolute()
            concerns |= path.is_relative_to(whole) or whole.is_relative_to(path)
            where = "" if path == whole else f" (at {error.filename})"
        if advice is None or not concerns:
            raise
        raise StorageError(f"cannot use the folder {folder}: {advice}{where}") from error
