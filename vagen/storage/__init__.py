"""Directories on disk: whole or absent, checked by digest, kept in stores by URI."""

from vagen.storage.commit import commit_directory, reuse_file
from vagen.storage.errors import CorruptArtifact, StorageError, storage_errors
from vagen.storage.fence import Superseded, claim
from vagen.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    directory_digest,
    file_digest,
    read_manifest,
    verify_directory,
)
from vagen.storage.store import LocalStore, Store, open_store

__all__ = [
    "MANIFEST",
    "CorruptArtifact",
    "FileEntry",
    "LocalStore",
    "Manifest",
    "StorageError",
    "Store",
    "Superseded",
    "claim",
    "commit_directory",
    "directory_digest",
    "file_digest",
    "open_store",
    "read_manifest",
    "reuse_file",
    "storage_errors",
    "verify_directory",
]
