"""Stages of a run as a step's pod has them executed: RayJobs, their replies, the run's two ends.

API server and operator are those of this folder; a job's entrypoint is really called, and what
stands in for a stage answers there.
"""

import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from vagen import cluster
from vagen.cluster import ClusterError
from vagen.cluster.kube import CONFIG_MAPS, RAYCLUSTERS, RAYJOBS
from vagen.config import dump_yaml, load_experiment, load_infra
from vagen.stages import lifecycle, routing, step
from vagen.stages.session import StageError, StageFailed, call, iterate
from vagen.storage import open_store

pytestmark = pytest.mark.slow

RUN = "lake"


class Stages:
    """What stands in for the stages inside the Ray cluster."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.seconds = 0.0

    def call(self, run: str, stage: str, **arguments: Any) -> dict[str, Any]:
        self.calls.append((stage, arguments))
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return {"uri": f"{run}/{stage}", "sha256": "0" * 64, "metrics": {"success": 0.5}}


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    found = Stages()
    monkeypatch.setattr(step, "call", found.call)
    monkeypatch.setattr(step, "_save_ray_logs", lambda run: found.call(run, "ray-logs"))
    monkeypatch.setattr(
        step, "iterate", lambda run, start, stop: found.call(run, "train", start=start, stop=stop)
    )
    return found


@pytest.fixture
def run(
    namespace, template, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """URI of a run that is not there yet."""
    monkeypatch.setattr(cluster, "connect", lambda _=None: namespace.connect())
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "scratch"))
    config = {"metadata": {"name": "vagen-raycluster"}, "kind": "ConfigMap", "apiVersion": "v1"}
    namespace.kube.create(CONFIG_MAPS, {**config, "data": {"raycluster.yaml": yaml.dump(template)}})

    def plan(driver: Any) -> Any:
        job = namespace.store.objects["RayJob"][driver.rayjob]
        yield f"begins: {job['spec']['entrypoint']}"
        words = shlex.split(job["spec"]["entrypoint"])
        assert words[:3] == ["python", "-m", "vagen.stages.step"]
        # The mark is for the driver's own process.
        with monkeypatch.context() as patch:
            patch.setenv("VAGEN_INSIDE", "")
            code = step.main(words[3:])
        yield "ends"
        if code:
            raise RuntimeError(f"Job entrypoint command failed with exit code {code}")

    namespace.operator.ray.plan = plan
    return f"{(tmp_path / 'store').as_uri()}/{RUN}"


SMALL = [f"envs.frozenlake.{part}_size=128" for part in ("train", "val", "test")]


def texts(run: str, *words: str) -> dict[str, str]:
    settings = [f"store={run.rpartition('/')[0]}", "mlflow_tracking_uri=null"]
    infra = load_infra("kubernetes-cpu", [*settings, "kubernetes.pending_minutes=0.5", *words])
    experiment = load_experiment("frozenlake-tiny", SMALL)
    return {"experiment": dump_yaml(experiment), "infra": dump_yaml(infra)}


def names(namespace: Any, kind: Any) -> set[str]:
    return {item["metadata"]["name"] for item in namespace.kube.list(kind, "").items}


def test_a_run_is_made_with_its_ray_cluster_and_let_go(namespace, run: str, monkeypatch):
    lifecycle.begin(run, **texts(run))
    assert names(namespace, RAYCLUSTERS) == {RUN}
    lifecycle.begin(run, **texts(run))  # a step that is tried again
    assert names(namespace, RAYCLUSTERS) == {RUN}
    closed = []
    monkeypatch.setattr(lifecycle, "call", lambda *words, **more: closed.append((words, more)))
    lifecycle.end(run, state="SUCCEEDED", message="")
    assert names(namespace, RAYCLUSTERS) == set()
    assert closed == [((run, "finalize"), {"state": "SUCCEEDED", "message": ""})]
    root, _, name = run.rpartition("/")
    (logs,) = [key for key in open_store(root).list(f"{name}/logs") if key.endswith("-pods")]
    folder = open_store(root).fetch_directory(logs, Path(root.removeprefix("file://")) / "fetched")
    assert (folder / "status.txt").read_text()


def test_ray_s_own_logs_are_saved_by_a_job_and_never_hold_up_the_end(
    namespace, run: str, monkeypatch, capsys
):
    def saved(_: str) -> dict[str, Any]:
        raise StageFailed("the store is away")

    monkeypatch.setattr(step, "_save_ray_logs", saved)
    monkeypatch.setattr(lifecycle, "call", lambda *_, **__: None)
    lifecycle.begin(run, **texts(run))
    lifecycle.end(run, state="SUCCEEDED", message="")
    assert f"logs of {run} are not saved: RayJob lake-ray-logs failed" in capsys.readouterr().out
    assert names(namespace, RAYCLUSTERS) == set()


def test_the_configuration_that_arrives_is_the_run_s(run: str):
    lifecycle.begin(run, **texts(run, "threads=1"))
    store = open_store(run.rpartition("/")[0])
    infra = yaml.safe_load(store.read_file(f"{RUN}/config/infra.yaml") or b"")
    assert infra["threads"] == 1


def test_another_experiment_is_not_taken_for_the_run(run: str):
    lifecycle.begin(run, **texts(run))
    other = dump_yaml(load_experiment("frozenlake-tiny", [*SMALL, "seed=8"]))
    with pytest.raises(StageError, match="exists with another experiment: choose another name"):
        lifecycle.begin(run, **{**texts(run), "experiment": other})


def test_a_run_that_never_began_is_closed_in_peace(run: str, capsys):
    lifecycle.end(run, state="FAILED", message="begin")
    assert "was never made: there is nothing to close" in capsys.readouterr().out


def test_the_cluster_goes_also_if_the_run_cannot_be_closed(namespace, run: str, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise StageFailed("MLflow is away")

    lifecycle.begin(run, **texts(run))
    monkeypatch.setattr(lifecycle, "call", broken)
    with pytest.raises(StageFailed):
        lifecycle.end(run, state="FAILED", message="")
    assert names(namespace, RAYCLUSTERS) == set()


def test_a_stage_is_a_job_and_its_reply_comes_back(namespace, run: str, stages: Stages, capsys):
    lifecycle.begin(run, **texts(run))
    result = call(run, "rollout", iteration=3, source_uri=f"{run}/policy", source_sha256="ab")
    assert result == {
        "uri": f"{run}/rollout",
        "sha256": "0" * 64,
        "metrics": {"success": 0.5},
    }
    arguments = {"iteration": 3, "source_uri": f"{run}/policy", "source_sha256": "ab"}
    assert stages.calls == [("rollout", arguments)]
    assert names(namespace, RAYJOBS) == {"lake-rollout-0003"}
    out = capsys.readouterr().out
    assert "begins: python -m vagen.stages.step" in out and "ends" in out


def test_stages_of_their_own_pods_are_no_jobs(namespace, run: str, stages: Stages):
    lifecycle.begin(run, **texts(run))
    assert call(run, "build")["uri"] == f"{run}/levels"
    assert names(namespace, RAYJOBS) == set()
    assert not stages.calls


def test_several_iterations_are_one_job(namespace, run: str, stages: Stages):
    lifecycle.begin(run, **texts(run))
    iterate(run, 20, 40)
    assert stages.calls == [("train", {"start": 20, "stop": 40})]
    assert names(namespace, RAYJOBS) == {"lake-train-0020"}


def test_evaluations_are_told_apart_by_name(namespace, run: str):
    lifecycle.begin(run, **texts(run))
    for name in ("warm_start", "final"):
        call(run, "evaluate", name=name, split="test")
    assert len(names(namespace, RAYJOBS)) == 2


def test_a_launcher_that_comes_again_gets_the_first_one_s_result(run: str, stages: Stages):
    lifecycle.begin(run, **texts(run))
    first = call(run, "update", iteration=0)
    assert call(run, "update", iteration=0) == first
    assert len(stages.calls) == 1


def test_what_a_stage_refuses_is_the_user_s_message(run: str, stages: Stages):
    lifecycle.begin(run, **texts(run))
    stages.error = StageError("level 17 cannot be solved: choose another seed")
    with pytest.raises(StageError, match="level 17 cannot be solved: choose another seed"):
        call(run, "rollout", iteration=0)


def test_a_stage_that_broke_is_tried_again_as_the_next_attempt(namespace, run: str, stages: Stages):
    lifecycle.begin(run, **texts(run))
    stages.error = StageFailed("update failed: singular matrix")
    with pytest.raises(StageFailed, match="singular matrix"):
        call(run, "update", iteration=0)
    stages.error = None
    assert call(run, "update", iteration=0)["metrics"] == {"success": 0.5}
    assert names(namespace, RAYJOBS) == {"lake-update-0000", "lake-update-0000-2"}


def test_a_lost_cluster_is_made_again_by_the_next_step(namespace, run: str):
    lifecycle.begin(run, **texts(run))
    cluster.delete_raycluster(namespace.kube, RUN)
    assert call(run, "judge", iteration=0)["sha256"]
    assert names(namespace, RAYCLUSTERS) == {RUN}


def test_what_keeps_the_cluster_from_starting_is_the_error(namespace, run: str):
    namespace.operator.refusal = lambda _: (
        'pods "x" is forbidden: exceeded quota: runs, requested: requests.nvidia.com/gpu=8, '
        "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
    )
    with pytest.raises(ClusterError, match="quota runs is used up"):
        lifecycle.begin(run, **texts(run, "kubernetes.pending_minutes=0.02"))


def test_words_of_a_job_need_no_quoting():
    arguments = {"iteration": 1, "source_uri": "s3://bucket/a/run-1/policy", "source_sha256": "0f"}
    words = step.command("s3://bucket/a/run-1", "rollout", arguments)
    assert shlex.join(words) == " ".join(words)
    assert step.name_of("s3://b/lake", "warm_start", {}) == "lake-warm-start"
    assert routing.run_name("s3://b/lake/") == "lake"
