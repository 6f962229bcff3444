"""A store in a bucket of AWS S3 or a compatible server.

A committed directory with the key `runs/a/levels` consists of

    runs/a/levels/manifest.json                 the directory's own, byte by byte
    runs/a/levels/.data/4f1d…/levels.json       its files, below the SHA-256 of manifest.json

Files are uploaded first and the manifest last. The manifest makes the directory exist atomically,
since readers use the manifest they fetched. A writer that dies leaves files without a manifest;
another upload of the same directory reuses them, and `vagen.storage.collect` removes the rest.
A manifest is written on the condition that the earlier one is still there, or that there is none.
So the server decides between writers of one key.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from vagen.config.infra import S3Config
from vagen.storage.commit import partial_directory, publish
from vagen.storage.errors import CorruptArtifact, StorageError, storage_errors
from vagen.storage.manifest import (
    MANIFEST,
    Manifest,
    file_digest,
    in_threads,
    parse_manifest,
    read_manifest,
    verify_directory,
)
from vagen.storage.s3_client import code_of, make_client, s3_errors
from vagen.storage.store import check_key, missing_key

DATA = ".data"
_MISSING = ("NoSuchKey", "404")
_CHANGED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", *_MISSING)
_ATTEMPTS = 3
"""Number of attempts at a directory that other processes change meanwhile."""


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
        self._checked = False

    def check(self) -> None:
        """See `Store.check`; sends one conditional write that must fail."""
        name = self._name("check")
        with s3_errors(self.uri):
            try:
                self._put(name, b"", IfMatch='"0"')
                self._delete_object(name)
            except ClientError as error:
                if code_of(error) in _CHANGED:
                    self._checked = True
                    return
                if code_of(error) not in ("NotImplemented", "501"):
                    raise
        raise StorageError(
            f"cannot use {self.uri}: its server has no conditional writes (If-Match, "
            "If-None-Match), without which several writers would overwrite each other: take a "
            "server that has them, such as AWS, Ceph, MinIO or SeaweedFS"
        )

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
        uri, folder = f"{self.uri}/{key}", self._data_folder(key, content)
        while True:
            found = self._current(key)
            if found is not None and found[0] == content:
                return uri
            if found is not None and not replace:
                self._delete_below(folder)
                if parse_manifest(found[0], f"{uri}/{MANIFEST}").digest == manifest.digest:
                    return uri
                raise StorageError(f"{uri} exists already: choose another place or delete it")
            self._upload(source, manifest, folder)
            if guard is not None:
                guard()
            if self._put_manifest(key, content, found[1] if found else None):
                break
        # Another writer of the same content may have removed the files just before.
        self._upload(source, manifest, folder)
        if found is not None:
            self._delete_below(self._data_folder(key, found[0]))
        return uri

    def fetch_directory(self, key: str, target: Path, part: str = "") -> Path:
        """See `Store.fetch_directory`."""
        target = Path(target).absolute()
        if target.exists():
            raise StorageError(f"{target} exists already: choose another place or delete it")
        content = self.manifest(key)
        for _ in range(_ATTEMPTS):
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
        found = self._current(check_key(key))
        if found is None:
            return
        if guard is not None:
            guard()
        with s3_errors(f"{self.uri}/{key}"):
            self._delete_object(self._name(f"{key}/{MANIFEST}"))
        self._delete_below(self._data_folder(key, found[0]))

    def write_file(self, name: str, content: bytes) -> None:
        """See `Store.write_file`."""
        self._check_once()
        with s3_errors(f"{self.uri}/{name}"):
            self._put(self._name(check_key(name)), content)

    def read_file(self, name: str) -> bytes | None:
        """See `Store.read_file`."""
        found = self._get(check_key(name))
        return found[0] if found else None

    def objects(self, start: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Objects whose name in the store starts with `start`: that name, and the listed entry.

        The entry has `Size` in bytes, and `LastModified`.
        """
        return self._listed("list_objects_v2", "Contents", start)

    def uploads(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All unfinished multipart uploads: name in the store, and entry."""
        return self._listed("list_multipart_uploads", "Uploads", "")

    def delete_objects(self, names: Iterable[str]) -> None:
        """Removes objects by their names in the store."""
        with s3_errors(self.uri):
            whole = [self._name(name) for name in names]
            in_threads(self._delete_object, whole, self.options.max_concurrency)

    def abort_upload(self, entry: dict[str, Any]) -> None:
        """Aborts an upload of `uploads` and frees its parts."""
        with s3_errors(self.uri), suppress(self.client.exceptions.NoSuchUpload):
            self.client.abort_multipart_upload(
                Bucket=self.bucket, Key=entry["Key"], UploadId=entry["UploadId"]
            )

    def _upload(self, source: Path, manifest: Manifest, folder: str) -> None:
        """Uploads the files of a directory that the store does not have yet.

        Raises:
            CorruptArtifact: A file differs from its manifest; nothing is uploaded.
        """
        self._check_once()
        verify_directory(source)
        missing = list(manifest.files)
        for attempt in range(_ATTEMPTS + 1):
            sizes = {name[len(folder) :]: entry["Size"] for name, entry in self.objects(folder)}
            missing = [n for n, entry in manifest.files.items() if sizes.get(n) != entry.size]
            if not missing:
                return
            if attempt == _ATTEMPTS:
                break
            with (
                s3_errors(f"{self.uri}/{folder}"),
                storage_errors(source),
                # Another writer of the same file may have completed or aborted its upload.
                suppress(self.client.exceptions.NoSuchUpload),
                self._transfers() as transfers,
            ):
                futures = [
                    transfers.upload(str(source / name), self.bucket, self._name(folder + name))
                    for name in missing
                ]
                for future in futures:
                    future.result()
        raise StorageError(
            f"{missing[0]} of {source} was put to {self.uri}/{folder} and is not listed there with "
            f"its {manifest.files[missing[0]].size} bytes: was it deleted meanwhile? put it again"
        )

    def _fetch(self, key: str, content: bytes, folder: Path, part: str) -> None:
        """Downloads the files of a manifest into a folder and verifies them."""
        uri = f"{self.uri}/{key}"
        manifest = parse_manifest(content, f"{uri}/{MANIFEST}")
        (folder / MANIFEST).write_bytes(content)
        start = self._data_folder(key, content)
        due = list(manifest.part(part))
        for name in due:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # The second time repairs transfer errors, but not wrong content on the server.
        for _ in range(2):
            self._download({f"{start}{name}": folder / name for name in due})
            digests = in_threads(lambda name: file_digest(folder / name), due)
            found = dict(zip(due, digests, strict=True))
            due = [name for name in due if found[name] != manifest.files[name].sha256]
        for name in due:
            entry = manifest.files[name]
            raise CorruptArtifact(
                f"{self.uri}/{start}{name} is corrupt: the manifest of {uri} has SHA-256 "
                f"{entry.sha256} ({entry.size} bytes), the object has {found[name]}; restore the "
                f"object, or delete {key!r} and make it again"
            )

    def _download(self, files: dict[str, Path]) -> None:
        with s3_errors(self.uri), self._transfers() as transfers:
            futures = {
                name: transfers.download(self.bucket, self._name(name), str(path))
                for name, path in files.items()
            }
            for name, future in futures.items():
                try:
                    future.result()
                except ClientError as error:
                    if code_of(error) not in _MISSING:
                        raise
                    raise CorruptArtifact(
                        f"{self.uri}/{name} is missing, which a manifest names; delete the "
                        "directory and make it again"
                    ) from error

    def _transfers(self) -> Any:
        """boto3's transfers of files in parallel and in parts, as a context manager."""
        config = TransferConfig(
            multipart_threshold=self.options.part_size_mib << 20,
            multipart_chunksize=self.options.part_size_mib << 20,
            max_concurrency=self.options.max_concurrency,
            num_download_attempts=self.options.retries,
            preferred_transfer_client="classic",
        )
        return create_transfer_manager(self.client, config)

    def _check_once(self) -> None:
        """Rejects a server without conditional writes before anything is written."""
        if not self._checked:
            self.check()

    def _put_manifest(self, key: str, content: bytes, tag: str | None) -> bool:
        """Writes the manifest if the existing one has the ETag `tag` (None: if there is none).

        Returns:
            False if another writer was faster, and everything must be checked again.
        """
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        with s3_errors(f"{self.uri}/{key}"):
            try:
                self._put(self._name(f"{key}/{MANIFEST}"), content, **condition)
            except ClientError as error:
                if code_of(error) not in _CHANGED:
                    raise
                return False
        return True

    def _put(self, name: str, content: bytes, **conditions: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=name, Body=content, **conditions)

    def _current(self, key: str) -> tuple[bytes, str] | None:
        """Content and ETag of a key's manifest; None if there is none."""
        return self._get(f"{key}/{MANIFEST}")

    def _get(self, name: str) -> tuple[bytes, str] | None:
        """Content and ETag of a small object; None if there is none."""
        with s3_errors(f"{self.uri}/{name}"):
            # botocore retries requests, but not connections that break during the content.
            for attempt in range(1, self.options.retries + 1):
                try:
                    answer = self.client.get_object(Bucket=self.bucket, Key=self._name(name))
                except ClientError as error:
                    if code_of(error) in _MISSING:
                        return None
                    raise
                try:
                    return answer["Body"].read(), answer["ETag"]
                except (IncompleteReadError, HTTPClientError):
                    if attempt == self.options.retries:
                        raise
        raise AssertionError("retries is positive")

    def _listed(
        self, operation: str, field: str, start: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Pages of a listing: names in the store that start with `start`, and entries."""
        skip = len(self._name(""))
        with s3_errors(self.uri):
            pages = self.client.get_paginator(operation).paginate(
                Bucket=self.bucket, Prefix=self._name(start)
            )
            for page in pages:
                for entry in page.get(field, ()):
                    yield entry["Key"][skip:], entry

    def _delete_below(self, folder: str) -> None:
        self.delete_objects(name for name, _ in self.objects(folder))

    def _delete_object(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=name)

    def _data_folder(self, key: str, content: bytes) -> str:
        return f"{key}/{DATA}/{data_id(content)}/"

    def _name(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


def data_id(content: bytes) -> str:
    """Name of the data folder of a manifest."""
    return hashlib.sha256(content).hexdigest()[:32]


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
