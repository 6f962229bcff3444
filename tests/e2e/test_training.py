"""Trainings on a real cluster: whole, and with one fault each; they end as on a laptop."""

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from place import KFP, STEPS, Place, await_true, forwarded, kubectl, rayclusters, site

from vagen.cli.main import main
from vagen.cluster.names import LEASE_UNTIL
from vagen.launch.on_cluster import ENDING_MINUTES
from vagen.run import layout

RESULTS = ("warm_start", "final", "paired_gain", "iterations", "config_digest")
RECOMPUTED = (
    *("rollout/kl", "rollout/logprob_difference_max"),
    *("rollout/ratio_mean", "rollout/probability_correlation"),
)
"""Rounding of rows that are computed again in other company."""
OPEN_SESSIONS = re.compile(r"vagen_env_sessions\{[^}]*\} [1-9]")
UPDATE = "iterations/{:04d}/update/manifest.json"
ON_RAY, IN_PODS = "infra.engine=verl", "infra.engine=local"
BRIEF = (ON_RAY, "infra.mode=fused")
"""The same training with fewer pods, where not these are asked about."""


def new_name(kind: str) -> str:
    return f"e2e-{kind}-{uuid.uuid4().hex[:6]}"


def without_name(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "name"}


def results(summary: str, manifests: list[str]) -> dict[str, Any]:
    """What a training found, and every metric of its iterations."""
    read = json.loads(summary)
    history = [json.loads(text)["payload"]["history"] for text in manifests]
    kept = [{name: one[name] for name in one if name not in RECOMPUTED} for one in history]
    return {**{key: read[key] for key in RESULTS}, "history": kept}


def check_ended_well(place: Place, name: str) -> dict[str, Any]:
    """What a finished run has left, and what it has not."""
    assert rayclusters(name) == []
    record = place.mlflow_run(name)
    assert record.info.status == "FINISHED"
    assert json.loads(place.read(name, "summary.json"))["model_uri"], "its model is registered"
    return found(place, name)


def found(place: Place, name: str) -> dict[str, Any]:
    """The results of a run in the store."""
    summary = place.read(name, "summary.json")
    count = json.loads(summary)["iterations"]
    return results(summary, [place.read(name, UPDATE.format(number)) for number in range(count)])


@pytest.fixture(scope="module")
def laptop(folder: Path, tmp_path_factory) -> dict[str, Any]:
    """The training in one process of this machine."""
    outputs = tmp_path_factory.mktemp("outputs")
    words = [f"infra.output_dir={outputs}", "infra.device=cpu", "infra.threads=1"]
    assert main(["run", str(folder / "lake.yaml"), *words, "--name", "laptop"]) == 0
    run = outputs / "laptop"
    manifests = [(run / UPDATE.format(number)).read_text() for number in range(2)]
    return results((run / "summary.json").read_text(), manifests)


@pytest.fixture(scope="module")
def undisturbed(place: Place, folder: Path) -> dict[str, Any]:
    """The training on the run's Ray cluster."""
    name = new_name("whole")
    submitted = place.submit(folder, name, ON_RAY)
    await_true(is_running("rollout", submitted), 30)
    head = forwarded("vagen", f"{name}-head-svc", 8265)
    with head as dashboard, pytest.raises(HTTPError, match="401"):
        urlopen(f"{dashboard}/api/jobs/", timeout=30)
    assert place.await_end(submitted) == "SUCCEEDED"
    return {**check_ended_well(place, name), "name": name}


def test_a_training_in_pods_is_that_of_a_laptop(place, folder, laptop):
    name = new_name("pods")
    submitted = place.submit(folder, name, IN_PODS, "infra.threads=1")
    assert place.await_end(submitted) == "SUCCEEDED"
    assert check_ended_well(place, name) == laptop


def test_a_training_on_a_ray_cluster(undisturbed, laptop):
    assert undisturbed["config_digest"] == laptop["config_digest"]


