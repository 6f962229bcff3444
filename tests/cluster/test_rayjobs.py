"""The life of a RayJob against an API server: one attempt at a time, its log line by line."""

import time

import pytest
from apiserver import Fault

from vagen.cluster import (
    ClusterError,
    JobFailed,
    await_raycluster,
    await_rayjob,
    delete_rayjobs,
    ensure_raycluster,
    ensure_rayjob,
    has_succeeded,
)
from vagen.cluster.kube import RAYCLUSTERS, RAYJOBS

pytestmark = pytest.mark.slow

TASK = "lake-rollout-0000"
STEP = ["python", "-m", "vagen.stages.step", "rollout"]


@pytest.fixture
def ready(namespace, kube, manifest):
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=10)
    return namespace


def ensure(kube, **changes):
    settings = {
        "cluster": "lake",
        "task": TASK,
        "run": "lake",
        "entrypoint": STEP,
        "ttl_hours": 24,
        "active_deadline": 600,
        "stop_deadline": 2,
    }
    return ensure_rayjob(kube, **{**settings, **changes})


def follow(kube, name=TASK, on_log=lambda _: None, pending=20, running=20, **more):
    return await_rayjob(
        kube, name, on_log=on_log, pending_deadline=pending, running_deadline=running, **more
    )


def lines_of(count):
    def plan(_):
        for number in range(count):
            time.sleep(0.002)
            yield f"line {number}"
            if number % 5 == 0:
                yield "the same again"

    return plan


def of_driver(lines):
    return [line for line in lines if line.startswith(("line", "the same"))]


