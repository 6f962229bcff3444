"""The state of a run on its cluster as text, and the logs that go with the cluster."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vagen.cluster.advice import containers_of, event_time, explain_cluster, explain_pod
from vagen.cluster.clusters import desired_workers, is_ready
from vagen.cluster.errors import ApiError
from vagen.cluster.kube import EVENTS, PODS, RAYCLUSTERS, Kube, Object
from vagen.cluster.names import LEASE_UNTIL, RAY_NODE_TYPE, RUN, label_value, parse_time

RECENT_EVENTS = 12


def describe_run(kube: Kube, run: str) -> str | None:
    """What has a run's label, what is wrong with it and the latest events; None if nothing has."""
    selector = f"{RUN}={label_value(run)}"
    clusters = kube.list(RAYCLUSTERS, selector).items
    pods = kube.list(PODS, selector).items
    if not (clusters or pods):
        return None
    names = {item["metadata"]["name"] for item in [*clusters, *pods]}
    prefixes = tuple(f"raycluster-{cluster['metadata']['name']}-" for cluster in clusters)
    events = [
        event
        for event in kube.list(EVENTS).items
        if (about := event["involvedObject"].get("name", "")) in names or about.startswith(prefixes)
    ]
    events.sort(key=event_time)
    found = [finding for pod in pods for finding in explain_pod(pod, events)]
    for cluster in clusters:
        if not is_ready(cluster):
            found += explain_cluster(cluster, pods, events)
    findings = dict.fromkeys(f"  - {finding.text}" for finding in found)
    latest = [_event(event) for event in events[-RECENT_EVENTS:]]
    return "\n".join(
        [
            f"run {run} in namespace {kube.namespace}",
            *map(_cluster, clusters),
            *map(_pod, sorted(pods, key=lambda pod: (_role(pod), pod["metadata"]["name"]))),
            *(["to do:", *findings] if findings else []),
            *(["latest events:", *latest] if latest else []),
        ]
    )


def _cluster(cluster: Object) -> str:
    meta = cluster["metadata"]
    if meta.get("deletionTimestamp"):
        state = "deleting"
    elif cluster["spec"].get("suspend"):
        state = "suspended"
    else:
        state = "ready" if is_ready(cluster) else "starting"
    workers = cluster.get("status", {}).get("readyWorkerReplicas", 0)
    left = ""
    with suppress(ValueError):
        until = parse_time(meta.get("annotations", {}).get(LEASE_UNTIL, ""))
        minutes = (until - datetime.now(UTC)).total_seconds() / 60
        left = (
            f", leased for {minutes:.0f} min more"
            if minutes > 0
            else ", its lease is over: `make gc` removes it"
        )
    wanted = desired_workers(cluster)
    return f"  RayCluster {meta['name']}: {state}, workers {workers}/{wanted}{left}"


def _role(pod: Object) -> str:
    """`head`, `worker`, or `step`."""
    return pod["metadata"].get("labels", {}).get(RAY_NODE_TYPE, "step")


def _pod(pod: Object) -> str:
    meta, status = pod["metadata"], pod.get("status", {})
    phase = "Terminating" if meta.get("deletionTimestamp") else status.get("phase", "Unknown")
    node = pod.get("spec", {}).get("nodeName", "")
    place = f" on {node}" if node else ""
    times = sum(container.get("restartCount", 0) for container in containers_of(pod))
    restarts = f", {times} restarts" if times else ""
    return f"  pod {meta['name']} ({_role(pod)}): {phase}{place}{restarts}"


def _event(event: Object) -> str:
    about = event["involvedObject"]
    return (
        f"  {event_time(event)} {event.get('reason', '')} {about.get('kind', '')} "
        f"{about.get('name', '')}: {event.get('message', '').strip()}"
    )


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
    files[0].write_text(f"{describe_run(kube, run) or ''}\n")
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
