"""The state of a run on its cluster, as data and as text, and the logs that go with the cluster."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from vagen.cluster.advice import containers_of, event_time, explain_cluster, explain_pod
from vagen.cluster.clusters import desired_workers, is_ready
from vagen.cluster.errors import ApiError
from vagen.cluster.kube import EVENTS, PODS, RAYCLUSTERS, Kube, Object
from vagen.cluster.names import LEASE_UNTIL, RAY_NODE_TYPE, RUN, label_value, parse_time

RECENT_EVENTS = 12


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Summary of a RayCluster."""

    name: str
    state: str
    """`ready`, `suspended`, `deleting`, `starting`."""
    workers: str
    """Ready and desired workers, e.g. `2/4`."""
    lease_until: str


@dataclass(frozen=True, slots=True)
class PodState:
    """Summary of a pod."""

    name: str
    role: str
    """`head`, `worker`, or `step`."""
    phase: str
    restarts: int
    node: str


@dataclass(frozen=True, slots=True)
class RunState:
    """Objects of a run on Kubernetes."""

    run: str
    namespace: str
    clusters: list[ClusterState] = field(default_factory=list)
    pods: list[PodState] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Problems, with advice."""
    events: list[str] = field(default_factory=list)
    """Latest events, oldest first."""

    @property
    def exists(self) -> bool:
        """Whether the run has any objects."""
        return bool(self.clusters or self.pods)

    def text(self, now: datetime | None = None) -> str:
        """Text for users."""
        return "\n".join(_text(self, now or datetime.now(UTC)))


def describe_run(kube: Kube, run: str) -> RunState:
    """Queries all objects with a run's label."""
    selector = f"{RUN}={label_value(run)}"
    clusters = kube.list(RAYCLUSTERS, selector).items
    pods = kube.list(PODS, selector).items
    names = {item["metadata"]["name"] for item in [*clusters, *pods]}
    prefixes = tuple(f"raycluster-{cluster['metadata']['name']}-" for cluster in clusters)
    events = [
        event
        for event in kube.list(EVENTS).items
        if event["involvedObject"].get("name") in names
        or (prefixes and event["involvedObject"].get("name", "").startswith(prefixes))
    ]
    events.sort(key=event_time)
    found = [finding for pod in pods for finding in explain_pod(pod, events)]
    for cluster in clusters:
        if not is_ready(cluster):
            found += explain_cluster(cluster, pods, events)
    return RunState(
        run=run,
        namespace=kube.namespace,
        clusters=[_cluster(cluster) for cluster in clusters],
        pods=sorted((_pod(pod) for pod in pods), key=lambda pod: (pod.role, pod.name)),
        findings=list(dict.fromkeys(finding.text for finding in found)),
        events=[_event(event) for event in events[-RECENT_EVENTS:]],
    )


def _cluster(cluster: Object) -> ClusterState:
    status = cluster.get("status", {})
    if cluster["metadata"].get("deletionTimestamp"):
        state = "deleting"
    elif cluster["spec"].get("suspend"):
        state = "suspended"
    else:
        state = "ready" if is_ready(cluster) else "starting"
    return ClusterState(
        name=cluster["metadata"]["name"],
        state=state,
        workers=f"{status.get('readyWorkerReplicas', 0)}/{desired_workers(cluster)}",
        lease_until=cluster["metadata"].get("annotations", {}).get(LEASE_UNTIL, ""),
    )


def _pod(pod: Object) -> PodState:
    labels, status = pod["metadata"].get("labels", {}), pod.get("status", {})
    containers = status.get("containerStatuses", [])
    return PodState(
        name=pod["metadata"]["name"],
        role=labels.get(RAY_NODE_TYPE, "step"),
        phase="Terminating"
        if pod["metadata"].get("deletionTimestamp")
        else status.get("phase", "Unknown"),
        restarts=sum(container.get("restartCount", 0) for container in containers),
        node=pod.get("spec", {}).get("nodeName", ""),
    )


def _event(event: Object) -> str:
    about = event["involvedObject"]
    return (
        f"{event_time(event)} {event.get('reason', '')} {about.get('kind', '')} "
        f"{about.get('name', '')}: {event.get('message', '').strip()}"
    )


def _text(state: RunState, now: datetime) -> Iterator[str]:
    if not state.exists:
        yield f"run {state.run} has nothing in namespace {state.namespace}"
        return
    yield f"run {state.run} in namespace {state.namespace}"
    for cluster in state.clusters:
        left = _left(cluster.lease_until, now)
        yield f"  RayCluster {cluster.name}: {cluster.state}, workers {cluster.workers}{left}"
    for pod in state.pods:
        restarts = f", {pod.restarts} restarts" if pod.restarts else ""
        place = f" on {pod.node}" if pod.node else ""
        yield f"  pod {pod.name} ({pod.role}): {pod.phase}{place}{restarts}"
    if state.findings:
        yield "to do:"
        yield from (f"  - {text}" for text in state.findings)
    if state.events:
        yield "latest events:"
        yield from (f"  {event}" for event in state.events)


def _left(lease_until: str, now: datetime) -> str:
    try:
        minutes = (parse_time(lease_until) - now).total_seconds() / 60
    except ValueError:
        return ""
    if minutes <= 0:
        return ", its lease is over: `make gc` removes it"
    return f", leased for {minutes:.0f} min more"


LOG_LIMIT = 64 << 20
"""Maximum bytes from the end of a container's log."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """Saved files, and failures."""

    files: list[Path]
    missing: list[str]


def harvest_logs(kube: Kube, run: str, target: Path) -> Harvest:
    """Writes a run's logs and states into a folder: `<pod>/<container>.log`, `status.txt`, ...

    `.previous.log` is the log of a container before its restart. Unreadable logs are reported and
    do not stop the others.
    """
    target.mkdir(parents=True, exist_ok=True)
    selector = f"{RUN}={label_value(run)}"
    missing = []
    files = [target / "status.txt", target / f"{RAYCLUSTERS.plural}.json"]
    files[0].write_text(describe_run(kube, run).text() + "\n")
    files[1].write_text(json.dumps(kube.list(RAYCLUSTERS, selector).items, indent=1))
    for pod in kube.list(PODS, selector).items:
        folder = target / pod["metadata"]["name"]
        for container, previous in _containers(pod):
            path = folder / f"{container}{'.previous' if previous else ''}.log"
            try:
                query = {"tailLines": "200000", **({"previous": "true"} if previous else {})}
                text = kube.log(folder.name, container, **query)[-LOG_LIMIT:]
            except ApiError as error:
                missing.append(f"{path.relative_to(target)}: {error}")
                continue
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            files.append(path)
    return Harvest(files, missing)


def _containers(pod: Object) -> Iterator[tuple[str, bool]]:
    """Started containers of a pod, and whether to get the log before its restart."""
    for container in containers_of(pod):
        if "terminated" in container.get("lastState", {}):
            yield container["name"], True
        if "waiting" not in container.get("state", {"waiting": {}}):
            yield container["name"], False
