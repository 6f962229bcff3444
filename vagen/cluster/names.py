"""Names, labels and times of what a run owns on Kubernetes.

KubeRay's limit is in `ValidateRayClusterMetadata` (controllers/ray/utils/validation.go, v1.6): a
RayCluster's name is a DNS-1035 label of at most 53 characters.
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta

RUN = "vagen.dev/run"
"""Label: the run that an object belongs to."""
RUN_NAME = "vagen.dev/run-name"
"""Annotation: the run's name as it is; a label holds neither every character nor every length."""
LEASED = "vagen.dev/leased"
"""Label `true`: `make gc` removes it once `LEASE_UNTIL` has passed."""
LEASE_UNTIL = "vagen.dev/lease-until"
"""Annotation: RFC 3339, UTC; the run's launcher renews it."""
QUEUE = "kueue.x-k8s.io/queue-name"
RAY_CLUSTER = "ray.io/cluster"
"""Label that KubeRay gives the pods of a RayCluster: its name."""
RAY_NODE_TYPE = "ray.io/node-type"

CLUSTER_NAME_LIMIT = 53
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def cluster_name(run: str) -> str:
    """Name of a run's RayCluster."""
    return shortened(run, CLUSTER_NAME_LIMIT)


def is_dns_1035(name: str) -> bool:
    """Whether a name begins with a letter and has lower case letters, digits and `-` only."""
    return _DNS_1035.fullmatch(name) is not None


def label_value(text: str) -> str:
    """A label value that stands for a text: itself where it is one."""
    return text if _LABEL.fullmatch(text) else shortened(text, 63)


def run_labels(run: str) -> dict[str, str]:
    """Labels of everything that a run owns."""
    return {
        "app.kubernetes.io/part-of": "vagen",
        "app.kubernetes.io/managed-by": "vagen",
        "app.kubernetes.io/instance": label_value(run),
        RUN: label_value(run),
    }


def lease_end(minutes: float, now: datetime | None = None) -> str:
    """Value of `LEASE_UNTIL` for a lease that begins now."""
    moment = (now or datetime.now(UTC)) + timedelta(minutes=minutes)
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


def shortened(text: str, limit: int) -> str:
    """A DNS-1035 label for a text; whatever had to be changed or cut is in a digest at its end."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(text) <= limit and is_dns_1035(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    stem = plain if plain[:1].isalpha() else f"r-{plain}".rstrip("-")
    return f"{stem[: limit - len(digest) - 1].rstrip('-')}-{digest}"
