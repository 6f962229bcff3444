"""Pod Security `restricted`, field by field, for every pod; what the root file system allows."""

import pytest
from rendered import RENDERINGS, Pod, of_kind, pods

RESTRICTED = [pod for name in RENDERINGS for pod in pods(name)]
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
"""Volume types that `restricted` admits."""


def violations(pod: Pod) -> list[str]:
    """What of `restricted` a pod breaks, as https://k8s.io/docs/concepts/security/pod-security-standards
    lists it.
    """
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC", "hostUsers") if pod.spec.get(key)]
    for volume in pod.spec.get("volumes", []):
        found += [f"volume {volume['name']}" for kind in volume if kind not in VOLUMES | {"name"}]
    shared = pod.spec.get("securityContext", {})
    if shared.get("sysctls") or shared.get("windowsOptions"):
        found.append("sysctls")
    for container in pod.containers:
        own = container.get("securityContext", {})
        merged = {**shared, **own}
        found += [
            f"{container['name']}: {rule}"
            for rule, kept in {
                "privileged": not own.get("privileged"),
                "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
                "capabilities.drop": own.get("capabilities", {}).get("drop") == ["ALL"],
                "capabilities.add": set(own.get("capabilities", {}).get("add", []))
                <= {"NET_BIND_SERVICE"},
                "runAsNonRoot": merged.get("runAsNonRoot") is True,
                "runAsUser": merged.get("runAsUser", 1) != 0,
                "seccompProfile": merged.get("seccompProfile", {}).get("type")
                in ("RuntimeDefault", "Localhost"),
                "procMount": own.get("procMount", "Default") == "Default",
                "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
            }.items()
            if not kept
        ]
    return found


def enforced(name: str) -> dict[str, str]:
    """The level that each namespace of a rendering enforces."""
    label = "pod-security.kubernetes.io/enforce"
    return {
        found["metadata"]["name"]: found["metadata"]["labels"][label]
        for found in of_kind(name, "Namespace")
    }


@pytest.mark.parametrize("name", RENDERINGS)
def test_pods_of_a_restricted_namespace_are_admitted(name: str) -> None:
    levels = enforced(name)
    assert levels["vagen"] == "restricted"
    refused = {
        pod.owner: violations(pod) for pod in pods(name) if levels[pod.namespace] == "restricted"
    }
    assert refused
    assert not {owner: found for owner, found in refused.items() if found}


def test_rdma_breaks_restricted_in_its_own_namespace_only_by_pinning_memory_as_root() -> None:
    assert enforced("h100-multinode") == {"vagen": "restricted", "vagen-rdma": "privileged"}
    found = {
        pod.owner.rsplit("/", 1)[1]: violations(pod)
        for pod in pods("h100-multinode")
        if pod.namespace == "vagen-rdma" and "RayCluster" in pod.owner
    }
    assert found == {
        "head": [],
        "worker": [
            f"ray-worker: {rule}" for rule in ("capabilities.add", "runAsNonRoot", "runAsUser")
        ],
    }


@pytest.mark.parametrize("name", RENDERINGS)
def test_versions_of_the_standard_are_pinned(name: str) -> None:
    for namespace in of_kind(name, "Namespace"):
        labels = namespace["metadata"]["labels"]
        for mode in ("enforce", "audit", "warn"):
            assert labels[f"pod-security.kubernetes.io/{mode}-version"] == "v1.33"


@pytest.mark.parametrize("pod", RESTRICTED, ids=lambda pod: f"{pod.namespace}-{pod.owner}")
def test_root_is_read_only_and_what_is_written_has_a_volume(pod: Pod) -> None:
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    for container in pod.containers:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for mount in container.get("volumeMounts", []):
            volume = volumes.get(mount["name"])
            # Others are claims: of a StatefulSet, or of workers that share a folder.
            claimed = volume is None or "persistentVolumeClaim" in volume
            read = not claimed and {"secret", "configMap"} & {*(volume or ())} and mount["readOnly"]
            assert claimed or read or "sizeLimit" in volume["emptyDir"]
    if pod.owner != "Job/vagen-s3-bucket":
        written = {mount["mountPath"] for mount in pod.containers[-1]["volumeMounts"]}
        assert "/tmp" in written
    if pod.owner.startswith("RayCluster"):
        assert {"/dev/shm", "/tmp/ray", "/home/vagen", "/runs"} <= written


@pytest.mark.parametrize("pod", RESTRICTED, ids=lambda pod: f"{pod.namespace}-{pod.owner}")
def test_no_pod_but_the_one_that_removes_forgotten_clusters_has_a_token(pod: Pod) -> None:
    assert pod.spec["automountServiceAccountToken"] is (pod.owner == "CronJob/vagen-gc")
    assert pod.spec["serviceAccountName"].startswith("vagen-")
    assert pod.spec["enableServiceLinks"] is False
