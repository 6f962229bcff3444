"""Creates, awaits and deletes a run's RayCluster.

`gc` deletes those that runs have left behind, in case a pipeline's exit handler did not.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from vagen.cluster.advice import Finding, explain_cluster, explain_refusal
from vagen.cluster.errors import ApiError, ClusterError
from vagen.cluster.kube import EVENTS, PODS, RAYCLUSTERS, Kube, Object, Resource, follow, wait_until
from vagen.cluster.names import (
    LEASE_UNTIL,
    LEASED,
    RAY_CLUSTER,
    RUN,
    RUN_NAME,
    label_value,
    lease_end,
    parse_time,
)

Report = Callable[[str], Any]
"""Prints a line for the user."""


def ensure_raycluster(
    kube: Kube, manifest: Object, *, deadline: float = 900.0, report: Report | None = None
) -> Object:
    """Gets or creates the run's RayCluster.

    Waits for a cluster that is being deleted and for the pods of a deleted one, which would hold
    devices and disturb the new cluster. Also waits for an exhausted quota. The caller must renew
    the lease.

    Args:
        kube: The API server.
        manifest: Result of `render_raycluster`.
        deadline: Seconds for all of this.
        report: Called if a quota is exhausted.

    Raises:
        ClusterError: The name belongs to another run, the existing one differs, or the deadline
            passed.
    """
    name = manifest["metadata"]["name"]
    end = time.monotonic() + deadline
    reported = ""
    while True:
        found = kube.get(RAYCLUSTERS, name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            await_gone(kube, name, max(0.0, end - time.monotonic()), or_made=True)
            try:
                return kube.create(RAYCLUSTERS, manifest)
            except ApiError as error:
                if error.over_quota and time.monotonic() < end:
                    if report and reported != (reported := explain_refusal(str(error)).text):
                        report(f"RayCluster {name} is not made yet: {reported}")
                    time.sleep(kube.pace.longest_pause)
                elif error.status != 409:
                    raise
                continue  # it may exist now, from another launcher or a lost request
        _check_same(found, manifest)
        return found


def await_raycluster(
    kube: Kube, name: str, *, pending_deadline: float, report: Report | None = None
) -> Object:
    """Waits until the head and all workers are ready.

    Args:
        kube: The API server.
        name: Name of the RayCluster.
        pending_deadline: Timeout in seconds, including time in Kueue's queue.
        report: Called with the reason for waiting whenever it changes.

    Raises:
        ClusterError: It is gone, has a permanent problem, or the deadline has passed; the message
            says what to do.
    """
    return await_ready(
        kube,
        RAYCLUSTERS,
        name,
        is_ready=is_ready,
        diagnose=lambda cluster: diagnose(kube, cluster),
        seconds=pending_deadline,
        gone=f"RayCluster {name} was deleted while it was awaited: by `vagen cluster delete`, "
        "by `make gc`, or with its owner",
        not_ready=lambda cluster, found, late: _not_ready(cluster, found, pending_deadline, late),
        report=report,
    )


def await_ready(
    kube: Kube,
    resource: Resource,
    name: str,
    *,
    is_ready: Callable[[Object], bool],
    diagnose: Callable[[Object], list[Finding]],
    seconds: float,
    gone: str,
    not_ready: Callable[[Object, list[Finding], bool], str],
    report: Report | None = None,
) -> Object:
    """Waits until an object is ready.

    Args:
        kube: The API server.
        resource: Kind of the object.
        name: Name of the object.
        is_ready: Whether the object is ready.
        diagnose: Reasons why it is not.
        seconds: Timeout.
        gone: Message of the error if it is deleted.
        not_ready: Message of the error for an object, its reasons, and whether the time is over.
        report: Called with the reason for waiting whenever it changes.

    Raises:
        ClusterError: It is gone, has a permanent problem, or the time is over.
    """
    end = time.monotonic() + seconds
    final_since: dict[str, float] = {}
    reported: list[Finding] = []
    looked = 0.0
    for state in follow(kube, resource, name):
        if state is None or state["metadata"].get("deletionTimestamp"):
            raise ClusterError(gone)
        if is_ready(state):
            return state
        now = time.monotonic()
        # Status changes come in bursts; query pods and events at most once a second.
        if now - looked < min(1.0, kube.pace.window) and now < end:
            continue
        looked = now
        found = diagnose(state)
        if report and found != reported:
            for finding in found:
                report(finding.text)
        reported = found
        texts = {finding.text for finding in found if finding.final}
        final_since = {text: final_since.get(text, now) for text in texts}
        if any(now - since >= kube.pace.grace for since in final_since.values()) or now >= end:
            raise ClusterError(not_ready(state, found, now >= end))
    raise AssertionError("a watch does not end")


def renew_lease(kube: Kube, name: str, minutes: float) -> None:
    """Extends the lease of a RayCluster, if it exists, to `minutes` from now.

    Raises:
        ApiError: The API server rejects it, or does not respond.
    """
    if find_raycluster(kube, name):
        until = {LEASE_UNTIL: lease_end(minutes)}
        kube.patch(RAYCLUSTERS, name, {"metadata": {"annotations": until}})


def find_raycluster(kube: Kube, name: str) -> Object | None:
    """A RayCluster that exists and is not being deleted."""
    found = kube.get(RAYCLUSTERS, name)
    return None if found is None or found["metadata"].get("deletionTimestamp") else found


def is_ready(cluster: Object) -> bool:
    """Whether the head and all desired workers are ready now.

    KubeRay leaves `status.state` at `ready` when pods fail later (`calculateStatus`,
    raycluster_controller.go, v1.6), so this also checks the counts and the head's condition.
    """
    status = cluster.get("status", {})
    if cluster.get("spec", {}).get("suspend") or status.get("state") != "ready":
        return False
    if status.get("observedGeneration", 0) < cluster["metadata"].get("generation", 0):
        return False
    head = [one for one in status.get("conditions", []) if one["type"] == "HeadPodReady"]
    if any(one["status"] != "True" for one in head):
        return False
    return status.get("readyWorkerReplicas", 0) >= desired_workers(cluster)


def desired_workers(cluster: Object) -> int:
    """Number of worker pods that a RayCluster requests."""
    groups = cluster["spec"].get("workerGroupSpecs") or []
    return sum(group.get("replicas", 0) * group.get("numOfHosts", 1) for group in groups)


def diagnose(kube: Kube, cluster: Object) -> list[Finding]:
    """Reasons why a RayCluster is not ready, from its pods, events and last logs."""
    pods = cluster_pods(kube, cluster["metadata"]["name"])
    return with_logs(kube, explain_cluster(cluster, pods, kube.list(EVENTS).items))


def with_logs(kube: Kube, findings: list[Finding]) -> list[Finding]:
    """The findings, with the last lines of containers that crashed."""
    for number, finding in enumerate(findings):
        if finding.crashed is not None:
            tail = kube.log(*finding.crashed, previous="true", tailLines="10").rstrip()
            shown = "".join(f"\n  | {line}" for line in tail.splitlines())
            findings[number] = replace(finding, text=finding.text + shown)
    return findings


def cluster_pods(kube: Kube, name: str, node_type: str = "") -> list[Object]:
    """Pods of a RayCluster, or only its `head` or `worker`s."""
    selector = f"{RAY_CLUSTER}={name}" + (f",ray.io/node-type={node_type}" if node_type else "")
    return kube.list(PODS, selector).items


def delete_raycluster(kube: Kube, name: str, *, wait: float = 300.0) -> bool:
    """Deletes a RayCluster after its pods; waits for that up to `wait` seconds.

    Returns:
        False if it did not exist.

    Raises:
        ClusterError: It still exists after `wait`; the message says why.
    """
    found = kube.delete(RAYCLUSTERS, name)
    if wait > 0:
        await_gone(kube, name, wait)
    return found


def clusters_of(kube: Kube, run: str) -> list[str]:
    """Names of the RayClusters with a run's label."""
    items = kube.list(RAYCLUSTERS, f"{RUN}={label_value(run)}").items
    return [item["metadata"]["name"] for item in items]


