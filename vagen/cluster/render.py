"""Renders a run's RayCluster from the platform's template, and checks KubeRay's rules.

KubeRay accepts a RayCluster that violates them but then ignores it. The checks are named as in
KubeRay 1.6, ray-operator/controllers/ray.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import CONFIG_MAPS, Kube, Object
from vagen.cluster.names import (
    CLUSTER_NAME_LIMIT,
    LEASE_UNTIL,
    LEASED,
    QUEUE,
    RUN_NAME,
    is_dns_1035,
    label_value,
    lease_end,
    run_labels,
)

TEMPLATE = "vagen-raycluster"
TEMPLATE_KEY = "raycluster.yaml"
GPU = "nvidia.com/gpu"
DISK = "ephemeral-storage"
HF_HOME = "/home/vagen/huggingface"


def read_template(kube: Kube, name: str = TEMPLATE) -> Object:
    """Reads the platform's template of a RayCluster from a ConfigMap.

    Raises:
        ClusterError: The ConfigMap, its key or a RayCluster in it is missing.
    """
    found = kube.get(CONFIG_MAPS, name)
    if found is None:
        raise ClusterError(
            f"there is no ConfigMap {name} in namespace {kube.namespace}: `make deploy` brings it"
        )
    text = found.get("data", {}).get(TEMPLATE_KEY)
    if text is None:
        raise ClusterError(f"ConfigMap {name} has no key {TEMPLATE_KEY}")
    try:
        template = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ClusterError(f"{TEMPLATE_KEY} of ConfigMap {name} is no YAML: {error}") from error
    if not isinstance(template, dict) or template.get("kind") != "RayCluster":
        raise ClusterError(f"{TEMPLATE_KEY} of ConfigMap {name} is no RayCluster")
    return template


def render_raycluster(
    template: Object,
    *,
    name: str,
    run: str,
    workers: int,
    gpus_per_worker: int,
    lease_minutes: float,
    image: str | None = None,
    queue: str | None = None,
    labels: Mapping[str, str] | None = None,
    priority: str | None = None,
    gpu_resource: str = GPU,
    gpu_claim: str | None = None,
    models: str | None = None,
) -> Object:
    """A run's RayCluster: the template with per-run fields; all others are kept.

    Args:
        template: The platform's RayCluster with one worker group.
        name: Its name, from `vagen.cluster.names.cluster_name`.
        run: Name of the run.
        workers: Number of worker pods.
        gpus_per_worker: GPUs per worker, as request and limit; 0 removes the template's. With fewer
            than the template's, a worker gets the same share of its cores, memory and disk.
        lease_minutes: Minutes from now until `gc` deletes it, unless the lease is renewed.
        image: Image of all Ray containers; None for the template's.
        queue: Kueue's local queue, which admits head and workers together.
        labels: Further labels of the RayCluster and its pods, e.g. for costs.
        priority: Priority class of the pods; None for the template's.
        gpu_resource: The resource that the device plugin offers.
        gpu_claim: A ResourceClaimTemplate of one GPU instead of it, claimed once per GPU.
        models: A PersistentVolumeClaim for `HF_HOME`; None for the template's volume.

    Raises:
        ClusterError: KubeRay would reject the result; the message says why.
    """
    manifest = json.loads(json.dumps(template))  # parts that YAML's anchors share become copies
    manifest["apiVersion"], manifest["kind"] = "ray.io/v1", "RayCluster"
    labels = {**(labels or {}), **run_labels(run)}
    metadata = manifest.setdefault("metadata", {})
    metadata["name"] = name
    metadata.pop("namespace", None)  # that of the ConfigMap, whatever overlay brought it
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels, LEASED: "true"}
    if queue:
        metadata["labels"][QUEUE] = queue
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        RUN_NAME: run,
        LEASE_UNTIL: lease_end(lease_minutes),
    }
    spec = manifest.setdefault("spec", {})
    groups = spec.get("workerGroupSpecs") or []
    if len(groups) != 1:
        raise ClusterError(
            f"the RayCluster template has {len(groups)} worker groups: it must have one"
        )
    groups[0].update(replicas=workers, minReplicas=workers, maxReplicas=workers)
    _share(groups[0], gpus_per_worker)
    for group in (spec.get("headGroupSpec") or {}, groups[0]):
        pods = group.setdefault("template", {})
        metadata = pods.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        if priority:
            pods.setdefault("spec", {})["priorityClassName"] = priority
        # The first container is Ray's, as in KubeRay.
        for container in pods.get("spec", {}).get("containers", [])[:1]:
            if image:
                container["image"] = image
            if models:
                variables = {one["name"]: one.get("value") for one in container.get("env", [])}
                mount = {"name": "models", "mountPath": variables.get("HF_HOME", HF_HOME)}
                claim = {"persistentVolumeClaim": {"claimName": models}}
                container.setdefault("volumeMounts", []).append(mount)
                pods["spec"].setdefault("volumes", []).append({"name": "models", **claim})
            if group is groups[0]:
                resources = container.setdefault("resources", {})
                for part in ("requests", "limits"):
                    amounts = resources.setdefault(part, {})
                    amounts.pop(GPU, None)
                    if gpus_per_worker and not gpu_claim:
                        amounts[gpu_resource] = str(gpus_per_worker)
                if gpus_per_worker and gpu_claim:
                    names = [f"gpu-{number}" for number in range(gpus_per_worker)]
                    resources["claims"] = [{"name": name} for name in names]
                    pods["spec"]["resourceClaims"] = [
                        {"name": name, "resourceClaimTemplateName": gpu_claim} for name in names
                    ]
                    # KubeRay tells Ray of GPUs that are resources only.
                    group.setdefault("rayStartParams", {})["num-gpus"] = str(gpus_per_worker)
    check_raycluster(manifest)
    return manifest


def _share(group: Object, gpus: int) -> None:
    """Cuts a worker down to what `gpus` of its GPUs need."""
    spec = group.get("template", {}).get("spec", {})
    containers = spec.get("containers") or [{}]
    amounts = containers[0].get("resources", {})
    whole = int(amounts.get("limits", {}).get(GPU, 0))
    if not 0 < gpus < whole:
        return

    def part(quantity: object) -> str:
        [(number, unit)] = re.findall(r"^([\d.]+)(.*)$", str(quantity))
        share = float(number) * gpus / whole
        return (str(int(share)) if share >= 10 else f"{share:.3g}") + unit

    for given in amounts.values():
        given |= {name: part(given[name]) for name in {*given} & {"cpu", "memory", DISK}}
    for volume in spec.get("volumes", []):
        if size := (volume.get("emptyDir") or {}).get("sizeLimit"):
            volume["emptyDir"]["sizeLimit"] = part(size)
    params = group.get("rayStartParams", {})
    params |= {name: part(params[name]) for name in {*params} & {"object-store-memory"}}


MIN_RAY = (2, 52, 0)
"""First version with token authentication."""
START_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")


def check_raycluster(manifest: dict[str, Any]) -> None:
    """Rejects a RayCluster that KubeRay would ignore, or that does not fit our runs.

    Raises:
        ClusterError: Lists all errors.
    """
    faults = [*_faults(manifest)]
    if faults:
        name = manifest.get("metadata", {}).get("name", "?")
        raise ClusterError(f"RayCluster {name}: " + "; ".join(faults))


def _faults(manifest: dict[str, Any]) -> Iterator[str]:
    """`ValidateRayClusterMetadata` and `ValidateRayClusterSpec` (utils/validation.go), a head
    without tasks, and a token.
    """
    name = manifest.get("metadata", {}).get("name", "")
    if len(name) > CLUSTER_NAME_LIMIT:
        yield f"its name has {len(name)} characters, KubeRay takes at most {CLUSTER_NAME_LIMIT}"
    if not is_dns_1035(name):
        yield "its name must begin with a letter and have lower case letters, digits and `-` only"
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
