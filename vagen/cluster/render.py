"""Renders a run's RayCluster from the platform's template."""

import copy
from collections.abc import Mapping

import yaml

from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import CONFIG_MAPS, Kube, Object
from vagen.cluster.names import LEASE_UNTIL, LEASED, QUEUE, RUN_NAME, lease_end, run_labels
from vagen.cluster.rules import check_raycluster

TEMPLATE = "vagen-raycluster"
TEMPLATE_KEY = "raycluster.yaml"
GPU = "nvidia.com/gpu"


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
) -> Object:
    """A run's RayCluster: the template with per-run fields; all others are kept.

    Args:
        template: The platform's RayCluster with one worker group.
        name: Its name, from `vagen.cluster.names.cluster_name`.
        run: Name of the run.
        workers: Number of worker pods.
        gpus_per_worker: GPUs per worker, as request and limit; 0 removes the template's.
        lease_minutes: Minutes from now until `gc` deletes it, unless the lease is renewed.
        image: Image of all Ray containers; None for the template's.
        queue: Kueue's local queue, which admits head and workers together.
        labels: Further labels of the RayCluster and its pods, e.g. for costs.
        priority: Priority class of the pods; None for the template's.

    Raises:
        ClusterError: KubeRay would reject the result; the message says why.
    """
    manifest = copy.deepcopy(template)
    manifest["apiVersion"], manifest["kind"] = "ray.io/v1", "RayCluster"
    labels = {**(labels or {}), **run_labels(run)}
    metadata = manifest.setdefault("metadata", {})
    metadata["name"] = name
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
    for group in (spec.get("headGroupSpec") or {}, groups[0]):
        _apply_run_fields(group, labels, image, priority)
    _set_gpus(groups[0], gpus_per_worker)
    check_raycluster(manifest)
    return manifest


def _apply_run_fields(
    group: Object, labels: Mapping[str, str], image: str | None, priority: str | None
) -> None:
    """Sets per-run fields of a group's pods; the first container is Ray's, as in KubeRay."""
    template = group.setdefault("template", {})
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    pod = template.setdefault("spec", {})
    if priority:
        pod["priorityClassName"] = priority
    for container in pod.get("containers", [])[:1]:
        if image:
            container["image"] = image


def _set_gpus(group: Object, count: int) -> None:
    for container in group["template"]["spec"].get("containers", [])[:1]:
        resources = container.setdefault("resources", {})
        for part in ("requests", "limits"):
            amounts = resources.setdefault(part, {})
            amounts.pop(GPU, None)
            if count:
                amounts[GPU] = str(count)
