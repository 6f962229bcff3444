"""Collecting what runs have left behind: the backstop to the pipeline's exit handler."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from vagen.cluster.errors import ApiError
from vagen.cluster.jobs import TERMINAL
from vagen.cluster.kube import RAYCLUSTERS, RAYJOBS, Kube, Object, Resource
from vagen.cluster.names import EXPIRES_AT, RAY_CLUSTER, RUN_NAME, TTL, parse_time

ORPHAN_AGE = timedelta(hours=1)
"""How long a finished RayJob whose RayCluster is gone is kept."""


TRIES = 5
"""How often an object is looked at again that changes while it is to be deleted."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that `gc` looked at and has a word on."""

    kind: str
    name: str
    run: str
    why: str
    removed: bool
    """Deletion has been asked for; in a dry run, would be."""

    def __str__(self) -> str:
        verb = "removed" if self.removed else "kept"
        return f"{verb}: {self.kind} {self.name} of run {self.run or '?'}: {self.why}"


def gc(kube: Kube, *, dry_run: bool = False, now: datetime | None = None) -> list[Leftover]:
    """Deletes RayClusters and RayJobs with the TTL label whose time is over.

    What somebody changes in the meantime is looked at again: a step may have extended its time.

    Args:
        kube: The API server.
        dry_run: Delete nothing.
        now: Instead of the present, for tests.
    """
    now = now or datetime.now(UTC)
    label = f"{TTL}=true"

    def collect(resource: Resource, why: Callable[[Object], str]) -> Iterator[Leftover]:
        for item in kube.list(resource, label).items:
            yield from _collect(kube, resource, item, why, dry_run)

    found = list(collect(RAYCLUSTERS, lambda item: _overdue(item, now)))
    clusters = {one["metadata"]["name"] for one in kube.list(RAYCLUSTERS).items}
    found += collect(RAYJOBS, lambda item: _overdue(item, now) or _orphaned(item, clusters, now))
    return found


def _overdue(item: Object, now: datetime) -> str:
    """Why it is to go; empty if it is not."""
    expires = _expires(item)
    overdue = _is_time(expires) and parse_time(expires) <= now
    return f"expired at {expires}" if overdue else ""


def _orphaned(job: Object, clusters: set[str], now: datetime) -> str:
    status = job.get("status", {})
    cluster = job["spec"].get("clusterSelector", {}).get(RAY_CLUSTER)
    ended = status.get("endTime") or job["metadata"]["creationTimestamp"]
    if cluster in clusters or status.get("jobDeploymentStatus") not in TERMINAL:
        return ""
    if now - parse_time(ended) < ORPHAN_AGE:
        return ""
    return f"finished at {ended}, and its RayCluster {cluster} is gone"


def _collect(
    kube: Kube, resource: Resource, item: Object, why: Callable[[Object], str], dry_run: bool
) -> Iterator[Leftover]:
    """Deletes an object as it was when it was found to be overdue, and only that."""
    kind, name = item["kind"], item["metadata"]["name"]
    run = item["metadata"].get("annotations", {}).get(RUN_NAME, "")
    found: Object | None = item
    for _ in range(TRIES):
        if found is None:
            return
        since, reason = found["metadata"].get("deletionTimestamp"), why(found)
        if since:
            yield Leftover(kind, name, run, f"is being deleted since {since}", False)
        elif reason and (dry_run or _delete(kube, resource, found["metadata"])):
            yield Leftover(kind, name, run, reason, True)
        elif reason:
            found = kube.get(resource, name)
            continue
        elif not _is_time(_expires(found)):
            text = f"annotation {EXPIRES_AT} is no time: {_expires(found)!r}"
            yield Leftover(kind, name, run, text, False)
        return
    yield Leftover(kind, name, run, "it changes all the time", False)


def _delete(kube: Kube, resource: Resource, metadata: Object) -> bool:
    """False if it has changed since it was read."""
    try:
        kube.delete(
            resource,
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


def _expires(item: Object) -> str:
    return item["metadata"].get("annotations", {}).get(EXPIRES_AT, "")


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    return True
