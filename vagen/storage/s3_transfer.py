"""Uploads to an S3 server and downloads, in parts, in parallel and resumable.

An upload reads a file once, in order, and computes its SHA-256 while earlier parts are being sent.
Content that differs from the manifest never becomes an object: a small file is not sent, a
multipart upload is aborted. Each part is sent with its MD5, which the server checks (and with a
signed SHA-256 if the endpoint has no TLS, as botocore requires). `vagen.storage.s3` checks
downloads against the manifest. S3's own checksum headers are not used: servers other than AWS
reject or ignore them.
"""

import base64
import hashlib
import os
import random
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from vagen.config.s3 import S3Config
from vagen.storage.errors import CorruptArtifact, StorageError
from vagen.storage.manifest import FileEntry, check_digest
from vagen.storage.s3_client import code_of, in_parallel

_MIB = 1 << 20
_MAX_PARTS = 10_000
_LONGEST_PAUSE = 20.0
_UPLOADS = 3
"""Number of times to restart an upload that others end."""


class Transfer:
    """Uploads and downloads of one bucket.

    Args:
        client: A boto3 client.
        bucket: Name of the bucket.
        options: Part size, parallel requests, attempts.
    """

    def __init__(self, client: Any, bucket: str, options: S3Config) -> None:
        self._client = client
        self._bucket = bucket
        self._options = options

    def upload(
        self, files: Mapping[str, tuple[Path, FileEntry]], present: Mapping[str, int]
    ) -> None:
        """Uploads files under object names, and checks them against their manifest.

        Existing objects of the same size, and parts from interrupted uploads, are not sent again.
        So a name must always have the same content.

        Args:
            files: Local file and manifest entry, by object name.
            present: Size in bytes of existing objects.

        Raises:
            CorruptArtifact: A file differs from its manifest.
        """
        due = [name for name, (_, entry) in files.items() if present.get(name) != entry.size]
        limit = self._options.part_size_mib * _MIB
        small = [name for name in due if files[name][1].size <= limit]
        in_parallel(
            lambda name: self._put_file(name, *files[name]), small, self._options.max_concurrency
        )
        for name in due:
            if files[name][1].size > limit:
                self._upload_in_parts(name, *files[name])

    def download(self, files: Mapping[str, tuple[Path, int]]) -> None:
        """Downloads objects to local files.

        Args:
            files: File, whose folder exists, and size in bytes, by object name.

        Raises:
            SizeMismatch: An object has another size.
            ClientError: An object is missing (`NoSuchKey`), or another error of the server.
        """
        length = self._options.part_size_mib * _MIB
        ranges = []
        for name, (path, size) in files.items():
            with path.open("wb") as file:
                file.truncate(size)
            ranges += [
                (name, path, size, offset, min(length, size - offset))
                for offset in range(0, size, length)
            ]
        in_parallel(lambda part: self._get_range(*part), ranges, self._options.max_concurrency)

    def put(self, name: str, content: bytes, **conditions: str) -> None:
        """Writes one small object."""
        self._client.put_object(
            Bucket=self._bucket,
            Key=name,
            Body=content,
            ContentMD5=_content_md5(content),
            **conditions,
        )

    def get(self, name: str, **what: str) -> tuple[bytes, dict[str, Any]]:
        """Content of an object, or of a `Range` of it, and the server's response.

        botocore retries requests; this retries connections that break during the content.
        """
        for attempt in range(self._options.retries):
            answer = self._client.get_object(Bucket=self._bucket, Key=name, **what)
            try:
                return answer["Body"].read(), answer
            except (IncompleteReadError, HTTPClientError):
                if attempt + 1 == self._options.retries:
                    raise
                time.sleep(min(random.random() * 2**attempt, _LONGEST_PAUSE))
        raise AssertionError("retries is positive")

    def _get_range(self, name: str, path: Path, size: int, offset: int, length: int) -> None:
        try:
            content, answer = self.get(name, Range=f"bytes={offset}-{offset + length - 1}")
        except ClientError as error:
            if code_of(error) in ("InvalidRange", "416"):
                raise SizeMismatch(name) from error
            raise
        whole = int(answer["ContentRange"].rpartition("/")[2])
        if whole != size or len(content) != length:
            raise SizeMismatch(name)
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), content, offset)

    def _put_file(self, name: str, path: Path, entry: FileEntry) -> None:
        content = path.read_bytes()
        check_digest(path, entry, hashlib.sha256(content).hexdigest())
        self.put(name, content)

    def _upload_in_parts(self, name: str, path: Path, entry: FileEntry) -> None:
        for _ in range(_UPLOADS):
            try:
                self._attempt_in_parts(name, path, entry)
                return
            except ClientError as error:
                # Another writer of the same file may have completed or aborted it.
                if code_of(error) not in ("NoSuchUpload", "InvalidPart"):
                    raise
                if self._size(name) == entry.size:
                    return
        raise StorageError(
            f"s3://{self._bucket}/{name} could not be written: other processes ended its upload "
            f"{_UPLOADS} times; see that one process writes it, and that no rule of the bucket "
            "aborts uploads early"
        )

    def _attempt_in_parts(self, name: str, path: Path, entry: FileEntry) -> None:
        length = self._part_length(entry.size)
        about = {"Bucket": self._bucket, "Key": name}
        upload = self._unfinished(name)
        there = self._parts(name, upload) if upload else {}
        if upload is None:
            upload = self._client.create_multipart_upload(**about)["UploadId"]

        def send(_: int) -> dict[str, Any]:
            number, content = source.next()
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if there.get(number) == (len(content), digest):
                return {"PartNumber": number, "ETag": f'"{digest}"'}
            answer = self._client.upload_part(
                UploadId=upload,
                PartNumber=number,
                Body=content,
                ContentMD5=_content_md5(content),
                **about,
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        with closing(_Source(path, length)) as source:
            count = range(-(-entry.size // length))
            parts = in_parallel(send, count, self._options.max_concurrency)
            try:
                check_digest(path, entry, source.sha256())
            except CorruptArtifact:
                self._client.abort_multipart_upload(UploadId=upload, **about)
                raise
        parts.sort(key=lambda part: part["PartNumber"])
        self._client.complete_multipart_upload(
            UploadId=upload, MultipartUpload={"Parts": parts}, **about
        )

    def _part_length(self, size: int) -> int:
        """Bytes of a part: as configured, or more MiB if there would be too many."""
        fewest = -(-size // _MAX_PARTS)
        return max(self._options.part_size_mib, -(-fewest // _MIB)) * _MIB

    def _unfinished(self, name: str) -> str | None:
        """The newest unfinished upload of an object."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=name
        )
        found = [
            (upload["Initiated"], upload["UploadId"])
            for page in pages
            for upload in page.get("Uploads", ())
            if upload["Key"] == name
        ]
        return max(found)[1] if found else None

    def _parts(self, name: str, upload: str) -> dict[int, tuple[int, str]]:
        """Size and MD5 of the uploaded parts, by number.

        The ETag of an encrypted part is not its MD5, so the part is sent again.
        """
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=name, UploadId=upload
        )
        return {
            part["PartNumber"]: (part["Size"], part["ETag"].strip('"'))
            for page in pages
            for part in page.get("Parts", ())
        }

    def _size(self, name: str) -> int | None:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
        except ClientError as error:
            if code_of(error) in ("404", "NoSuchKey"):
                return None
            raise


class SizeMismatch(Exception):
    """An object's size differs from the manifest's; the argument is its name."""


class _Source:
    """A file that threads read part by part, in order, with its running digest."""

    def __init__(self, path: Path, length: int) -> None:
        self._file = path.open("rb")
        self._length = length
        self._number = 0
        self._sha256 = hashlib.sha256()
        self._lock = threading.Lock()

    def next(self) -> tuple[int, bytes]:
        """Number, from 1, and content of the next part."""
        with self._lock:
            content = self._file.read(self._length)
            self._sha256.update(content)
            self._number += 1
            return self._number, content

    def sha256(self) -> str:
        """SHA-256 of the whole file, including unread parts."""
        self._sha256.update(self._file.read())
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._file.close()


def _content_md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
