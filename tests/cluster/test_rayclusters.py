"""The life of a RayCluster against an API server."""

import re

import pytest

from vagen.cluster import (
    ClusterError,
    await_raycluster,
    delete_raycluster,
    ensure_raycluster,
    find_raycluster,
    is_ready,
    renew_lease,
)
from vagen.cluster.kube import RAYCLUSTERS
from vagen.cluster.names import LEASE_UNTIL

pytestmark = pytest.mark.slow


def test_it_is_made_awaited_and_deleted(namespace, kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    ready = await_raycluster(kube, "lake", pending_deadline=10)
    assert is_ready(ready)
    assert len(namespace.operator.pods("lake", "worker")) == 2
    assert delete_raycluster(kube, "lake", wait=10)
    assert not namespace.store.all("RayCluster")
    assert not namespace.store.all("Pod")
    assert not delete_raycluster(kube, "lake", wait=10)


def test_a_second_launcher_finds_it_and_extends_its_time(kube, manifest) -> None:
    first = ensure_raycluster(kube, manifest(lease_minutes=60))
    again = ensure_raycluster(kube, manifest(lease_minutes=2880))
    renew_lease(kube, "lake", 2880)
    assert again["metadata"]["uid"] == first["metadata"]["uid"]
    found = find_raycluster(kube, "lake")
    assert found is not None
    before, after = (one["metadata"]["annotations"][LEASE_UNTIL] for one in (first, found))
    assert after > before


@pytest.fixture
def room_for_one(namespace) -> None:
    namespace.store.quotas["RayCluster"] = 1


def test_a_quota_that_is_used_up_is_waited_for(room_for_one, kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    with pytest.raises(ClusterError, match="exceeded quota: vagen"):
        ensure_raycluster(kube, manifest("sea"), deadline=0)
    told: list[str] = []

    def the_other_ends(text: str) -> None:
        told.append(text)
        delete_raycluster(kube, "lake", wait=0)

    made = ensure_raycluster(kube, manifest("sea"), report=the_other_ends)
    assert made["metadata"]["name"] == "sea"
    assert len(told) == 1 and "quota vagen is used up" in told[0]


def test_a_lost_answer_does_not_make_two(namespace, kube, manifest) -> None:
    from apiserver import Fault

    namespace.server.faults.append(Fault("POST .*rayclusters", "lose"))
    made = ensure_raycluster(kube, manifest())
    assert [one["metadata"]["uid"] for one in namespace.store.all("RayCluster")] == [
        made["metadata"]["uid"]
    ]


def test_another_runs_cluster_is_not_taken(kube, manifest) -> None:
    ensure_raycluster(kube, manifest(run="lake"))
    with pytest.raises(ClusterError, match="belongs to run lake"):
        ensure_raycluster(kube, manifest(run="sea", name="lake"))


def test_a_cluster_of_another_size_is_not_taken(kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    with pytest.raises(ClusterError, match=r"x \w+ .* 4 x \w+"):
        ensure_raycluster(kube, manifest(workers=4))


def test_one_that_is_being_deleted_is_waited_for_with_its_pods(namespace, kube, manifest) -> None:
    first = ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=10)
    namespace.operator.grace_rounds = 20
    old = {pod["metadata"]["uid"] for pod in namespace.store.all("Pod")}
    # In the background: the object goes at once, its pods later.
    kube.delete(RAYCLUSTERS, "lake")
    made = ensure_raycluster(kube, manifest())
    assert made["metadata"]["uid"] != first["metadata"]["uid"]
    assert not old & {pod["metadata"]["uid"] for pod in namespace.store.all("Pod")}


def test_what_holds_a_deletion_is_named(namespace, kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=10)
    namespace.operator.grace_rounds = 10**6
    with pytest.raises(ClusterError, match=r"foregroundDeletion and pods lake-head-\d+, lake-gpu-"):
        delete_raycluster(kube, "lake", wait=0.5)
    namespace.operator.grace_rounds = 1


def test_ready_is_not_believed_when_pods_have_failed(namespace, kube, manifest) -> None:
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=10)
    namespace.operator.pod_status = lambda pod: (
        {"phase": "Pending", "conditions": []} if "-worker-" in pod["metadata"]["name"] else None
    )
    with pytest.raises(ClusterError, match="0 of 2 workers ready"):
        for _ in range(100):
            await_raycluster(kube, "lake", pending_deadline=0.2)
    cluster = namespace.store.all("RayCluster")[0]
    assert cluster["status"]["state"] == "ready"


def test_the_deadline_names_what_is_missing_and_the_report_says_it_before(
    namespace, kube, manifest
) -> None:
    message = (
        "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint "
        "{pool: x}. preemption: 0/5 nodes are available: 5 Preemption is not helpful."
    )
    namespace.operator.pod_status = lambda pod: (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
            ],
        }
        if "-worker-" in pod["metadata"]["name"]
        else None
    )
    ensure_raycluster(kube, manifest())
    told: list[str] = []
    with pytest.raises(ClusterError) as caught:
        await_raycluster(kube, "lake", pending_deadline=0.8, report=told.append)
    assert "not ready after 1 s (0 of 2 workers ready)" in str(caught.value)
    assert "nvidia.com/gpu is short" in str(caught.value)
    assert "tolerate the taint" in str(caught.value)
    assert len(told) == len(set(told))
    assert all("fits none of 5 nodes" in text for text in told)