def test_the_same_again_by_clone(place, undisturbed):
    name = new_name("clone")
    origin = f"{site('VAGEN_STORE')}/{undisturbed['name']}"
    assert place.await_end(place.send("--clone", origin, "--name", name)) == "SUCCEEDED"
    assert check_ended_well(place, name) == without_name(undisturbed)


def test_it_is_measured_by_the_clock(place, undisturbed):
    origin = f"{site('VAGEN_STORE')}/{undisturbed['name']}"
    words = ("--evaluate", origin, "--levels", "test", "--cron", "0 * * * * *")
    schedule = place.send(*words, "infra.engine=local")
    try:
        assert await_true(lambda: "SUCCEEDED" in place.runs_of(schedule), 15)
    finally:
        place.end_schedule(schedule)


def test_a_loop_of_sixty_items(place, folder):
    name = new_name("sixty")
    words = ("trainer.total_training_steps=60", "infra.mode=fused", "infra.iterations_per_task=1")
    assert place.await_end(place.submit(folder, name, ON_RAY, *words), 300) == "SUCCEEDED"
    assert check_ended_well(place, name)["iterations"] == 60


def delete_pods(selector: str, namespace: str) -> None:
    words = ("delete", "pods", "--selector", selector, "--force", "--grace-period=0")
    kubectl("--namespace", namespace, *words)


def operator_restarted() -> None:
    """KubeRay's, wherever it is."""
    where = "{.items[0].metadata.namespace} {.items[0].metadata.name}"
    selector = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
    words = ("--all-namespaces", "--selector", selector, "-o", f"jsonpath={where}")
    namespace, name = kubectl("get", "deployments", *words).split()
    kubectl("--namespace", namespace, "rollout", "restart", f"deployment/{name}")


def store_away() -> None:
    """The store for a minute."""
    kubectl("--namespace", "vagen", "scale", "statefulset/vagen-s3", "--replicas=0")
    time.sleep(60)
    kubectl("--namespace", "vagen", "scale", "statefulset/vagen-s3", "--replicas=1")


def disk_full() -> None:
    """The Ray worker writes more than it may have, and is evicted."""
    worker = "ray.io/node-type=worker"
    (pod,) = kubectl("get", "pods", "--namespace", "vagen", "-l", worker, "-o", "name").split()
    kubectl("--namespace", "vagen", "exec", pod, "--", "fallocate", "--length", "11G", "/tmp/full")
    phase = ("get", pod, "--namespace", "vagen", "--ignore-not-found", "-o", "jsonpath={.status}")
    await_true(lambda: "Running" not in kubectl(*phase) or "Evicted" in kubectl(*phase), 5)


def api_restarted() -> None:
    """How differs from cluster to cluster: the command is the caller's."""
    if command := os.environ.get("VAGEN_RESTART_API"):
        subprocess.run(["bash", "-c", command], check=True)


FAULTS: dict[str, tuple[tuple[str, Callable[[], None]], ...]] = {
    "of pods": (
        ("rollout", lambda: delete_pods(STEPS, KFP)),
        ("judge", operator_restarted),
        ("update", lambda: delete_pods("ray.io/node-type=worker", "vagen")),
        ("rollout", lambda: delete_pods("ray.io/node-type=head", "vagen")),
        ("finalize", lambda: delete_pods(STEPS, KFP)),
    ),
    "of services": (
        ("rollout", store_away),
        ("update", api_restarted),
        ("rollout", disk_full),
        ("finalize", store_away),
    ),
}
"""What happens to one run, in this order, each while the step is at work."""


def is_running(step: str, submitted: str) -> Callable[[], str]:
    """Whether a pod of a pipeline run's step is running."""
    selector = f"vagen.dev/step={step},pipeline/runid={submitted}"
    words = ("get", "pods", "--selector", selector, "--output", "name")
    running = ("--field-selector", "status.phase=Running")
    return lambda: kubectl("--namespace", KFP, *words, *running)


@pytest.mark.parametrize("faults", FAULTS)
def test_after_faults_it_ends_as_undisturbed(place, folder, undisturbed, faults):
    name = new_name("fault")
    submitted = place.submit(folder, name, ON_RAY)
    for step, happen in FAULTS[faults]:
        await_true(is_running(step, submitted), 30)
        time.sleep(5)
        happen()
    assert place.await_end(submitted) == "SUCCEEDED"
    assert check_ended_well(place, name) == without_name(undisturbed)


