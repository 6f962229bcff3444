"""Explains conditions, pod states and events in plain words, with advice."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from vagen.cluster.kube import Object
from vagen.cluster.names import QUEUE, parse_time

_NODES = re.compile(r"0/(\d+) nodes are available: (.*)", re.DOTALL)
_SHORT = re.compile(r"(\d+) Insufficient ([\w./-]+)")
_MISSING = re.compile(
    r'(secret|configmap|serviceaccount|persistentvolumeclaim) "([^"]+)" not found'
)
_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: ([^;]+?), used: (.+?), limited: ([^\n]+)")
_KEY = re.compile(r"couldn't find key (\S+) in (\w+) \S*?/(\S+)")
_PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_INVALID = ("InvalidRayClusterSpec", "InvalidRayClusterMetadata", "InvalidRayClusterStatus")
_NOT_CREATED = ("FailedToCreateHeadPod", "FailedToCreateWorkerPod")


_PRESSURE = re.compile(r"node\.kubernetes\.io/(disk|memory|pid)-pressure")
NOTICE_SECONDS = 15.0
"""Seconds that KubeRay may take to notice a new RayCluster."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a cluster."""

    text: str
    """Description and advice."""
    final: bool = False
    """Whether waiting does not help."""
    crashed: tuple[str, str] | None = None
    """Pod and container whose last log says why."""


def explain_cluster(
    cluster: Object, pods: Iterable[Object], events: Iterable[Object]
) -> list[Finding]:
    """Why a RayCluster is not ready; empty if waiting may help."""
    events = list(events)
    pods = list(pods)
    found = [*_kueue(cluster, events), *_refused(cluster, events)]
    for pod in pods:
        found += explain_pod(pod, events)
    if not found and not pods and not cluster.get("status"):
        age = datetime.now(UTC) - parse_time(cluster["metadata"]["creationTimestamp"])
        if age.total_seconds() > NOTICE_SECONDS:
            found.append(
                Finding(
                    "KubeRay has not noticed it: is the operator running, and does it watch this "
                    "namespace?"
                )
            )
    return list(dict.fromkeys(found))


def explain_pod(pod: Object, events: Iterable[Object] = ()) -> list[Finding]:
    """Why a pod is not running."""
    name = pod["metadata"]["name"]
    status = pod.get("status", {})
    found = [*_unscheduled(name, status), *_ended(name, status)]
    for container in containers_of(pod):
        found += _container(name, container)
    for event in _of(events, "Pod", name) if status.get("phase") == "Pending" else ():
        if event["reason"] in ("FailedMount", "FailedAttachVolume"):
            missing = _MISSING.search(event["message"])
            advice = f": create the {missing[1]} {missing[2]}" if missing else ""
            text = f"pod {name}: {event['message'].strip()}{advice}"
            found.append(Finding(text, final=missing is not None))
    return found


def containers_of(pod: Object) -> list[Object]:
    """States of a pod's containers, first those that prepare it."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def explain_refusal(message: str) -> Finding:
    """Explains why the API server rejected a pod of KubeRay, or a RayCluster."""
    message = message.strip().replace("\n", ": ")
    quota = _QUOTA.search(message)
    if quota:
        return Finding(
            f"the namespace's quota {quota[1]} is used up (asked for {quota[2]}, used {quota[3]}, "
            f"limit {quota[4].strip()}): wait for other runs to end, or have the quota raised"
        )
    if "violates PodSecurity" in message:
        rules = message.partition("violates PodSecurity")[2].strip()
        return Finding(
            f"Pod Security refuses the pod ({rules}): correct the securityContext in the "
            "RayCluster template, or use an overlay whose namespace allows it",
            final=True,
        )
    account = re.search(r'serviceaccount "?([\w-]+)"? not found', message)
    if account or "error looking up service account" in message:
        return Finding(
            f"a service account of its pods is missing ({message}): `make deploy` brings it",
            final=True,
        )
    if "maximum" in message and "usage per" in message:
        return Finding(f"a LimitRange of the namespace refuses the pod: {message}", final=True)
    return Finding(f"KubeRay could not create a pod: {message}")


def event_time(event: Object) -> str:
    """Time of an event's last occurrence."""
    return (
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event.get("firstTimestamp")
        or event["metadata"].get("creationTimestamp", "")
    )


def _kueue(cluster: Object, events: list[Object]) -> Iterator[Finding]:
    """Reports that Kueue suspends a RayCluster until its quota has room for all of it."""
    queue = cluster["metadata"].get("labels", {}).get(QUEUE)
    if not queue or not cluster.get("spec", {}).get("suspend"):
        return
    name = cluster["metadata"]["name"]
    said = [
        event
        for event in events
        if event["involvedObject"].get("kind") == "Workload"
        and event["involvedObject"].get("name", "").startswith(f"raycluster-{name}-")
    ]
    if said:
        latest = max(said, key=event_time)
        yield Finding(
            f"Kueue has not admitted it in queue {queue} ({latest['reason']}: "
            f"{latest['message'].strip()}): wait for other runs to end, ask for fewer workers, or "
            "have the quota raised"
        )
    else:
        yield Finding(
            f"Kueue has not admitted it: is there a LocalQueue {queue} in this namespace, and does "
            "its ClusterQueue cover the GPUs asked for?"
        )


