"""Whether a driver has ended, where KubeRay's status alone does not tell."""

import pytest

from vagen.cluster import await_raycluster, ensure_raycluster
from vagen.cluster.driver import ASSUMED, has_ended, stop_driver
from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import RAYCLUSTERS


def job(namespace, **status) -> dict:
    known = {
        "jobId": "j",
        "rayClusterName": "lake",
        "dashboardURL": namespace.operator.ray.address,
        "jobDeploymentStatus": "Failed",
    }
    return {"metadata": {"name": "job"}, "status": {**known, **status}}


@pytest.fixture
def running(namespace, kube, manifest):
    """A cluster whose head has the driver `j`."""
    ensure_raycluster(kube, manifest(workers=1))
    await_raycluster(kube, "lake", pending_deadline=10)
    ray = namespace.operator.ray
    ray.plan = lambda driver: iter([driver.wait() or "over"])
    (head,) = ray.heads
    return ray.submit(head, "j", "job")


@pytest.mark.slow
def test_rays_own_word_is_believed(namespace, kube, running) -> None:
    for state in ("SUCCEEDED", "FAILED", "STOPPED"):
        assert has_ended(kube, job(namespace, jobStatus=state))
    assert has_ended(kube, {"metadata": {}, "status": {"jobDeploymentStatus": "Initializing"}})
    assert not has_ended(kube, job(namespace, jobStatus="RUNNING"))


@pytest.mark.slow
def test_kuberays_guess_is_not(namespace, kube, running) -> None:
    """`checkSubmitterFinishedTimeoutAndUpdateStatusIfNeeded` calls it FAILED without knowing."""
    assert not has_ended(kube, job(namespace, jobStatus="FAILED", reason=ASSUMED))


@pytest.mark.slow
def test_a_driver_that_began_before_its_head_has_ended_with_the_one_before(
    namespace, kube, running
) -> None:
    namespace.operator.ray.reachable = False
    early = {"rayJobInfo": {"startTime": "2020-01-01T00:00:00Z"}, "jobStatus": "RUNNING"}
    late = {"rayJobInfo": {"startTime": "2099-01-01T00:00:00Z"}, "jobStatus": "RUNNING"}
    assert has_ended(kube, job(namespace, **early))
    assert not has_ended(kube, job(namespace, **late))


@pytest.mark.slow
def test_with_the_cluster_and_its_pods_it_is_gone(namespace, kube, running) -> None:
    namespace.operator.ray.reachable = False
    namespace.operator.grace_rounds = 10**6
    kube.delete(RAYCLUSTERS, "lake")
    assert not has_ended(kube, job(namespace, jobStatus="RUNNING")), "its pods are still there"
    with pytest.raises(ClusterError, match="may still run"):
        stop_driver(kube, job(namespace, jobStatus="RUNNING"), 0.0)
    namespace.operator.grace_rounds = 1
    stop_driver(kube, job(namespace, jobStatus="RUNNING"), 5)


@pytest.mark.slow
def test_it_is_told_to_stop(namespace, kube, running) -> None:
    stop_driver(kube, job(namespace, jobStatus="RUNNING", reason="DeadlineExceeded"), 5)
    assert running.status == "STOPPED"
