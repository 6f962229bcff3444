"""The overlays with GPUs: Kueue admits what they ask for, and nodes as the docs name them hold it.

The nodes are objects of the API without a machine: pods are given to them and never start.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from place import await_true, kubectl, site
from rendered import of_kind
from test_kueue import apply

TRIAL = "vagen-e2e-gpu"
PROBE = "vagen.dev/probe"
"""Taint of the nodes, so that nobody else's pods are given to them: the flavors tolerate it."""
GPU = "nvidia.com/gpu"
CPU_NODE = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "200Gi"}
GPU_NODE = {"cpu": "96", "memory": "1Ti", "ephemeral-storage": "1Ti", GPU: "8"}
KINDS = (
    *("ResourceFlavor", "ClusterQueue", "LocalQueue", "ServiceAccount"),
    *("LimitRange", "ResourceQuota", "PersistentVolumeClaim", "RayCluster"),
)


def moved(overlay: str, home: str) -> list[dict[str, Any]]:
    """What an overlay has for the runs of a namespace, moved to `TRIAL`; last what they ask for."""
    (room,) = (one for one in of_kind(overlay, "Namespace") if one["metadata"]["name"] == home)
    found = [deepcopy(one) for kind in KINDS for one in of_kind(overlay, kind)]
    found = [one for one in found if one["metadata"].get("namespace", home) == home]
    for one in found:
        one["metadata"]["namespace"] = TRIAL
        if one["kind"] in ("ClusterQueue", "ResourceFlavor"):
            one["metadata"] = {"name": f"e2e-{one['metadata']['name']}"}
        if one["kind"] == "ResourceFlavor":
            tolerations = one.setdefault("spec", {}).setdefault("tolerations", [])
            tolerations.append({"key": PROBE, "operator": "Exists"})
        if one["kind"] == "ClusterQueue":
            one["spec"]["namespaceSelector"] = {"matchLabels": {PROBE: TRIAL}}
            for group in one["spec"]["resourceGroups"]:
                for flavor in group["flavors"]:
                    flavor["name"] = f"e2e-{flavor['name']}"
        if one["kind"] == "LocalQueue":
            one["spec"]["clusterQueue"] = f"e2e-{one['spec']['clusterQueue']}"
            queue = one["metadata"]["name"]
        if one["kind"] == "RayCluster":
            one["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": queue}}
            one["spec"]["suspend"] = True
    labels = {**room["metadata"]["labels"], PROBE: TRIAL}
    claims = [one for one in found if one["kind"] == "PersistentVolumeClaim"]
    room = {**room, "metadata": {"name": TRIAL, "labels": labels}}
    return [room, *(volume(claim) for claim in claims), *found]


def volume(claim: dict[str, Any]) -> dict[str, Any]:
    """One for a claim, whose storage class is the site's own matter."""
    spec = claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": TRIAL},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": spec["resources"]["requests"],
            "storageClassName": spec["storageClassName"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"name": claim["metadata"]["name"], "namespace": TRIAL},
            "hostPath": {"path": f"/tmp/{TRIAL}"},
        },
    }


def node(name: str, resources: dict[str, str]) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    taints = [{"key": PROBE, "value": TRIAL, "effect": "NoSchedule"}]
    if GPU in resources:
        labels |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": site("GPU_PRODUCT")}
        taints += [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
    }


def keep_ready(name: str, resources: dict[str, str]) -> None:
    """What a node's kubelet tells of it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": "KubeletReady"}
    amounts = {**resources, "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    patch = json.dumps({"status": status})
    kubectl("patch", "node", name, "--subresource=status", "--type=merge", "--patch", patch)


@contextmanager
def nodes(workers: int) -> Iterator[dict[str, dict[str, str]]]:
    """One for the head, and one with GPUs for each worker; none is left in the end."""
    with_gpus = {**GPU_NODE, site("RDMA_RESOURCE"): "1"}
    held = {"vagen-e2e-cpu": CPU_NODE}
    held |= {f"{TRIAL}-{number}": with_gpus for number in range(workers)}
    apply([node(name, resources) for name, resources in held.items()])
    try:
        yield held
    finally:
        kubectl("delete", "node", *held)


@pytest.mark.parametrize("overlay", ["h100", "h100-multinode"])
def test_what_the_overlay_asks_for_is_admitted_and_finds_nodes(cluster, overlay: str) -> None:
    if "clusterqueues" not in kubectl("api-resources", "--api-group", "kueue.x-k8s.io"):
        pytest.skip("no Kueue")
    for asked in of_kind(overlay, "RayCluster"):
        workers = sum(group["replicas"] for group in asked["spec"]["workerGroupSpecs"])
        *room, asked = moved(overlay, asked["metadata"]["namespace"])
        with nodes(workers) as held:
            apply(room)
            try:
                apply([asked])
                found = await_true(lambda held=held: placed(held), 5)
            finally:
                # No kubelet is there to end the pods.
                apply([asked], "delete")
                now = ("--force", "--grace-period=0")
                kubectl("delete", "pods", "--all", "--namespace", TRIAL, *now)
                apply(room[::-1], "delete")
        assert found.pop("head") == ["vagen-e2e-cpu"], "GPUs are left to workers"
        assert sorted(found["worker"]) == sorted({*held} - {"vagen-e2e-cpu"})


def placed(held: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Nodes of the Ray pods by type, once there are as many as nodes, and all have one."""
    for name, resources in held.items():
        keep_ready(name, resources)
    words = ("get", "pods", "--namespace", TRIAL, "--output", "json")
    there = json.loads(kubectl(*words))["items"]
    found: dict[str, list[str]] = {}
    for pod in there:
        kind = pod["metadata"]["labels"]["ray.io/node-type"]
        found.setdefault(kind, []).append(pod["spec"].get("nodeName", ""))
    return found if len(there) == len(held) and all(all(names) for names in found.values()) else {}