def _refused(cluster: Object, events: list[Object]) -> Iterator[Finding]:
    """Reports KubeRay's failures: its current condition, and permanent errors."""
    conditions = cluster.get("status", {}).get("conditions", [])
    for condition in conditions:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            yield explain_refusal(condition["message"])
    cluster_events = _of(events, "RayCluster", cluster["metadata"]["name"])
    for event in cluster_events:
        if event["reason"] in _INVALID:
            yield Finding(f"KubeRay refuses its specification: {event['message']}", final=True)
    failed = [event for event in cluster_events if event["reason"] in _NOT_CREATED]
    if failed and not conditions:
        yield explain_refusal(max(failed, key=event_time)["message"])


def _unscheduled(name: str, status: Object) -> Iterator[Finding]:
    for condition in status.get("conditions", []):
        if condition["type"] != "PodScheduled" or condition["status"] != "False":
            continue
        message = condition.get("message", "")
        if condition.get("reason") == "SchedulingGated":
            yield Finding(f"pod {name} waits for a scheduling gate: {message}")
            continue
        nodes = _NODES.search(message)
        if not nodes:
            yield Finding(f"pod {name} cannot be placed: {message}")
            continue
        reasons = nodes[2].partition("preemption:")[0].strip().rstrip(".")
        short = sorted({what for _, what in _SHORT.findall(reasons)})
        advice = []
        if short:
            advice.append(
                f"{', '.join(short)} is short: wait for other pods to end, add nodes, or ask for "
                "less per worker"
            )
        if pressure := _PRESSURE.search(reasons):
            advice.append(f"a node is short of {pressure[1]}: free some there, or wait")
        elif "untolerated taint" in reasons:
            advice.append("tolerate the taint in the RayCluster template if those nodes are meant")
        if "node affinity/selector" in reasons:
            advice.append("check the template's nodeSelector against the nodes' labels")
        if "unbound" in reasons and "PersistentVolumeClaim" in reasons:
            advice.append("a volume claim is not bound: check its storage class")
        text = f"pod {name} fits none of {nodes[1]} nodes ({reasons})"
        yield Finding(": ".join([text, "; ".join(advice)]) if advice else text)


def _ended(name: str, status: Object) -> Iterator[Finding]:
    """Reports pods that were ended from outside."""
    if status.get("phase") != "Failed":
        return
    reason, message = status.get("reason", ""), status.get("message", "").strip()
    if reason == "Evicted":
        yield Finding(
            f"pod {name} was evicted ({message}): raise the requests or the ephemeral storage in "
            "the RayCluster template"
        )
    elif reason:
        yield Finding(f"pod {name} was ended: {reason} {message}".rstrip())


def _container(pod: str, status: Object) -> Iterator[Finding]:
    """Reports a container that waits, or that has ended and is restarted."""
    name = f"{pod}/{status['name']}"
    waiting = status.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    states = status.get("state", {}), status.get("lastState", {})
    ended = next((each["terminated"] for each in states if each.get("terminated")), None)
    if reason in _PULLING:
        yield _pull(name, status.get("image", ""), reason, message)
    elif reason in _CONFIG:
        yield _config(name, reason, message)
    elif ended and ended.get("reason") == "OOMKilled":
        yield Finding(
            f"{name} was killed for lack of memory (OOMKilled, {status['restartCount']} restarts): "
            "raise its memory limit in the RayCluster template; /dev/shm counts towards it",
            final=True,
        )
    elif reason == "CrashLoopBackOff":
        code = ended.get("exitCode") if ended else "?"
        yield Finding(
            f"{name} keeps failing (exit code {code}, {status['restartCount']} restarts): "
            "its log says why",
            final=True,
            crashed=(pod, status["name"]),
        )


def _pull(name: str, image: str, reason: str, message: str) -> Finding:
    low = message.lower()
    if reason == "InvalidImageName":
        advice = "correct the image's name"
    elif reason == "ErrImageNeverPull":
        advice = "load it onto the nodes, or change imagePullPolicy"
    elif any(word in low for word in ("unauthorized", "authentication", "denied", "forbidden")):
        advice = "the registry asks for credentials: check the imagePullSecrets"
    elif "not found" in low or "manifest unknown" in low:
        advice = "the registry has no such image or tag: push it, or correct its name"
    else:
        advice = "check the image's name, the imagePullSecrets and the nodes' way to the registry"
    said = f": {message}" if message else ""
    return Finding(f"{name}: image {image} cannot be pulled ({reason}{said}): {advice}", final=True)


def _config(name: str, reason: str, message: str) -> Finding:
    missing, key = _MISSING.search(message), _KEY.search(message)
    if missing:
        advice = f"create the {missing[1]} {missing[2]}: see docs/kubernetes.md"
    elif key:
        advice = f"{key[2].lower()} {key[3]} lacks the key {key[1]}"
    elif "runAsNonRoot" in message:
        advice = "give the image a numeric user, or set runAsUser in the RayCluster template"
    else:
        advice = "correct the RayCluster template"
    return Finding(f"{name} cannot start ({reason}: {message}): {advice}", final=True)


def _of(events: Iterable[Object], kind: str, name: str) -> list[Object]:
    return [
        event
        for event in events
        if event["involvedObject"].get("kind") == kind
        and event["involvedObject"].get("name") == name
    ]
