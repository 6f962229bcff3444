"""Atomic directories on disk, verified by digest and kept in stores by URI."""

from vagen.storage.commit import commit_directory, publish_manifest, remove_all_stale, reuse_file
from vagen.storage.errors import CorruptArtifact, StorageError, StoreAway, storage_errors
from vagen.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    directory_digest,
    file_digest,
    parse_manifest,
    read_manifest,
    verify_directory,
    write_files,
)
from vagen.storage.opening import open_store
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
    "check_newest",
    "commit_directory",
    "directory_digest",
    "file_digest",
    "materialize",
    "open_store",
    "parse_manifest",
    "publish_manifest",
    "read_manifest",
    "remove_all_stale",
    "reuse_file",
    "sole_writer",
    "storage_errors",
    "verify_directory",
    "write_files",
]