def test_a_final_fault_ends_the_wait_after_its_grace(namespace, kube, manifest) -> None:
    namespace.operator.refusal = lambda prefix: (
        f'pods "{prefix}" is forbidden: violates PodSecurity "restricted:latest": '
        "allowPrivilegeEscalation != false"
    )
    ensure_raycluster(kube, manifest())
    with pytest.raises(ClusterError, match=r"cannot become ready(.|\n)*Pod Security refuses"):
        await_raycluster(kube, "lake", pending_deadline=60)


def test_a_fault_that_heals_within_its_grace_is_waited_for(namespace, kube, manifest) -> None:
    refusals = iter(["exceeded quota: gpus, requested: x=8, used: x=8, limited: x=8"] * 8)
    namespace.operator.refusal = lambda _: next(refusals, "")
    ensure_raycluster(kube, manifest())
    assert is_ready(await_raycluster(kube, "lake", pending_deadline=10))


def test_a_crash_loop_shows_the_last_log(namespace, kube, manifest) -> None:
    def crashed(pod):
        if "-head-" not in pod["metadata"]["name"]:
            return None
        namespace.operator.logs[(pod["metadata"]["name"], "ray-head", True)] = [
            ("2026-01-01T00:00:00Z", "ImportError: no module named ray")
        ]
        container = {
            "name": "ray-head",
            "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
        }
        return {"phase": "Running", "containerStatuses": [container]}

    namespace.operator.pod_status = crashed
    ensure_raycluster(kube, manifest())
    with pytest.raises(ClusterError, match=r"exit code 1, 4 restarts(.|\n)*ImportError"):
        await_raycluster(kube, "lake", pending_deadline=60)


def test_kueue_is_named_until_it_admits(namespace, kube, manifest) -> None:
    namespace.operator.admit = False
    body = manifest(queue="vagen")
    body["spec"]["suspend"] = True
    ensure_raycluster(kube, body)
    message = (
        "couldn't assign flavors to pod set gpu: insufficient unused quota for nvidia.com/gpu in "
        "flavor h100, 8 more needed"
    )
    namespace.operator.event("Workload", "raycluster-lake-1a2b3", "Pending", message)
    with pytest.raises(ClusterError, match=r"Kueue has not admitted it in queue vagen .*8 more"):
        await_raycluster(kube, "lake", pending_deadline=0.4)
    namespace.operator.admit = True
    assert is_ready(await_raycluster(kube, "lake", pending_deadline=10))


def test_a_deletion_meanwhile_ends_the_wait(namespace, kube, manifest) -> None:
    namespace.operator.pod_status = lambda pod: {"phase": "Pending"}
    ensure_raycluster(kube, manifest())
    kube.delete(RAYCLUSTERS, "lake")
    with pytest.raises(ClusterError, match="was deleted while it was awaited"):
        await_raycluster(kube, "lake", pending_deadline=60)


def test_a_field_that_kuberay_does_not_have_is_refused(kube, manifest) -> None:
    body = manifest()
    body["spec"]["headGroupSpec"]["rayStartParam"] = {}
    with pytest.raises(ClusterError, match=re.compile("invalid.*rayStartParam", re.S)):
        ensure_raycluster(kube, body)
