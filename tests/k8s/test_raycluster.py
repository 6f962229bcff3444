"""The RayCluster templates: sizes that fit each other, the node and the quota; rules of KubeRay."""

import re

import pytest
from rendered import OVERLAYS, ROOT, Pod, groups, needs, of_kind, pods, quantity

GPU = "nvidia.com/gpu"
CLUSTERS = [(name, found) for name in OVERLAYS for found in of_kind(name, "RayCluster")]
RAY_PODS = [(name, pod) for name in OVERLAYS for pod in pods(name) if "RayCluster" in pod.owner]
INIT = {"requests": {"cpu": "200m", "memory": "256Mi"}}
INIT["limits"] = INIT["requests"]
"""Of the init container that KubeRay 1.6 puts before a worker (`DefaultWorkerPodTemplate`)."""


def empty_dirs(pod: Pod, medium: str) -> float:
    """Bytes that a pod's empty directories may hold."""
    return sum(
        quantity(volume["emptyDir"]["sizeLimit"])
        for volume in pod.spec["volumes"]
        if "emptyDir" in volume and volume["emptyDir"].get("medium", "") == medium
    )


@pytest.mark.parametrize(("name", "cluster"), CLUSTERS)
def test_ray_is_the_one_of_the_images(name, cluster) -> None:
    file = "verl.txt" if name == "cpu" else "gpu.txt"
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints" / file).read_text(), re.M)
    assert pinned and cluster["spec"]["rayVersion"] == pinned[1]


@pytest.mark.parametrize(("name", "cluster"), CLUSTERS)
def test_the_object_store_fits_into_shared_memory(name, cluster) -> None:
    """Ray keeps it in /dev/shm, and falls back to the disk of /tmp where it does not fit."""
    for group in groups(cluster):
        (shared,) = [
            quantity(volume["emptyDir"]["sizeLimit"])
            for volume in group["template"]["spec"]["volumes"]
            if volume["name"] == "shm"
        ]
        assert int(group["rayStartParams"]["object-store-memory"]) <= 0.8 * shared


@pytest.mark.parametrize(("name", "pod"), RAY_PODS)
def test_memory_and_disk_hold_what_the_volumes_may_take(name, pod) -> None:
    memory, disk = needs(pod, "limits", "memory"), needs(pod, "limits", "ephemeral-storage")
    assert empty_dirs(pod, "Memory") <= 0.4 * memory, "shared memory counts as memory of the pod"
    assert empty_dirs(pod, "") <= disk, "empty directories count as its disk"


@pytest.mark.parametrize(("name", "pod"), [(name, pod) for name, pod in RAY_PODS if name != "cpu"])
def test_gpu_clusters_are_guaranteed(name, pod) -> None:
    for container in (*pod.containers, {"resources": INIT}):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {"cpu", "memory"} <= requests.keys()
        assert requests == limits


@pytest.mark.parametrize("name", ["h100", "h100-multinode"])
def test_workers_with_gpus_go_to_their_nodes_and_heads_do_not_ask_for_them(name) -> None:
    for pod in pods(name):
        if "RayCluster" not in pod.owner:
            continue
        if pod.owner.endswith("/head"):
            assert needs(pod, "limits", GPU) == 0
            continue
        assert needs(pod, "limits", GPU) == 8
        assert pod.spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod.spec["tolerations"]
        variables = {entry["name"] for entry in pod.spec["containers"][0]["env"]}
        assert "TORCH_NCCL_DUMP_ON_TIMEOUT" in variables


def test_rdma_and_its_settings_are_only_where_runs_span_nodes() -> None:
    for name, pod in RAY_PODS:
        limits = pod.spec["containers"][0]["resources"]["limits"]
        spans = pod.namespace == "vagen-rdma" and pod.owner.endswith("/worker")
        assert ("rdma/hca_shared_devices_a" in limits) == spans, f"{name} {pod.owner}"
        variables = {entry["name"] for entry in pod.spec["containers"][0]["env"]}
        assert ("NCCL_SOCKET_IFNAME" in variables) == (pod.namespace == "vagen-rdma")


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_quota_admits_the_platform_and_a_run(name) -> None:
    for quota in of_kind(name, "ResourceQuota"):
        namespace, hard = quota["metadata"]["namespace"], quota["spec"]["hard"]
        for resource in ("cpu", "memory"):
            for part in ("requests", "limits"):
                used = sum(
                    needs(pod, part, resource) * replicas(name, pod)
                    for pod in pods(name)
                    if pod.namespace == namespace
                )
                assert used <= quantity(hard[f"{part}.{resource}"]), (
                    f"{namespace} {part}.{resource}"
                )
        gpus = sum(
            needs(pod, "limits", GPU) * replicas(name, pod)
            for pod in pods(name)
            if pod.namespace == namespace
        )
        assert gpus <= quantity(hard.get(f"requests.{GPU}", 0))


def replicas(name: str, pod: Pod) -> int:
    """How many of a pod there are."""
    if not pod.owner.endswith("/worker"):
        return 1
    (cluster,) = [
        found
        for found in of_kind(name, "RayCluster")
        if found["metadata"]["namespace"] == pod.namespace
    ]
    return cluster["spec"]["workerGroupSpecs"][0]["replicas"]


def test_the_cpu_overlay_fits_a_node_of_four_cores_and_twelve_gib() -> None:
    """Beside Kubernetes, KubeRay and Kubeflow Pipelines: about 1.5 cores and 3 GiB requested."""
    cpu = sum(needs(pod, "requests", "cpu") for pod in pods("cpu"))
    memory = sum(needs(pod, "requests", "memory") for pod in pods("cpu"))
    assert cpu <= 2.5
    assert memory <= 9 * 2**30
