"""Checks KubeRay's rules before anything is sent.

KubeRay accepts a RayCluster that violates them but then ignores it. Functions are named as in
KubeRay 1.6, ray-operator/controllers/ray.
"""

import re
from collections.abc import Iterator
from typing import Any

from vagen.cluster.errors import ClusterError
from vagen.cluster.names import CLUSTER_NAME_LIMIT, is_dns_1035, label_value

MIN_RAY = (2, 52, 0)
"""First version with token authentication."""
START_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")


def check_raycluster(manifest: dict[str, Any]) -> None:
    """Rejects a RayCluster that KubeRay would ignore, or that does not fit our runs.

    Raises:
        ClusterError: Lists all errors.
    """
    faults = [*_name(manifest), *_cluster(manifest)]
    if faults:
        name = manifest.get("metadata", {}).get("name", "?")
        raise ClusterError(f"RayCluster {name}: " + "; ".join(faults))


def _name(manifest: dict[str, Any]) -> Iterator[str]:
    """`ValidateRayClusterMetadata` (utils/validation.go)."""
    name = manifest.get("metadata", {}).get("name", "")
    if len(name) > CLUSTER_NAME_LIMIT:
        yield f"its name has {len(name)} characters, KubeRay takes at most {CLUSTER_NAME_LIMIT}"
    if not is_dns_1035(name):
        yield "its name must begin with a letter and have lower case letters, digits and `-` only"


def _cluster(manifest: dict[str, Any]) -> Iterator[str]:
    """`ValidateRayClusterSpec` (utils/validation.go), a head without tasks, and a token."""
    spec = manifest.get("spec", {})
    auth = spec.get("authOptions") or {}
    if auth.get("mode") != "token" or not auth.get("secretName"):
        yield (
            "authOptions must be {mode: token, secretName: ...}: who reaches Ray's dashboard "
            "without a token may run code"
        )
    if _version(spec.get("rayVersion", "")) < MIN_RAY:
        yield f"rayVersion must be {'.'.join(map(str, MIN_RAY))} or newer, which knows tokens"
    head = spec.get("headGroupSpec", {})
    if head.get("rayStartParams", {}).get("num-cpus") != "0":
        yield (
            'headGroupSpec.rayStartParams must have num-cpus: "0": what runs on the head competes '
            "with Ray's own services"
        )
    yield from _group("headGroupSpec", head)
    groups = spec.get("workerGroupSpecs") or []
    names = [group.get("groupName", "") for group in groups]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"workerGroupSpecs: two groups are named {name!r}"
    if spec.get("enableInTreeAutoscaling"):
        yield "enableInTreeAutoscaling must be off: a run's workers are admitted as a whole"
    for name, group in zip(names, groups, strict=True):
        place = f"workerGroupSpecs[{name}]"
        if not name or label_value(name) != name:
            yield f"{place}.groupName must be a label value of at most 63 characters"
        if group.get("minReplicas") is None or group.get("maxReplicas") is None:
            yield f"{place} must have minReplicas and maxReplicas, as there is no autoscaling"
        elif not 0 <= group["minReplicas"] <= group["maxReplicas"]:
            yield f"{place}: 0 <= minReplicas <= maxReplicas must hold"
        if group.get("suspend"):
            yield f"{place}.suspend needs a feature gate that is off by default"
        yield from _group(place, group)


def _group(place: str, group: dict[str, Any]) -> Iterator[str]:
    """`validateRayGroupResources`, `validateRayGroupLabels`, containers (utils/validation.go)."""
    if not group.get("template", {}).get("spec", {}).get("containers"):
        yield f"{place}.template needs at least one container"
    params = group.get("rayStartParams") or {}
    for key, value in params.items():
        if not isinstance(value, str):
            yield f"{place}.rayStartParams.{key} must be a text: write it in quotes"
    if group.get("resources") and any(params.get(key) for key in START_RESOURCES):
        yield f"{place}: resources stand in rayStartParams and in resources; KubeRay takes one"
    if "labels" in params:
        yield f"{place}.rayStartParams.labels is refused by KubeRay: use the group's `labels`"


def _version(text: str) -> tuple[int, ...]:
    """Numbers of a version such as `2.60.0`; empty if it is not a version."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else ()
