"""Submitting to Kubeflow, with its own client against a server that parses what it gets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kfp_api import KubeflowApi, serve

from pipelines.submit import check_image
from vagen.cli.main import FAILED, USER_ERROR, main
from vagen.experiment.load import load_experiment, load_infra

STORE = "infra.store=s3://bucket/runs"
SHORT = "trainer.total_training_steps=2"
IMAGE = ("--image", "registry.example/vagen/cpu:1")
CPU = ("--infra", "kubernetes-cpu", *IMAGE)


@pytest.fixture
def kubeflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeflowApi]:
    monkeypatch.setenv("HOME", str(tmp_path))  # kfp keeps its settings there
    with serve() as api:
        monkeypatch.setenv("KF_PIPELINES_ENDPOINT", api.url)
        yield api


@pytest.mark.slow
def test_a_training_is_sent_with_its_files(
    kubeflow: KubeflowApi, capsys: pytest.CaptureFixture[str]
):
    words = [SHORT, STORE, "infra.kubernetes.service_account=runner"]
    assert main(["submit", "frozenlake-tiny", *CPU, "--name", "lake-1", *words]) == 0
    ((kind, sent),) = kubeflow.posted
    assert (kind, sent["display_name"]) == ("runs", "lake-1")
    assert sent["service_account"] == "runner"
    assert list(kubeflow.experiments) == ["vagen"]
    parameters = sent["runtime_config"]["parameters"]
    assert parameters.keys() == {"run", "stretches", "experiment", "infra"}
    assert [item["start"] for item in parameters["stretches"]] == [0, 1]
    assert parameters["run"] == "s3://bucket/runs/lake-1"
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == [
        "s3://bucket/runs/lake-1",
        f"{kubeflow.url}/#/runs/details/runs-1",
    ]


@pytest.mark.slow
def test_the_files_that_arrive_are_the_configuration(kubeflow: KubeflowApi, tmp_path: Path):
    assert main(["submit", "frozenlake-tiny", *CPU, "algorithm.lam=0.9", SHORT, STORE]) == 0
    ((_, sent),) = kubeflow.posted
    parameters = sent["runtime_config"]["parameters"]
    for name in ("experiment", "infra"):
        (tmp_path / f"{name}.yaml").write_text(parameters[name])
    experiment = load_experiment(str(tmp_path / "experiment.yaml"), [])
    assert experiment == load_experiment("frozenlake-tiny", ["algorithm.lam=0.9", SHORT])
    infra = load_infra(str(tmp_path / "infra.yaml"), [])
    assert infra == load_infra("kubernetes-cpu", ["store=s3://bucket/runs"])


@pytest.mark.slow
def test_a_clone_is_the_run_with_changed_overrides(kubeflow: KubeflowApi, tmp_path: Path):
    config = tmp_path / "store" / "first" / "config"
    config.mkdir(parents=True)
    first = load_experiment("frozenlake-tiny", ["algorithm.lam=0.9", "seed=7", SHORT])
    (config / "experiment.yaml").write_text(yaml.safe_dump(first.model_dump(mode="json")))
    infra = load_infra("kubernetes-cpu", ["store=s3://bucket/runs", "threads=1"])
    (config / "infra.yaml").write_text(yaml.safe_dump(infra.model_dump(mode="json")))
    clone = ["submit", "--clone", str(config.parent), "--name", "second", *IMAGE]
    assert main([*clone, "algorithm.lam=0.8", "infra.threads=2"]) == 0
    ((_, sent),) = kubeflow.posted
    parameters = sent["runtime_config"]["parameters"]
    assert parameters["run"] == "s3://bucket/runs/second"
    cloned = yaml.safe_load(parameters["experiment"])
    assert (cloned["algorithm"]["lam"], cloned["seed"]) == (0.8, 7)
    assert yaml.safe_load(parameters["infra"])["threads"] == 2


@pytest.mark.parametrize("cron", [None, "0 0 3 * * *"])
def test_an_evaluation_once_and_by_schedule(
    kubeflow: KubeflowApi, tmp_path: Path, cron: str | None
):
    config = tmp_path / "first" / "config"
    config.mkdir(parents=True)
    for name, loaded in (
        ("experiment", load_experiment("frozenlake-tiny", [])),
        ("infra", load_infra("kubernetes-cpu", ["store=s3://bucket/runs"])),
    ):
        (config / f"{name}.yaml").write_text(yaml.safe_dump(loaded.model_dump(mode="json")))
    words = ["--levels", "val", "--count", "16", *IMAGE, *(["--cron", cron] if cron else [])]
    assert main(["submit", "--evaluate", str(config.parent), *words]) == 0
    ((kind, sent),) = kubeflow.posted
    parameters = {"run": str(config.parent), "split": "val", "count": 16}
    assert sent["runtime_config"]["parameters"] == parameters
    assert kind == ("recurringruns" if cron else "runs")
    if cron:
        assert sent["trigger"]["cron_schedule"]["cron"] == cron
        assert sent["max_concurrency"] in (1, "1")
        assert sent["no_catchup"] is True


def evaluation(folder: Path, **changed: object) -> str:
    options = {
        "name": "ours",
        "environments": {"lake": "frozenlake-tiny"},
        "models": ["expert", "anthropic:claude"],
    }
    (folder / "hosted.yaml").write_text(yaml.safe_dump({**options, **changed}))
    return str(folder / "hosted.yaml")


KEY = "infra.kubernetes.secrets.vendors=[ANTHROPIC_API_KEY]"


@pytest.mark.parametrize("cron", [None, "0 0 3 * * *"])
def test_an_evaluation_of_models_has_a_task_for_each_with_keys_from_a_secret(
    kubeflow: KubeflowApi, tmp_path: Path, cron: str | None
):
    words = ["--count", "8", "--name", "night", STORE, KEY, *(["--cron", cron] if cron else [])]
    assert main(["submit", "--evaluate", evaluation(tmp_path), *CPU, *words]) == 0
    ((kind, sent),) = kubeflow.posted
    assert kind == ("recurringruns" if cron else "runs")
    parameters = sent["runtime_config"]["parameters"]
    assert parameters["folder"] == "s3://bucket/runs/evaluations/night"
    assert yaml.safe_load(parameters["evaluation"])["count"] == 8
    spec = sent["pipeline_spec"]
    tasks = spec["pipeline_spec"]["root"]["dag"]["tasks"].values()
    table, *models = sorted(tasks, key=lambda task: -len(task.get("dependentTasks", [])))
    assert len(table["dependentTasks"]) == len(models) == 2
    given = [task["inputs"]["parameters"]["model"]["runtimeValue"]["constant"] for task in models]
    assert sorted(given) == ["anthropic:claude", "expert"]
    uri = table["inputs"]["parameters"]["folder"]
    assert ("{{$.pipeline_job_uuid}}" in str(uri)) == (cron is not None)
    placed = spec["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(placed) == 3
    for executor in placed.values():
        names = [secret["secretName"] for secret in executor["secretAsEnv"]]
        assert "vendors" in names


@pytest.mark.parametrize(
    ("changed", "words", "message"),
    [
        ({}, [], "needs ANTHROPIC_API_KEY, which no Secret gives"),
        ({"environments": {"a": "mine/lake.yaml"}}, [KEY], "there is no file mine/lake.yaml"),
        ({"models": ["outputs/run-1"]}, [KEY], "has weights"),
        ({"models": ["expert", "expert"]}, [KEY], "two models are called expert"),
        ({"prices": "mine.yaml"}, [KEY], "there is no price file mine.yaml"),
        ({"baseline": "exprt"}, [KEY], "did you mean"),
        ({}, [KEY, "algorithm.lam=1"], "put the rest into the file"),
    ],
)
def test_an_evaluation_that_pods_cannot_make_is_refused(
    kubeflow: KubeflowApi,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changed: dict[str, object],
    words: list[str],
    message: str,
):
    file = evaluation(tmp_path, **changed)
    assert main(["submit", "--evaluate", file, *CPU, STORE, *words]) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not kubeflow.posted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the infra has no `kubernetes` section, so it describes one machine"),
        ([*CPU], "infra.store is None: steps run on other machines"),
        ([*CPU, "infra.store=/tmp/here"], "/tmp/here is no store; write s3://bucket/prefix"),
        ([*CPU, "infra.store=file:///tmp"], "steps run on other machines"),
        ([*CPU, STORE, "--name", "x" * 41], "use up to 40 letters"),
        ([*CPU, STORE, "--cron", "0 0 3 * * *"], "--cron goes with --evaluate"),
        ([*CPU, STORE, "infra.verl.ray_address=auto"], "makes the run a Ray cluster of its own"),
        ([*CPU, STORE, "trainer.total_training_steps=61"], "would have 61 stretches"),
        ([*CPU, STORE, "infra.device=auto"], "auto looks at this machine"),
        ([*CPU[:2], STORE], "the steps' image is vagen:latest"),
        (
            [*CPU, STORE, "--image", "registry.invalid/vagen/cpu:1"],
            "VAGEN_IMAGE in k8s/site/site.e",
        ),
        ([*CPU, STORE, "--image", "localhost:5000/vagen"], "or names no version"),
    ],
)
def test_what_cannot_be_submitted_is_refused_before_anything_is_sent(
    kubeflow: KubeflowApi, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert main(["submit", "frozenlake-tiny", *words]) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not kubeflow.posted


@pytest.mark.slow
def test_a_kubeflow_that_refuses_is_quoted(
    kubeflow: KubeflowApi, capsys: pytest.CaptureFixture[str]
):
    kubeflow.refuse = (403, "Unauthorized access: namespace team-a")
    assert main(["submit", "frozenlake-tiny", *CPU, SHORT, STORE]) == FAILED
    error = capsys.readouterr().err
    assert "403" in error and "namespace team-a" in error
    assert "give --kfp-namespace" in error


@pytest.mark.slow
def test_a_kubeflow_of_many_users_gets_a_namespace_and_a_token(
    kubeflow: KubeflowApi,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    kubeflow.multi_user = True
    (tmp_path / "token").write_text("a-token")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    submit = ["submit", "frozenlake-tiny", *CPU, SHORT, STORE]
    assert main(submit) == FAILED
    assert "give --kfp-namespace" in capsys.readouterr().err
    kubeflow.tokens.clear()
    assert main([*submit, "--kfp-namespace", "team-a"]) == 0
    assert {entry["namespace"] for entry in kubeflow.experiments.values()} == {"team-a"}
    assert kubeflow.tokens == {"Bearer a-token"}


def test_a_kubeflow_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["--host", "http://127.0.0.1:9", *CPU, STORE]
    assert main(["submit", "frozenlake-tiny", *words]) == FAILED
    error = capsys.readouterr().err
    assert "Kubeflow at http://127.0.0.1:9 cannot be reached" in error
    assert "port-forward" in error


@pytest.mark.parametrize("image", ["localhost:5000/vagen:1", "vagen@sha256:" + "a" * 64])
def test_an_image_with_a_version_is_taken_from_the_infra_or_the_command_line(image: str):
    infra = load_infra("kubernetes-cpu", [f"kubernetes.image={image}"])
    check_image(infra, None)
    check_image(load_infra("kubernetes-cpu", []), image)
