"""A sweep's trials as pipelines: Kubeflow's client against a server, trainings from an S3 store."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp_api import KubeflowApi, serve
from small_experiment import experiment_tree

from pipelines.submit import Kubeflow
from pipelines.sweep import Pipelines
from vagen.cli.main import FAILED, USER_ERROR, main
from vagen.experiment.load import load_experiment, load_infra
from vagen.sweep.queue import TrialState
from vagen.sweep.study import Trial
from vagen.tracking import default_uri, open_client

STORE = "infra.store=s3://bucket/runs"
CPU = ("--infra", "kubernetes-cpu", "--image", "registry.example/vagen/cpu:1")
NO_MLFLOW = "infra.mlflow_tracking_uri=http://127.0.0.1:9"
TRAIN = """
import sys
from vagen.launch.lifecycle import begin
from vagen.run.run import Run
from vagen.train import train
run, experiment, infra = sys.argv[1:]
begin(run, experiment=experiment, infra=infra)
train(Run.open(run))
"""
"""What the pipeline's steps do, in one process."""


@pytest.fixture
def kubeflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeflowApi]:
    monkeypatch.setenv("HOME", str(tmp_path))  # kfp keeps its settings there
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "outputs" / "lam" / "runs"))
    monkeypatch.setattr(Pipelines, "pause", 0.1)
    tree = experiment_tree(model="tiny:text") | {"warm_start": {"steps": 5, "batch_size": 4}}
    tree["trainer"] = {"total_training_steps": 1}
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(tree))
    sweep = {
        "name": "lam",
        "experiment": "text.yaml",
        "parameters": {"algorithm.lam": [0.5, 0.9, 1.0]},
    }
    (tmp_path / "lam.yaml").write_text(yaml.safe_dump(sweep))
    with serve() as api:
        monkeypatch.setenv("KF_PIPELINES_ENDPOINT", api.url)
        yield api


class Cluster(threading.Thread):
    """Ends the pipelines that the server has taken, one after the other.

    Before one ends, so many of the three trials have been sent as there shall be at a time.
    """

    def __init__(self, api: KubeflowApi, execute, *, jobs: int = 1) -> None:
        super().__init__(daemon=True)
        self.api, self.execute, self.jobs = api, execute, jobs
        self.waiting: list[int] = []
        """How many pipelines were not ended when one was."""
        self.stop = threading.Event()

    def run(self) -> None:
        done = 0
        while not self.stop.wait(0.05):
            if len(self.api.posted) >= min(3, done + self.jobs) > done:
                sent = self.api.posted[done][1]
                done += 1
                self.stop.wait(0.5)
                self.waiting.append(len(self.api.posted) - done + 1)
                self.api.states[f"runs-{done}"] = self.execute(sent)

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()


def results(place: Path) -> list[dict[str, Any]]:
    return json.loads((place / "outputs" / "lam" / "results.json").read_text())["trials"]


def fails(sent: dict[str, Any]) -> tuple[str, str]:
    return "FAILED", "no node has 8 free GPUs"


