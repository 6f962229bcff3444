"""Opens a store by URI."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from vagen.storage.errors import StorageError
from vagen.storage.store import LocalStore, Store

if TYPE_CHECKING:
    from vagen.config.s3 import S3Config


def open_store(uri: str | Path, options: "S3Config | None" = None) -> Store:
    """The store behind a URI: a path, `file:///path` or `s3://bucket/prefix`.

    Args:
        uri: URI of the store.
        options: Options of an S3 server; unused otherwise.

    Raises:
        StorageError: There is no store for the URI's scheme, or the URI is invalid.
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
    return SCHEMES[scheme](text, options)


def _open_local(uri: str, options: "S3Config | None") -> Store:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise StorageError(
            f"{uri!r} names the machine {parts.netloc!r}: write file:///{parts.netloc}{parts.path}"
        )
    return LocalStore(Path(unquote(parts.path)))


def _open_s3(uri: str, options: "S3Config | None") -> Store:
    # Imported on use: boto3 loads slowly, and most steps do not need it.
    from vagen.storage.s3 import S3Store

    return S3Store(uri, options)


SCHEMES: dict[str, Callable[[str, "S3Config | None"], Store]] = {
    "file": _open_local,
    "s3": _open_s3,
}
"""Functions that open a store, by URI scheme."""