def delete_run(kube: Kube, run: str, *, wait: float = 300.0) -> list[str]:
    """Deletes all RayClusters with a run's label in any state; `wait` as in `delete_raycluster`.

    Returns:
        Names of the deleted clusters.
    """
    # Starts all deletions before waiting.
    found = [name for name in clusters_of(kube, run) if delete_raycluster(kube, name, wait=0)]
    if wait > 0:
        for name in found:
            await_gone(kube, name, wait)
    return found


def await_gone(kube: Kube, name: str, seconds: float, *, or_made: bool = False) -> None:
    """Waits until a RayCluster and its pods are gone.

    Args:
        kube: The API server.
        name: Name of the RayCluster.
        seconds: Timeout.
        or_made: Also stops if there is a new one that is not being deleted.

    Raises:
        ClusterError: They are not gone in time.
    """

    def gone() -> bool:
        found = kube.get(RAYCLUSTERS, name)
        if found is not None:
            return or_made and not found["metadata"].get("deletionTimestamp")
        return not cluster_pods(kube, name)

    if wait_until(gone, seconds, min(1.0, kube.pace.window)):
        return
    cluster = kube.get(RAYCLUSTERS, name)
    pods = [pod["metadata"]["name"] for pod in cluster_pods(kube, name)]
    held = (cluster or {}).get("metadata", {}).get("finalizers", [])
    what = [f"finalizers {', '.join(held)}"] if held else []
    what += [f"pods {', '.join(pods)}"] if pods else []
    raise ClusterError(
        f"RayCluster {name} is still there after {seconds:.0f} s, held by "
        f"{' and '.join(what) or 'no visible object'}: look at the pods' nodes "
        "(`kubectl describe pod`) and at the KubeRay operator's log"
    )


