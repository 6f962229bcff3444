"""Names, labels and times of what a run owns on Kubernetes.

KubeRay's limits are in `ValidateRayClusterMetadata` and `ValidateRayJobMetadata`
(ray-operator/controllers/ray/utils/validation.go, v1.6): a DNS-1035 label of at most 53 characters
for a RayCluster, 47 for a RayJob.
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta

RUN = "vagen.dev/run"
"""Label: the run that an object belongs to."""
RUN_NAME = "vagen.dev/run-name"
"""Annotation: the run's name as it is; a label holds neither every character nor every length."""
TASK = "vagen.dev/task"
"""Label of a RayJob: the name of its first attempt."""
ATTEMPT = "vagen.dev/attempt"
"""Label of a RayJob: 1, 2, ..."""
TTL = "vagen.dev/ttl"
"""Label `true`: `make gc` may remove it once `EXPIRES_AT` has passed."""
EXPIRES_AT = "vagen.dev/expires-at"
"""Annotation: RFC 3339, UTC."""
QUEUE = "kueue.x-k8s.io/queue-name"
RAY_CLUSTER = "ray.io/cluster"
"""Label that KubeRay gives the pods of a RayCluster, and key of a RayJob's `clusterSelector`."""
RAY_NODE_TYPE = "ray.io/node-type"
RAY_GROUP = "ray.io/group"
JOB_NAME = "batch.kubernetes.io/job-name"
"""Label of a submitter's pods: KubeRay names the Kubernetes Job like the RayJob."""

CLUSTER_NAME_LIMIT = 53
JOB_NAME_LIMIT = 47
_ATTEMPT_ROOM = len("-99")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def cluster_name(run: str) -> str:
    """Name of a run's RayCluster."""
    return _shortened(run, CLUSTER_NAME_LIMIT)


def job_name(run: str, stage: str, iteration: int | None = None) -> str:
    """Name of the first attempt of a stage's RayJob."""
    parts = [run, stage, *([] if iteration is None else [f"{iteration:04d}"])]
    return _shortened("-".join(parts), JOB_NAME_LIMIT - _ATTEMPT_ROOM)


def attempt_name(task: str, attempt: int) -> str:
    """Name of the n-th attempt: the first has none of its own."""
    return task if attempt == 1 else f"{task}-{attempt}"


def is_dns_1035(name: str) -> bool:
    """Whether a name begins with a letter and has lower case letters, digits and `-` only."""
    return _DNS_1035.fullmatch(name) is not None


def label_value(text: str) -> str:
    """A label value that stands for a text: itself where it is one."""
    return text if _LABEL.fullmatch(text) else _shortened(text, 63)


def run_labels(run: str) -> dict[str, str]:
    """Labels of everything that a run owns."""
    return {
        "app.kubernetes.io/part-of": "vagen",
        "app.kubernetes.io/managed-by": "vagen",
        "app.kubernetes.io/instance": label_value(run),
        RUN: label_value(run),
    }


def expiry(hours: float, now: datetime | None = None) -> str:
    """Value of `EXPIRES_AT` for something made now."""
    moment = (now or datetime.now(UTC)) + timedelta(hours=hours)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Reads Kubernetes' times (RFC 3339, with or without fractions of a second).

    Raises:
        ValueError: It is none.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment


def _shortened(text: str, limit: int) -> str:
    """A DNS-1035 label for a text; whatever had to be changed or cut is in a digest at its end."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(text) <= limit and is_dns_1035(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    stem = plain if plain[:1].isalpha() else f"r-{plain}".rstrip("-")
    return f"{stem[: limit - len(digest) - 1].rstrip('-')}-{digest}"
