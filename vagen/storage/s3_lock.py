"""A lock on a key of an S3 store, made of plain objects.

A writer creates its own object next to the key's, then lists them all. Of two concurrent writers at
least one sees the other; a writer that sees another withdraws and retries. So two never hold the
lock together if a listing shows earlier writes (AWS, Ceph, MinIO; Swift while its containers keep
up). This needs neither conditional writes nor synchronised clocks: ages are by the server's clock.

A dead holder leaves its object, which others ignore after `LEASE` seconds. So a holder must not act
on the lock later than half of that after it started: see `HeldLock.fresh`.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from vagen.storage.errors import StorageError

LEASE = 120.0
"""Seconds."""
_PATIENCE = 3 * LEASE
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that is held."""

    since: float
    """`time.monotonic()` before the lock was requested."""

    @property
    def fresh(self) -> bool:
        """Whether the holder may still act on the lock."""
        return time.monotonic() - self.since < LEASE / 2


@contextmanager
def hold(
    client: Any, bucket: str, folder: str, put: Callable[[str, bytes], None]
) -> Iterator[HeldLock]:
    """Holds the lock whose objects have the prefix `folder` (which ends with `/`).

    Args:
        client: A boto3 client.
        bucket: Name of the bucket.
        folder: Prefix of the lock.
        put: Writes an object.

    Raises:
        StorageError: Others held it for too long.
    """
    deadline = time.monotonic() + _PATIENCE
    pause = 0.05
    while True:
        name = f"{folder}{uuid.uuid4().hex}"
        since = time.monotonic()
        put(name, b"")
        try:
            if _alone(client, bucket, folder, name):
                yield HeldLock(since)
                return
        finally:
            client.delete_object(Bucket=bucket, Key=name)
        if time.monotonic() > deadline:
            raise StorageError(
                f"s3://{bucket}/{folder} has been held by other writers for {_PATIENCE:.0f} s: see "
                "that one process at a time writes there"
            )
        time.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _alone(client: Any, bucket: str, folder: str, own: str) -> bool:
    """Whether there is no other live object; removes objects of dead holders."""
    answer = client.list_objects_v2(Bucket=bucket, Prefix=folder)
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    names = set()
    for entry in answer.get("Contents", ()):
        if (now - entry["LastModified"]).total_seconds() > LEASE and entry["Key"] != own:
            client.delete_object(Bucket=bucket, Key=entry["Key"])
        else:
            names.add(entry["Key"])
    return names == {own}
