"""Atomic directories on disk, verified by digest and kept in stores by URI."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from vagen.config.infra import S3Config
from vagen.storage.commit import (
    append_line,
    commit_directory,
    publish_manifest,
    read_lines,
    remove_all_stale,
    reuse_file,
    write_text,
    write_whole,
)
from vagen.storage.errors import CorruptArtifact, StorageError, StoreAway, storage_errors
from vagen.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    file_digest,
    parse_manifest,
    read_manifest,
    verify_directory,
    write_files,
)
from vagen.storage.store import LocalStore, Store, materialize
from vagen.storage.writer import Attempt, InUse, Superseded, check_newest, sole_writer

__all__ = [
    "MANIFEST",
    "Attempt",
    "CorruptArtifact",
    "FileEntry",
    "InUse",
    "LocalStore",
    "Manifest",
    "StorageError",
    "Store",
    "StoreAway",
    "Superseded",
    "append_line",
    "check_newest",
    "commit_directory",
    "file_digest",
    "materialize",
    "open_store",
    "parse_manifest",
    "publish_manifest",
    "read_lines",
    "read_manifest",
    "remove_all_stale",
    "reuse_file",
    "sole_writer",
    "storage_errors",
    "verify_directory",
    "write_files",
    "write_text",
    "write_whole",
]


def open_store(uri: str | Path, options: S3Config | None = None) -> Store:
    """The store behind a URI: a path, `file:///path` or `s3://bucket/prefix`.

    Raises:
        StorageError: There is no store for the URI's scheme, or the URI is invalid.
    """
    text = str(uri)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStore(Path(text))
    if scheme == "s3":
        # Imported on use: boto3 loads slowly, and most steps do not need it.
        from vagen.storage.s3 import S3Store

        return S3Store(text, options)
    if scheme != "file":
        raise StorageError(
            f"there is no store for {scheme}:// (in {text!r}): use a path or one of file://, s3://"
        )
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise StorageError(
            f"{text!r} names the machine {parts.netloc!r}: write file:///{parts.netloc}{parts.path}"
        )
    return LocalStore(Path(unquote(parts.path)))
