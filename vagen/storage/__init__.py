"""Directories on disk: whole or absent, checked by digest, kept in stores by URI."""

from vagen.storage.commit import commit_directory, publish_manifest, reuse_file
from vagen.storage.errors import CorruptArtifact, StorageError, storage_errors
from vagen.storage.fence import Superseded, claim, describe_attempt
from vagen.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    directory_digest,
    file_digest,
    parse_manifest,
    read_manifest,
    verify_directory,
)
from vagen.storage.store import LocalStore, Store, materialize, open_store

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
    "describe_attempt",
    "directory_digest",
    "file_digest",
    "materialize",
    "open_store",
    "parse_manifest",
    "publish_manifest",
    "read_manifest",
    "reuse_file",
    "storage_errors",
    "verify_directory",
]