@pytest.mark.slow
def test_each_trial_is_a_pipeline_and_so_many_are_sent_at_a_time(
    kubeflow: KubeflowApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with Cluster(kubeflow, fails, jobs=2) as cluster:
        words = ["sweep", "lam.yaml", *CPU, STORE, NO_MLFLOW, "--jobs", "2"]
        assert main(words) == FAILED
    assert cluster.waiting == [2, 2, 1]
    sent = [body for _, body in kubeflow.posted]
    assert [body["display_name"] for body in sent] == ["lam-000", "lam-001", "lam-002"]
    parameters = [body["runtime_config"]["parameters"] for body in sent]
    assert [each["run"] for each in parameters] == [f"s3://bucket/runs/lam-00{n}" for n in range(3)]
    lams = {yaml.safe_load(each["experiment"])["algorithm"]["lam"] for each in parameters}
    assert lams == {0.5, 0.9, 1.0}
    for body in sent:
        executors = body["pipeline_spec"]["platform_spec"]["platforms"]["kubernetes"][
            "deploymentSpec"
        ]["executors"]
        labels = [each["podMetadata"]["labels"] for each in executors.values()]
        assert {each["vagen.dev/sweep"] for each in labels} == {"lam"}
        infra = yaml.safe_load(body["runtime_config"]["parameters"]["infra"])
        assert infra["kubernetes"]["sweep"] == "lam"
    out = capsys.readouterr().out
    assert "the trials have no parent run in MLflow" in out
    for trial in results(tmp_path):
        assert trial["state"] == "fail"
        assert "no node has 8 free GPUs" in trial["reason"]
        assert "/#/runs/details/runs-" in trial["reason"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_steps")
def test_trials_that_the_cluster_trains_are_read_from_the_store(
    kubeflow: KubeflowApi, bucket: str, tmp_path: Path
):
    tracking = default_uri(tmp_path / "mlflow")
    (tmp_path / "mlflow").mkdir()

    def trains(sent: dict[str, Any]) -> tuple[str, str]:
        arguments = sent["runtime_config"]["parameters"]
        texts = [arguments[key] for key in ("run", "experiment", "infra")]
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, *texts],
            env={**os.environ, "VAGEN_SCRATCH": str(tmp_path / "pods")},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return "FAILED", done.stderr[-2000:]
        return "SUCCEEDED", ""

    words = ["sweep", "lam.yaml", *CPU, f"infra.store={bucket}/runs", "infra.engine=local"]
    words += [f"infra.mlflow_tracking_uri={tracking}", "infra.device=cpu", "infra.threads=1"]
    with Cluster(kubeflow, trains):
        assert main(words) == 0
    found = results(tmp_path)
    assert [trial["state"] for trial in found] == ["complete"] * 3, found
    assert len({trial["config_digest"] for trial in found}) == 3
    assert (tmp_path / "outputs" / "lam" / "compare" / "index.html").exists()

    client = open_client(tracking)
    parent = (tmp_path / "outputs" / "lam" / "mlflow_run_id").read_text().strip()
    runs = client.search_runs([client.get_run(parent).info.experiment_id])
    parents = [run.data.tags.get("mlflow.parentRunId") for run in runs]
    assert parents.count(parent) == 3

    # What is done is neither sent nor read again.
    sent = len(kubeflow.posted)
    assert main(words) == 0
    assert len(kubeflow.posted) == sent


@pytest.mark.slow
def test_a_pipeline_that_is_to_end_early_is_terminated(kubeflow: KubeflowApi, tmp_path: Path):
    infra = load_infra("kubernetes-cpu", ["store=s3://bucket/runs", "kubernetes.image=vagen:1"])
    trainings = Pipelines(tmp_path, "lam", infra, Kubeflow(), None)
    trial = Trial(0, "lam-000", {})
    made = trainings.make(trial, load_experiment("frozenlake-tiny"))
    trial = Trial(0, "lam-000", {}, made=made)
    assert trainings.state(trial) == (TrialState.RUNNING, "")
    trainings.end(trial)
    assert kubeflow.states[made] == ("CANCELED", "")
    state, reason = trainings.state(trial)
    assert state is TrialState.FAILED and "canceled" in reason


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*CPU], "infra.store is None: steps run on other machines"),
        ([*CPU[:2], STORE], "the steps' image is vagen:latest"),
        ([*CPU, STORE, "--name", "x" * 37], "more than 36 letters"),
        ([*CPU, STORE, "trainer.total_training_steps=61"], "would have 61 stretches"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    kubeflow: KubeflowApi, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert main(["sweep", "lam.yaml", NO_MLFLOW, *words]) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not kubeflow.posted


@pytest.mark.slow
def test_a_kubeflow_that_is_away_fails_no_trial(
    kubeflow: KubeflowApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    kubeflow.refuse = (503, "upstream is gone")
    assert main(["sweep", "lam.yaml", *CPU, STORE, NO_MLFLOW]) == FAILED
    captured = capsys.readouterr()
    assert "upstream is gone" in captured.err
    assert "go on with: vagen sweep lam.yaml" in captured.out
    kubeflow.refuse = None
    with Cluster(kubeflow, fails):
        main(["sweep", "lam.yaml", *CPU, STORE, NO_MLFLOW])
    assert [trial["run"] for trial in results(tmp_path)] == ["lam-000", "lam-001", "lam-002"]