def _check_same(found: Object, manifest: Object) -> None:
    """Rejects a RayCluster of another run, or one that differs from the manifest."""
    name = manifest["metadata"]["name"]
    label = found["metadata"].get("labels", {}).get(RUN)
    if label != manifest["metadata"]["labels"][RUN]:
        owner = found["metadata"].get("annotations", {}).get(RUN_NAME, label)
        whose = f"run {owner}" if owner else "no run of vagen"
        raise ClusterError(
            f"RayCluster {name} belongs to {whose}: choose another name for this run"
        )
    if _shape(found) != _shape(manifest):
        raise ClusterError(
            f"RayCluster {name} exists with {_shape(found)}, but this run asks for "
            f"{_shape(manifest)}: delete it first (`vagen cluster delete`)"
        )


def _shape(cluster: Object) -> str:
    """The part of a RayCluster that must not change while a run uses it."""
    spec = cluster["spec"]
    groups = [("head", 1, spec["headGroupSpec"])] + [
        (group["groupName"], group.get("replicas", 0), group)
        for group in spec.get("workerGroupSpecs") or []
    ]
    parts = [f"token {(spec.get('authOptions') or {}).get('secretName', 'none')}"]
    for name, count, group in groups:
        container = group["template"]["spec"]["containers"][0]
        limits = container.get("resources", {}).get("limits", {})
        gpus = [f", {limits[key]} {key}" for key in limits if "/" in key]
        parts.append(f"{count} x {name} ({container['image']}{''.join(gpus)})")
    return ", ".join(parts)


def _not_ready(cluster: Object, found: list[Finding], deadline: float, late: bool) -> str:
    status = cluster.get("status", {})
    ready = f"{status.get('readyWorkerReplicas', 0)} of {desired_workers(cluster)} workers ready"
    name = cluster["metadata"]["name"]
    if late:
        first = f"RayCluster {name} is not ready after {deadline:.0f} s ({ready})"
    else:
        first = f"RayCluster {name} cannot become ready ({ready})"
    texts = [finding.text for finding in found] or ["no problem is reported: wait longer"]
    return "\n".join([first, *(f"- {text}" for text in texts)])


TRIES = 5
"""Number of retries for an object that changes before its deletion."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A RayCluster that `gc` reports."""

    name: str
    run: str
    why: str
    removed: bool
    """Whether deletion was requested, or would be in a dry run."""

    def __str__(self) -> str:
        verb = "removed" if self.removed else "kept"
        return f"{verb}: RayCluster {self.name} of run {self.run or '?'}: {self.why}"


def gc(kube: Kube, *, dry_run: bool = False, now: datetime | None = None) -> list[Leftover]:
    """Deletes RayClusters whose lease has expired, or with `dry_run` only reports them.

    Rechecks clusters that change in the meantime, e.g. by a renewed lease.
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
            return Leftover(name, run, f"is being deleted since {since}", False)
        until = metadata.get("annotations", {}).get(LEASE_UNTIL, "")
        try:
            if parse_time(until) > now:
                return None
        except ValueError:
            return Leftover(name, run, f"annotation {LEASE_UNTIL} is no time: {until!r}", False)
        try:
            if not dry_run:
                kube.delete(RAYCLUSTERS, name, read=found)
            return Leftover(name, run, f"its lease ended at {until}", True)
        except ApiError as error:
            if error.status != 409:
                raise
        found = kube.get(RAYCLUSTERS, name)
    return Leftover(name, run, "it changes all the time", False)
