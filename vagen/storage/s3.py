"""A store in a bucket of AWS S3 or a compatible server.

A committed directory with the key `runs/a/levels` consists of

    runs/a/levels/manifest.json                 the directory's own, byte by byte
    runs/a/levels/.data/4f1d…/levels.json       its files, below the SHA-256 of manifest.json

Files are uploaded first and the manifest last. The manifest makes the directory exist atomically,
since readers use the manifest they fetched. A writer that dies leaves files without a manifest;
another upload of the same directory reuses them, and `vagen.storage.collect` removes the rest.
Writers of one key take turns only while the manifest changes (`vagen.storage.s3_lock`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from vagen.config.s3 import S3Config
from vagen.storage.commit import partial_directory, publish
from vagen.storage.errors import CorruptArtifact, StorageError, storage_errors
from vagen.storage.manifest import (
    MANIFEST,
    Manifest,
    check_present,
    file_digest,
    parse_manifest,
    read_manifest,
)
from vagen.storage.s3_client import code_of, in_parallel, make_client, s3_errors
from vagen.storage.s3_lock import HeldLock, hold
from vagen.storage.s3_transfer import SizeMismatch, Transfer
from vagen.storage.store import check_key, missing_key

DATA, LOCK = ".data", ".lock"
_MISSING = ("NoSuchKey", "404")
_CHANGED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", *_MISSING)
_READS = 3
"""Number of attempts to read a directory that changes meanwhile."""


class S3Store:
    """See `vagen.storage.store.Store`.

    Args:
        uri: `s3://bucket` or `s3://bucket/prefix`.
        options: Options of the server.

    Raises:
        StorageError: The URI or the options are invalid. No request is sent.
    """

    def __init__(self, uri: str, options: S3Config | None = None) -> None:
        self.bucket, self.prefix = _split(uri)
        self.uri = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        self.options = options or S3Config()
        self.client: Any = make_client(self.options)
        self._transfer = Transfer(self.client, self.bucket, self.options)
        self._conditional = True
        """Whether the server supports conditional writes; assumed until it rejects one."""

    def put_directory(
        self,
        source: Path,
        key: str,
        *,
        replace: bool = False,
        guard: Callable[[], None] | None = None,
    ) -> str:
        """See `Store.put_directory`."""
        check_key(key)
        source = Path(source)
        manifest = read_manifest(source)
        content = (source / MANIFEST).read_bytes()
        uri = f"{self.uri}/{key}"
        with s3_errors(uri):
            if self._settled(key, content, manifest, replace):
                return uri
            folder = self._data_folder(key, content)
            files = {f"{folder}{name}": (source / name, e) for name, e in manifest.files.items()}
            with storage_errors(source):
                check_present(source, manifest, manifest.files)
                self._transfer.upload(files, self._sizes(folder))
            while not self._commit(key, source, manifest, replace, guard):
                pass
        return uri

    def fetch_directory(self, key: str, target: Path, part: str = "") -> Path:
        """See `Store.fetch_directory`."""
        target = Path(target).absolute()
        if target.exists():
            raise StorageError(f"{target} exists already: choose another place or delete it")
        with s3_errors(f"{self.uri}/{key}"):
            content = self.manifest(key)
            for _ in range(_READS):
                try:
                    with partial_directory(target) as partial:
                        self._fetch(key, content, partial, part)
                        publish(partial, target)
                    return target
                except CorruptArtifact:
                    # It may have been replaced during the download.
                    if (newer := self.manifest(key)) == content:
                        raise
                    content = newer
        raise StorageError(f"{self.uri}/{key} changes faster than it can be read: try again later")

    def manifest(self, key: str) -> bytes:
        """See `Store.manifest`."""
        found = self._current(check_key(key))
        if found is None:
            raise missing_key(self.uri, key)
        return found[0]

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        return self._current(check_key(key)) is not None

    def list(self, prefix: str = "") -> list[str]:
        """See `Store.list`."""
        start = prefix.rstrip("/")
        keys = (
            name.removesuffix(f"/{MANIFEST}")
            for name, _ in self.objects(f"{start}/" if start else "")
            if name.endswith(f"/{MANIFEST}")
        )
        return sorted(key for key in keys if not any(p.startswith(".") for p in key.split("/")))

    def delete(self, key: str, *, guard: Callable[[], None] | None = None) -> None:
        """See `Store.delete`."""
        check_key(key)
        with s3_errors(f"{self.uri}/{key}"):
            if self._current(key) is None:
                return
            with self._lock(key):
                found = self._current(key)
                if guard is not None:
                    guard()
                self._delete_object(self._name(f"{key}/{MANIFEST}"))
                if found is not None:
                    self._delete_below(self._data_folder(key, found[0]))

    def write_file(self, name: str, content: bytes) -> None:
        """See `Store.write_file`."""
        with s3_errors(f"{self.uri}/{name}"):
            self._transfer.put(self._name(check_key(name)), content)

    def read_file(self, name: str) -> bytes | None:
        """See `Store.read_file`."""
        with s3_errors(f"{self.uri}/{name}"):
            found = self._get(self._name(check_key(name)))
        return found[0] if found else None

    def objects(self, start: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Objects whose name in the store starts with `start`: that name, and the listed entry.

        The entry has `Size` in bytes, `LastModified`, and `Key`, the name in the bucket.
        """
        whole = self._name(start)
        skip = len(whole) - len(start)
        with s3_errors(self.uri):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=whole
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    yield entry["Key"][skip:], entry

    def uploads(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All unfinished multipart uploads: name in the store, and entry."""
        start = self._name("")
        with s3_errors(self.uri):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=start
            )
            for page in pages:
                for entry in page.get("Uploads", ()):
                    yield entry["Key"].removeprefix(start), entry

    def delete_objects(self, names: Sequence[str]) -> None:
        """Removes objects by their names in the store."""
        with s3_errors(self.uri):
            in_parallel(
                lambda name: self._delete_object(self._name(name)),
                names,
                self.options.max_concurrency,
            )

    def abort_upload(self, entry: dict[str, Any]) -> None:
        """Aborts an upload of `uploads` and frees its parts."""
        with s3_errors(self.uri):
            try:
                self.client.abort_multipart_upload(
                    Bucket=self.bucket, Key=entry["Key"], UploadId=entry["UploadId"]
                )
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

    def _settled(self, key: str, content: bytes, manifest: Manifest, replace: bool) -> bool:
        """Whether `key` already has the directory.

        Raises:
            StorageError: It has another, which must not be replaced.
        """
        found = self._current(key)
        if found is None:
            return False
        if found[0] == content:
            return True
        if replace:
            return False
        if parse_manifest(found[0], f"{self.uri}/{key}/{MANIFEST}").digest == manifest.digest:
            return True
        raise StorageError(f"{self.uri}/{key} exists already: choose another place or delete it")

    def _commit(
        self,
        key: str,
        source: Path,
        manifest: Manifest,
        replace: bool,
        guard: Callable[[], None] | None,
    ) -> bool:
        """Makes the uploaded files a directory, which may replace another.

        Returns:
            False if another writer was faster, and everything must be checked again.
        """
        content = (source / MANIFEST).read_bytes()
        folder = self._data_folder(key, content)
        with self._lock(key) as held:
            try:
                settled = self._settled(key, content, manifest, replace)
            except StorageError:
                self._delete_below(folder)
                raise
            found = self._current(key)
            if settled:
                if found is not None and found[0] != content:
                    self._delete_below(folder)
                return True
            self._expect(source, manifest, folder)
            if guard is not None:
                guard()
            if not held.fresh or not self._put_manifest(key, content, found[1] if found else None):
                return False
            if found is not None:
                self._delete_below(self._data_folder(key, found[0]))
        return True

    def _lock(self, key: str) -> AbstractContextManager[HeldLock]:
        return hold(self.client, self.bucket, self._name(f"{key}/{LOCK}/"), self._transfer.put)

    def _put_manifest(self, key: str, content: bytes, tag: str | None) -> bool:
        """Writes the manifest if the existing one has the ETag `tag` (None: if there is none).

        Returns:
            Whether it was written; always True on servers without conditional writes.
        """
        name = self._name(f"{key}/{MANIFEST}")
        if self._conditional:
            try:
                condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
                self._transfer.put(name, content, **condition)
                return True
            except ClientError as error:
                if code_of(error) in _CHANGED:
                    return False
                if code_of(error) not in ("NotImplemented", "501"):
                    raise
                self._conditional = False
        self._transfer.put(name, content)
        return True

    def _fetch(self, key: str, content: bytes, folder: Path, part: str) -> None:
        """Downloads the files of a manifest into a folder and verifies them."""
        uri = f"{self.uri}/{key}"
        manifest = parse_manifest(content, f"{uri}/{MANIFEST}")
        (folder / MANIFEST).write_bytes(content)
        start = self._data_folder(key, content)
        files = {}
        for name, entry in manifest.part(part).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            files[f"{start}{name}"] = (folder / name, entry.size)
        self._download(files)
        right = in_parallel(
            lambda name: _matches(folder, manifest, name[len(start) :]),
            list(files),
            self.options.max_concurrency,
        )
        wrong = {name: files[name] for name, ok in zip(files, right, strict=True) if not ok}
        # Retry once: this repairs transfer errors, but not wrong content on the server.
        self._download(wrong)
        for name in wrong:
            if not _matches(folder, manifest, inner := name[len(start) :]):
                raise CorruptArtifact(
                    f"s3://{self.bucket}/{name} is corrupt: the manifest of {uri} has SHA-256 "
                    f"{manifest.files[inner].sha256} ({manifest.files[inner].size} bytes), the "
                    f"object has {file_digest(folder / inner)}; restore the object, or delete "
                    f"{key!r} and make it again"
                )

    def _download(self, files: dict[str, tuple[Path, int]]) -> None:
        try:
            self._transfer.download(files)
        except SizeMismatch as error:
            raise CorruptArtifact(
                f"s3://{self.bucket}/{error} is corrupt: its size is not the manifest's "
                f"{files[str(error)][1]} bytes; delete the directory and make it again"
            ) from error
        except ClientError as error:
            if code_of(error) not in _MISSING:
                raise
            missing = error.response.get("Error", {}).get("Key", "an object")
            raise CorruptArtifact(
                f"s3://{self.bucket}/{missing} is missing, which a manifest of {self.uri} names; "
                "delete the directory and make it again"
            ) from error

    def _current(self, key: str) -> tuple[bytes, str] | None:
        """Content and ETag of a key's manifest; None if there is none."""
        with s3_errors(f"{self.uri}/{key}"):
            return self._get(self._name(f"{key}/{MANIFEST}"))

    def _get(self, name: str) -> tuple[bytes, str] | None:
        try:
            content, answer = self._transfer.get(name)
        except ClientError as error:
            if code_of(error) in _MISSING:
                return None
            raise
        return content, answer["ETag"]

    def _data_folder(self, key: str, content: bytes) -> str:
        return self._name(f"{key}/{DATA}/{data_id(content)}/")

    def _sizes(self, folder: str) -> dict[str, int]:
        start = self._name("")
        below = self.objects(folder.removeprefix(start))
        return {entry["Key"]: entry["Size"] for _, entry in below}

    def _expect(self, source: Path, manifest: Manifest, folder: str) -> None:
        """Raises an error if the server has lost files in the meantime."""
        present = self._sizes(folder)
        for name, entry in manifest.files.items():
            if present.get(f"{folder}{name}") != entry.size:
                raise StorageError(
                    f"{name} of {source} was put to s3://{self.bucket}/{folder} and is not listed "
                    f"there with its {entry.size} bytes: was it deleted meanwhile? put it again"
                )

    def _delete_below(self, folder: str) -> None:
        names = list(self._sizes(folder))
        in_parallel(self._delete_object, names, self.options.max_concurrency)

    def _delete_object(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=name)

    def _name(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


def data_id(content: bytes) -> str:
    """Name of the data folder of a manifest."""
    return hashlib.sha256(content).hexdigest()[:32]


def _matches(folder: Path, manifest: Manifest, name: str) -> bool:
    return file_digest(folder / name) == manifest.files[name].sha256


def _split(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        raise StorageError(
            "keys do not belong into a store's URI: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, and write s3://bucket/prefix"
        )
    if not parts.netloc or parts.query or parts.fragment:
        raise StorageError(f"{uri!r} names no bucket: write s3://bucket or s3://bucket/prefix")
    prefix = parts.path.strip("/")
    return parts.netloc, check_key(prefix) if prefix else ""
