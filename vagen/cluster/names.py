"""Names, labels and times of a run's objects on Kubernetes.

A RayCluster's name is a DNS-1035 label of at most 53 characters: `ValidateRayClusterMetadata`
(controllers/ray/utils/validation.go, v1.6).
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta

RUN = "vagen.dev/run"
"""Label: the run that owns an object."""
RUN_NAME = "vagen.dev/run-name"
"""Annotation: the run's full name, since labels limit characters and length."""
LEASED = "vagen.dev/leased"
"""Label `true`: `make gc` deletes the object after `LEASE_UNTIL`."""
LEASE_UNTIL = "vagen.dev/lease-until"
"""Annotation: RFC 3339, UTC; renewed by the run's launcher."""
QUEUE = "kueue.x-k8s.io/queue-name"
RAY_CLUSTER = "ray.io/cluster"
"""KubeRay's label of pods with the name of their RayCluster."""
RAY_NODE_TYPE = "ray.io/node-type"

CLUSTER_NAME_LIMIT = 53
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def cluster_name(run: str) -> str:
    """Name of a run's RayCluster."""
    return shortened(run, CLUSTER_NAME_LIMIT)


def is_dns_1035(name: str) -> bool:
    """Whether a name starts with a letter and has only lower-case letters, digits and `-`."""
    return _DNS_1035.fullmatch(name) is not None


def label_value(text: str) -> str:
    """The text itself if it is a valid label value, otherwise a shortened form."""
    return text if _LABEL.fullmatch(text) else shortened(text, 63)


def run_labels(run: str) -> dict[str, str]:
    """Labels of all objects of a run."""
    return {
        "app.kubernetes.io/part-of": "vagen",
        "app.kubernetes.io/managed-by": "vagen",
        "app.kubernetes.io/instance": label_value(run),
        RUN: label_value(run),
    }


def lease_end(minutes: float, now: datetime | None = None) -> str:
    """Value of `LEASE_UNTIL` for a lease that starts now."""
    moment = (now or datetime.now(UTC)) + timedelta(minutes=minutes)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Parses Kubernetes' times (RFC 3339, with or without fractions of a second).

    Raises:
        ValueError: It is not a time.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment


def shortened(text: str, limit: int) -> str:
    """A DNS-1035 label for a text, with a digest at its end if characters were changed or cut."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(text) <= limit and is_dns_1035(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    stem = plain if plain[:1].isalpha() else f"r-{plain}".rstrip("-")
    return f"{stem[: limit - len(digest) - 1].rstrip('-')}-{digest}"
