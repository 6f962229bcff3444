"""Messages as Kubernetes, Kueue and KubeRay word them, and what we make of them."""

from datetime import UTC, datetime, timedelta

import pytest

from vagen.cluster.advice import explain_cluster, explain_pod


def pod(**status) -> dict:
    return {"metadata": {"name": "lake-worker-1"}, "spec": {}, "status": status}


def waiting(reason: str, message: str = "", **more) -> dict:
    container = {
        "name": "ray-worker",
        "image": "registry.example/trainer:1",
        "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
        **more,
    }
    return pod(phase="Pending", containerStatuses=[container])


def unscheduled(message: str, reason: str = "Unschedulable") -> dict:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(phase="Pending", conditions=[condition])


def event(kind: str, name: str, reason: str, message: str, at: str = "2026-01-01T00:00:00Z"):
    return {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "firstTimestamp": None,
        "lastTimestamp": None,
        # Kueue and the scheduler say it so, all others by `lastTimestamp`.
        "eventTime" if kind == "Workload" else "lastTimestamp": at,
    }


PODS = {
    "no gpu": (
        unscheduled(
            "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 node(s) didn't match Pod's "
            "node affinity/selector. preemption: 0/9 nodes are available: 9 Preemption is not "
            "helpful for scheduling."
        ),
        ["fits none of 9 nodes", "nvidia.com/gpu is short", "check the template's nodeSelector"],
        False,
    ),
    "taint": (
        unscheduled("0/2 nodes are available: 2 node(s) had untolerated taint {gpu: true}."),
        ["tolerate the taint"],
        False,
    ),
    "full disk": (
        unscheduled(
            "0/1 nodes are available: 1 node(s) had untolerated taint "
            "{node.kubernetes.io/disk-pressure: }."
        ),
        ["a node is short of disk"],
        False,
    ),
    "memory": (
        unscheduled(
            "0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient memory. preemption: not "
            "eligible due to preemptionPolicy=Never."
        ),
        ["cpu, memory is short"],
        False,
    ),
    "volume": (
        unscheduled(
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. "
            "preemption: 0/3 nodes are available."
        ),
        ["volume claim is not bound"],
        False,
    ),
    "gate": (
        unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
        ["waits for a scheduling gate"],
        False,
    ),
    "no such tag": (
        waiting(
            "ErrImagePull",
            'rpc error: code = NotFound desc = failed to pull and unpack image "x:1": not found',
        ),
        ["registry.example/trainer:1 cannot be pulled", "push it, or correct its name"],
        True,
    ),
    "no credentials": (
        waiting("ErrImagePull", "failed to authorize: 401 Unauthorized"),
        ["check the imagePullSecrets"],
        True,
    ),
    "back off": (
        waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/trainer:1"'),
        ["nodes' way to the registry"],
        True,
    ),
    "image name": (waiting("InvalidImageName", "invalid reference"), ["correct the image"], True),
    "never pulled": (waiting("ErrImageNeverPull", ""), ["load it onto the nodes"], True),
    "missing secret": (
        waiting("CreateContainerConfigError", 'secret "vagen-s3" not found'),
        ["create the secret vagen-s3"],
        True,
    ),
    "missing config map": (
        waiting("CreateContainerConfigError", 'configmap "vagen-site" not found'),
        ["create the configmap vagen-site"],
        True,
    ),
    "missing key": (
        waiting(
            "CreateContainerConfigError",
            "couldn't find key AWS_ACCESS_KEY_ID in Secret vagen/vagen-s3",
        ),
        ["secret vagen-s3 lacks the key AWS_ACCESS_KEY_ID"],
        True,
    ),
    "root": (
        waiting(
            "CreateContainerConfigError",
            "container has runAsNonRoot and image has non-numeric user (ray)",
        ),
        ["set runAsUser"],
        True,
    ),
    "out of memory": (
        waiting(
            "CrashLoopBackOff",
            restartCount=3,
            lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
        ),
        ["OOMKilled, 3 restarts", "/dev/shm counts"],
        True,
    ),
    "crash": (
        waiting(
            "CrashLoopBackOff",
            restartCount=5,
            lastState={"terminated": {"reason": "Error", "exitCode": 2}},
        ),
        ["keeps failing", "exit code 2"],
        True,
    ),
    "evicted": (
        pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
        ["was evicted (The node was low on resource: memory.)"],
        False,
    ),
    "preempted": (
        pod(phase="Failed", reason="Preempting", message="Preempted in order to admit"),
        ["was ended: Preempting"],
        False,
    ),
    "init container": (
        pod(
            phase="Pending",
            initContainerStatuses=waiting("ErrImagePull", "no such host")["status"][
                "containerStatuses"
            ],
        ),
        ["cannot be pulled"],
        True,
    ),
}