def wait_for(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def test_a_job_succeeds_and_its_log_is_handed_over(ready, kube) -> None:
    ready.operator.ray.plan = lines_of(50)
    ensure(kube)
    lines: list[str] = []
    assert has_succeeded(follow(kube, on_log=lines.append))
    assert of_driver(lines) == ready.operator.ray.history[0].lines
    assert ready.operator.ray.history[0].rayjob == TASK


def test_a_finished_job_is_not_started_again(ready, kube) -> None:
    ensure(kube)
    follow(kube)
    assert has_succeeded(ensure(kube))
    assert len(ready.operator.ray.history) == 1


def test_a_second_launcher_follows_the_job_of_the_first(ready, kube) -> None:
    ready.operator.ray.plan = lines_of(200)
    ensure(kube)
    wait_for(lambda: ready.operator.ray.history)
    lines: list[str] = []
    again = ready.connect()
    assert ensure(again)["metadata"]["name"] == TASK
    follow(again, on_log=lines.append)
    assert of_driver(lines) == ready.operator.ray.history[0].lines
    assert len(ready.operator.ray.history) == 1


def test_a_log_loses_and_doubles_nothing_across_drops(ready, kube) -> None:
    ready.operator.ray.plan = lines_of(150)
    ready.server.faults.append(Fault(r"GET .*/log\?", "cut", times=30))
    ready.server.faults.append(Fault(r"GET .*/log\?", "drop", times=3))
    ready.server.faults.append(Fault(r"GET .*/log\?", "500", times=3))
    ensure(kube)
    lines: list[str] = []
    follow(kube, on_log=lines.append)
    assert of_driver(lines) == ready.operator.ray.history[0].lines
    assert not any(fault.times for fault in ready.server.faults[:1])


def test_a_submitter_that_is_evicted_doubles_nothing(ready, kube) -> None:
    ready.operator.ray.plan = lines_of(200)
    ready.operator.submitters.evictions = 2
    ensure(kube)
    lines: list[str] = []
    assert has_succeeded(follow(kube, on_log=lines.append))
    assert of_driver(lines) == ready.operator.ray.history[0].lines
    assert len(ready.operator.ray.history) == 1


def failing(driver):
    yield "loading the model"
    raise RuntimeError("CUDA out of memory")


def test_a_failed_job_has_its_message_and_the_end_of_its_log(ready, kube) -> None:
    ready.operator.ray.plan = failing
    ensure(kube)
    with pytest.raises(JobFailed) as caught:
        follow(kube)
    failure = caught.value
    assert (failure.job, failure.reason) == (TASK, "AppFailed")
    assert "CUDA out of memory" in str(failure)
    assert str(failure).count("loading the model") == failure.tail.count("loading the model") == 1


def test_a_failed_attempt_is_followed_by_another_and_kept(ready, kube) -> None:
    ready.operator.ray.plans[TASK] = failing
    ensure(kube)
    with pytest.raises(JobFailed):
        follow(kube)
    assert ensure(kube, retry=False)["metadata"]["name"] == TASK
    second = ensure(kube)
    assert second["metadata"]["name"] == f"{TASK}-2"
    assert has_succeeded(follow(kube, f"{TASK}-2"))
    assert {job["metadata"]["name"] for job in ready.store.all("RayJob")} == {TASK, f"{TASK}-2"}
    assert not ready.operator.ray.overlaps()


def hanging(driver):
    yield "it begins"
    driver.wait()


def test_after_its_deadline_the_driver_is_stopped_before_another_begins(ready, kube) -> None:
    ready.operator.ray.plans[TASK] = hanging
    ensure(kube, active_deadline=3)
    with pytest.raises(JobFailed, match="DeadlineExceeded"):
        follow(kube)
    (driver,) = ready.operator.ray.history
    assert driver.status == "RUNNING", "KubeRay leaves it running: that is the point"
    ensure(kube)
    assert driver.status == "STOPPED"
    assert has_succeeded(follow(kube, f"{TASK}-2"))
    assert not ready.operator.ray.overlaps()


def test_a_driver_that_does_not_stop_keeps_another_from_beginning(ready, kube) -> None:
    ready.operator.ray.plans[TASK] = hanging
    ready.operator.ray.stubborn = True
    ensure(kube, active_deadline=3)
    with pytest.raises(JobFailed):
        follow(kube)
    with pytest.raises(ClusterError, match=r"may still run.*says RUNNING.*No second attempt"):
        ensure(kube, stop_deadline=0.3)
    assert len(ready.store.all("RayJob")) == 1


def test_a_driver_that_nobody_can_ask_keeps_another_from_beginning(ready, kube) -> None:
    ready.operator.ray.plans[TASK] = hanging
    ensure(kube, active_deadline=3)
    with pytest.raises(JobFailed):
        follow(kube)
    ready.operator.ray.reachable = False
    with pytest.raises(ClusterError, match=r"says nothing.*port 8265"):
        ensure(kube, stop_deadline=0.3)
    ready.operator.ray.reachable = True
    assert ensure(kube)["metadata"]["name"] == f"{TASK}-2"
    assert not ready.operator.ray.overlaps()


def test_a_deadline_that_passes_before_it_has_begun(namespace, kube, manifest) -> None:
    namespace.operator.pod_status = lambda pod: {"phase": "Pending"}
    ensure_raycluster(kube, manifest())
    ensure(kube, active_deadline=1)
    with pytest.raises(JobFailed, match="DeadlineExceeded"):
        follow(kube)
    namespace.operator.ray.reachable = False
    assert ensure(kube)["metadata"]["name"] == f"{TASK}-2"


def test_the_loss_of_the_cluster_is_noticed(ready, kube) -> None:
    ready.operator.ray.plan = hanging
    ensure(kube)
    wait_for(lambda: ready.operator.ray.history)
    # Without an owner that goes with it, the RayJob would stay for ever (kuberay #4914).
    kube.patch(RAYJOBS, TASK, {"metadata": {"ownerReferences": []}})
    kube.delete(RAYCLUSTERS, "lake")
    with pytest.raises(JobFailed, match=r"HeadLost.*RayCluster lake was deleted"):
        follow(kube)


def test_the_loss_of_the_head_is_noticed_with_its_reason(ready, kube) -> None:
    ready.operator.ray.plan = hanging
    ensure(kube)
    wait_for(lambda: ready.operator.ray.history)
    wait_for(lambda: "rayJobInfo" in ready.store.all("RayJob")[0].get("status", {}))
    ready.operator.paused = True  # its submitter waits to be started again
    ready.operator.restart_head("lake", delay=1.1)
    with pytest.raises(JobFailed, match=r"HeadLost(.|\n)*OOMKilled"):
        follow(kube)
    # The job that KubeRay still calls running is replaced, not followed again.
    time.sleep(1.1)
    ready.operator.paused = False
    ready.operator.ray.plan = lines_of(3)
    assert ensure(kube)["metadata"]["name"] == f"{TASK}-2"
    assert has_succeeded(follow(kube, f"{TASK}-2"))
    assert not ready.operator.ray.overlaps()


def test_a_submitter_that_gives_up_names_the_heads_end(ready, kube) -> None:
    ready.operator.ray.plan = hanging
    ensure(kube)
    wait_for(lambda: ready.operator.ray.history)
    ready.operator.restart_head("lake", delay=1.1)
    with pytest.raises(JobFailed, match=r"SubmissionFailed(.|\n)*OOMKilled"):
        follow(kube)


def test_a_deleted_job_is_noticed_and_made_anew(ready, kube) -> None:
    ready.operator.ray.plans[TASK] = hanging
    ensure(kube)
    wait_for(lambda: ready.operator.ray.history)
    assert delete_rayjobs(kube, "lake") == [TASK]
    with pytest.raises(JobFailed, match="Deleted"):
        follow(kube)
    ready.operator.ray.plans.clear()
    made = ensure(kube)
    assert has_succeeded(follow(kube, made["metadata"]["name"]))
    assert not ready.operator.ray.overlaps()


def test_a_pending_deadline_says_what_holds_the_submitter(ready, kube) -> None:
    ready.operator.pod_status = lambda pod: (
        {
            "phase": "Pending",
            "containerStatuses": [
                {
                    "name": "ray-job-submitter",
                    "image": "registry.example/vagen/trainer:1",
                    "restartCount": 0,
                    "state": {
                        "waiting": {
                            "reason": "ImagePullBackOff",
                            "message": "manifest unknown",
                        }
                    },
                }
            ],
        }
        if "-submit-" in pod["metadata"]["name"]
        else None
    )
    ensure(kube)
    told: list[str] = []
    with pytest.raises(ClusterError, match=r"does not run after 1 s(.|\n)*no such image or tag"):
        follow(kube, pending=1, report=told.append)
    assert len(told) == 1


def test_an_operator_that_does_not_run_is_suspected(ready, kube) -> None:
    ready.operator.paused = True
    ensure(kube)
    with pytest.raises(ClusterError, match="has not taken notice of it"):
        follow(kube, pending=0.5)


def test_a_job_without_a_cluster_is_refused(kube) -> None:
    with pytest.raises(ClusterError, match="has no RayCluster lake"):
        ensure(kube)


def test_a_job_that_does_something_else_is_not_followed(ready, kube) -> None:
    ready.operator.ray.plan = hanging
    ensure(kube)
    with pytest.raises(ClusterError, match=r"executes `python -m vagen\.stages\.step rollout`"):
        ensure(kube, entrypoint=["python", "-m", "vagen.stages.step", "update"])


def test_a_callback_that_fails_is_not_lost(ready, kube) -> None:
    def fail(line):
        raise KeyError(line)

    ensure(kube)
    with pytest.raises(KeyError):
        follow(kube, on_log=fail)


def test_jobs_go_with_their_cluster(ready, kube) -> None:
    ensure(kube)
    follow(kube)
    kube.delete(RAYCLUSTERS, "lake")
    wait_for(lambda: not ready.store.all("RayJob") and not ready.store.all("Pod"))