def test_terminated_it_says_so_and_goes_on_when_submitted_again(place, folder, undisturbed):
    name = new_name("terminated")
    submitted = place.submit(folder, name, *BRIEF)
    await_true(is_running("train", submitted), 30)
    time.sleep(10)
    place.terminate(submitted)
    assert place.await_end(submitted) in ("CANCELED", "FAILED")
    # Kubeflow executes no exit handler then: the lease of the cluster ends soon.
    (left,) = rayclusters(name)
    until = datetime.fromisoformat(left["metadata"]["annotations"][LEASE_UNTIL])
    assert until - datetime.now(UTC) < timedelta(minutes=ENDING_MINUTES)
    assert place.await_end(place.submit(folder, name, *BRIEF)) == "SUCCEEDED"
    assert check_ended_well(place, name) == without_name(undisturbed)


def test_stopped_it_is_closed(place, folder):
    name = new_name("stopped")
    submitted = place.submit(folder, name, *BRIEF)
    await_true(is_running("train", submitted), 30)
    await_true(lambda: main(["cluster", "stop", name]) == 0, 5)
    assert place.await_end(submitted) == "FAILED"
    assert rayclusters(name) == []
    assert place.mlflow_run(name).info.status == "FAILED"


def test_of_two_submissions_of_one_name_nothing_is_done_twice(place, folder, undisturbed):
    name = new_name("twice")
    both = [place.submit(folder, name, *BRIEF) for _ in range(2)]
    states = [place.await_end(one) for one in both]
    assert "SUCCEEDED" in states
    await_true(lambda: rayclusters(name) == [], 10)
    assert check_ended_well(place, name) == without_name(undisturbed)


def test_a_pod_of_the_environment_service_is_killed(place, folder):
    namespace = ("--namespace", "vagen")
    if not kubectl(*namespace, "get", "deployment/vagen-env", "--ignore-not-found"):
        pytest.skip("the overlay has no component env-service")
    name = new_name("env")
    service = ("placement=service", "url=http://vagen-env.vagen.svc:8000")
    keys = ("vagen-s3=[AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY]", "vagen-env=[VAGEN_ENV_TOKEN]")
    words = (*BRIEF, *(f"infra.kubernetes.secrets.{key}" for key in keys))
    words += tuple(f"infra.environments.{word}" for word in service)
    submitted = place.submit(folder, name, *words)
    await_true(is_running("train", submitted), 30)
    pods = ("get", "pods", "--selector", "app.kubernetes.io/name=env", "--output", "name")
    read = "import urllib.request as u; print(u.urlopen('http://localhost:8000/metrics').read())"

    def playing() -> list[str]:
        """Pods with open sessions."""
        found = kubectl(*namespace, *pods).split()
        told = [kubectl(*namespace, "exec", pod, "--", "python", "-c", read) for pod in found]
        return [pod for pod, text in zip(found, told, strict=True) if OPEN_SESSIONS.search(text)]

    killed, *_ = await_true(playing, 10)
    kubectl(*namespace, "delete", killed, "--force", "--grace-period=0")
    assert place.await_end(submitted) == "SUCCEEDED"
    assert all(one["train/env_error"] < 1 for one in check_ended_well(place, name)["history"])


def test_a_judge_that_is_away_ends_the_training_with_its_address(place, folder):
    name = new_name("judge")
    where = "http://vagen-judge.vagen.svc:8000/v1"
    judge = ("type=llm", "llm.model=none", f"llm.base_url={where}", "llm.api_key_env=null")
    submitted = place.submit(folder, name, *BRIEF, *(f"judge.{word}" for word in judge))
    assert place.await_end(submitted) == "FAILED"
    assert rayclusters(name) == []
    assert place.mlflow_run(name).info.status == "FAILED"
    assert where in place.read(name, layout.EVENTS)