@pytest.mark.parametrize("case", PODS)
def test_a_pod_that_does_not_run_is_explained(case) -> None:
    item, texts, final = PODS[case]
    (finding,) = explain_pod(item)
    for text in texts:
        assert text in finding.text
    assert "lake-worker-1" in finding.text
    assert finding.final is final


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "containerStatuses": []},
        {"phase": "Pending"},
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        waiting("ContainerCreating")["status"],
        waiting("PodInitializing")["status"],
    ],
)
def test_a_pod_that_is_on_its_way_is_left_alone(status) -> None:
    assert explain_pod(pod(**status)) == []


def test_a_volume_that_cannot_be_mounted() -> None:
    message = 'MountVolume.SetUp failed for volume "ca" : configmap "site-ca" not found'
    events = [
        event("Pod", "lake-worker-1", "FailedMount", message),
        event("Pod", "another", "FailedMount", message),
    ]
    (finding,) = explain_pod(pod(phase="Pending"), events)
    assert "create the configmap site-ca" in finding.text
    assert finding.final


def cluster(**changes) -> dict:
    return {
        "metadata": {"name": "lake", "labels": {"kueue.x-k8s.io/queue-name": "vagen"}},
        "spec": {},
        "status": {"observedGeneration": 1},
        **changes,
    }


def failed(message: str) -> dict:
    condition = {"type": "ReplicaFailure", "status": "True", "message": message}
    return cluster(status={"conditions": [condition]})


CLUSTERS = {
    "quota": (
        failed(
            'FailedCreateWorkerPod\npods "lake-gpu-worker-" is forbidden: exceeded quota: gpus, '
            "requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8, limited: "
            "requests.nvidia.com/gpu=8"
        ),
        "quota gpus is used up (asked for requests.nvidia.com/gpu=8",
        False,
    ),
    "pod security": (
        failed(
            'FailedCreateHeadPod\npods "lake-head-" is forbidden: violates PodSecurity '
            '"restricted:latest": runAsNonRoot != true'
        ),
        "Pod Security refuses the pod",
        True,
    ),
    "service account": (
        failed(
            'FailedCreateHeadPod\npods "lake-head-" is forbidden: error looking up service account '
            'vagen/vagen-ray: serviceaccount "vagen-ray" not found'
        ),
        "service account of its pods is missing",
        True,
    ),
    "limit range": (
        failed(
            'FailedCreateHeadPod\npods "x" is forbidden: maximum memory usage per Container is 1Gi'
        ),
        "LimitRange",
        True,
    ),
    "namespace that goes": (
        failed(
            'FailedCreateHeadPod\npods "lake-head-" is forbidden: unable to create new content in '
            "namespace vagen because it is being terminated"
        ),
        'could not create a pod: FailedCreateHeadPod: pods "lake-head-" is forbidden',
        False,
    ),
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_what_kuberay_could_not_do_is_explained(case) -> None:
    item, text, final = CLUSTERS[case]
    (finding,) = explain_cluster(item, [], [])
    assert text in finding.text
    assert finding.final is final


def test_kueues_last_word_counts() -> None:
    item = cluster(spec={"suspend": True})
    said = [
        event("Workload", "raycluster-lake-12ab", "Pending", "first", "2026-01-01T00:00:00.6Z"),
        event("Workload", "raycluster-lake-12ab", "Pending", "last", "2026-01-02T00:00:00.4Z"),
        event("Workload", "raycluster-sea-12ab", "Pending", "other", "2026-01-03T00:00:00.0Z"),
    ]
    (finding,) = explain_cluster(item, [], said)
    assert "(Pending: last)" in finding.text
    (finding,) = explain_cluster(item, [], [])
    assert "is there a LocalQueue vagen" in finding.text
    assert explain_cluster(cluster(), [], said) == []


def test_an_invalid_specification_is_final() -> None:
    said = event("RayCluster", "lake", "InvalidRayClusterSpec", "no container")
    (finding,) = explain_cluster(cluster(), [], [said])
    assert finding.final
    assert "no container" in finding.text


def test_a_refusal_that_is_over_is_not_repeated() -> None:
    old = event("RayCluster", "lake", "FailedToCreateHeadPod", "quota")
    well = cluster(status={"conditions": [{"type": "HeadPodReady", "status": "False"}]})
    assert explain_cluster(well, [], [old]) == []


def test_kuberay_is_given_some_seconds_to_notice_a_new_cluster() -> None:
    def made(seconds: float) -> dict:
        moment = datetime.now(UTC) - timedelta(seconds=seconds)
        return cluster(
            status={}, metadata={"name": "lake", "creationTimestamp": f"{moment:%FT%TZ}"}
        )

    assert explain_cluster(made(2), [], []) == []
    (finding,) = explain_cluster(made(60), [], [])
    assert "is the operator running" in finding.text
