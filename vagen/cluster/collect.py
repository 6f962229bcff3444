"""Collecting what runs have left behind: the backstop to the pipeline's exit handler."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from vagen.cluster.errors import ApiError
from vagen.cluster.jobs import TERMINAL
from vagen.cluster.kube import RAYCLUSTERS, RAYJOBS, Kube, Object, Resource
from vagen.cluster.names import EXPIRES_AT, RAY_CLUSTER, RUN_NAME, TTL, parse_time

ORPHAN_AGE = timedelta(hours=1)
"""How long a finished RayJob whose RayCluster is gone is kept."""


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

    What somebody changes in the meantime, as a step does that extends a cluster's time, is kept.

    Args:
        kube: The API server.
        dry_run: Delete nothing.
        now: Instead of the present, for tests.
    """
    now = now or datetime.now(UTC)
    clusters = kube.list(RAYCLUSTERS, f"{TTL}=true").items
    found = [_collect(kube, RAYCLUSTERS, one, _overdue(one, now), dry_run) for one in clusters]
    every = {one["metadata"]["name"] for one in kube.list(RAYCLUSTERS).items}
    for job in kube.list(RAYJOBS, f"{TTL}=true").items:
        why = _overdue(job, now) or _orphaned(job, every, now)
        found.append(_collect(kube, RAYJOBS, job, why, dry_run))
    return [leftover for leftover in found if leftover is not None]


def _overdue(item: Object, now: datetime) -> str:
    """Why it is to go; empty if it is not."""
    expires = item["metadata"].get("annotations", {}).get(EXPIRES_AT, "")
    try:
        return f"expired at {expires}" if parse_time(expires) <= now else ""
    except ValueError:
        return ""


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
    kube: Kube, resource: Resource, item: Object, why: str, dry_run: bool
) -> Leftover | None:
    metadata = item["metadata"]
    about = (item["kind"], metadata["name"], metadata.get("annotations", {}).get(RUN_NAME, ""))
    if metadata.get("deletionTimestamp"):
        return Leftover(*about, f"is being deleted since {metadata['deletionTimestamp']}", False)
    if not why:
        return _undated(item, about)
    if not dry_run:
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
            return Leftover(*about, "was changed meanwhile", False)
    return Leftover(*about, why, True)


def _undated(item: Object, about: tuple[str, str, str]) -> Leftover | None:
    """A word on what has the label but no time that can be read."""
    expires = item["metadata"].get("annotations", {}).get(EXPIRES_AT, "")
    try:
        parse_time(expires)
    except ValueError:
        return Leftover(*about, f"annotation {EXPIRES_AT} is no time: {expires!r}", False)
    return None
