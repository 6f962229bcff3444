"""A lock on a key of an S3 store, made of objects alone.

Who wants it writes an object of its own beside the key's, then lists them all: of two who do so at
the same time at least one sees the other, and who sees another withdraws and tries again later. So
two never hold it together where a listing shows what was written before it (AWS, Ceph, MinIO; Swift
while its containers keep up). Neither conditional writes nor clocks that agree are needed: ages are
the server's own.

A holder that dies leaves its object. After `LEASE` seconds others take no notice of it, so a holder
must not act on the lock later than half of that after it began: see `HeldLock.fresh`.
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
    """`time.monotonic()` before it was asked for."""

    @property
    def fresh(self) -> bool:
        """Whether its holder may still act on it."""
        return time.monotonic() - self.since < LEASE / 2


@contextmanager
def hold(
    client: Any, bucket: str, folder: str, put: Callable[[str, bytes], None]
) -> Iterator[HeldLock]:
    """Holds the lock whose objects are below `folder` (a prefix that ends with `/`).

    Args:
        client: Of boto3.
        bucket: Name of the bucket.
        folder: The lock's own prefix.
        put: Writes an object.

    Raises:
        StorageError: Others kept it for too long.
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
                f"s3://{bucket}/{folder} is held by other writers since {_PATIENCE:.0f} s: see "
                "that one process at a time writes there"
            )
        time.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _alone(client: Any, bucket: str, folder: str, own: str) -> bool:
    """Whether nobody else's object is there; what the dead left is removed."""
    answer = client.list_objects_v2(Bucket=bucket, Prefix=folder)
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    names = set()
    for entry in answer.get("Contents", ()):
        if (now - entry["LastModified"]).total_seconds() > LEASE and entry["Key"] != own:
            client.delete_object(Bucket=bucket, Key=entry["Key"])
        else:
            names.add(entry["Key"])
    return names == {own}
