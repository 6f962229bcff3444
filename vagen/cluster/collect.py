"""Deletes RayClusters that runs have left behind, in case a pipeline's exit handler did not."""

from dataclasses import dataclass
from datetime import UTC, datetime

from vagen.cluster.errors import ApiError
from vagen.cluster.kube import RAYCLUSTERS, Kube, Object
from vagen.cluster.names import LEASE_UNTIL, LEASED, RUN_NAME, parse_time

TRIES = 5
"""Number of retries for an object that changes before its deletion."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object that `gc` reports."""

    kind: str
    name: str
    run: str
    why: str
    removed: bool
    """Whether deletion was requested, or would be in a dry run."""

    def __str__(self) -> str:
        verb = "removed" if self.removed else "kept"
        return f"{verb}: {self.kind} {self.name} of run {self.run or '?'}: {self.why}"


def gc(kube: Kube, *, dry_run: bool = False, now: datetime | None = None) -> list[Leftover]:
    """Deletes RayClusters whose lease has expired.

    Rechecks clusters that change in the meantime, e.g. by a renewed lease.

    Args:
        kube: The API server.
        dry_run: Whether to delete nothing.
        now: Replaces the current time in tests.
    """
    now = now or datetime.now(UTC)
    items = kube.list(RAYCLUSTERS, f"{LEASED}=true").items
    return [leftover for item in items if (leftover := _collect(kube, item, now, dry_run))]


def _collect(kube: Kube, item: Object, now: datetime, dry_run: bool) -> Leftover | None:
    """Deletes an expired cluster if it has not changed since it was read."""
    name = item["metadata"]["name"]
    run = item["metadata"].get("annotations", {}).get(RUN_NAME, "")
    found: Object | None = item
    for _ in range(TRIES):
        if found is None:
            return None
        metadata = found["metadata"]
        if since := metadata.get("deletionTimestamp"):
            return Leftover("RayCluster", name, run, f"is being deleted since {since}", False)
        until = metadata.get("annotations", {}).get(LEASE_UNTIL, "")
        if not _is_time(until):
            why = f"annotation {LEASE_UNTIL} is no time: {until!r}"
            return Leftover("RayCluster", name, run, why, False)
        if parse_time(until) > now:
            return None
        if dry_run or _delete(kube, metadata):
            return Leftover("RayCluster", name, run, f"its lease ended at {until}", True)
        found = kube.get(RAYCLUSTERS, name)
    return Leftover("RayCluster", name, run, "it changes all the time", False)


def _delete(kube: Kube, metadata: Object) -> bool:
    """False if it has changed since it was read."""
    try:
        kube.delete(
            RAYCLUSTERS,
            metadata["name"],
            foreground=True,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )
    except ApiError as error:
        if error.status != 409:
            raise
        return False
    return True


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    return True
