"""The pipelines compiled for Kubernetes: what every executor gets, strictly against the schemas."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from pipelines.compile import write
from pipelines.definition import evaluation_pipeline, training_pipeline
from pipelines.placement import resources_of
from vagen.config import ConfigError, InfraConfig
from vagen.experiment.load import load_infra

DATA = Path(__file__).parents[1] / "data" / "pipelines"
CPU, H100, NODES = "kubernetes-cpu", "kubernetes-h100x8", "kubernetes-h100x8-2nodes"
LOCAL = ("engine=local", "kubernetes.work.gpus=1")
STRETCH = {"staged": {"rollout", "judge", "advantage", "update"}, "fused": {"train"}}
ASKING = {"warm_start", "evaluate"}.union(*STRETCH.values())
WORKING = {"build", "register"}
WAITING = {"begin", "finalize"}


_compiled: dict[str, str] = {}


def documents(path: Path, infra: InfraConfig) -> tuple[dict, dict]:
    """The pipeline spec and the platform spec; compiled once per infra."""
    key = infra.model_dump_json()
    file = path / "pipeline.yaml"
    if key not in _compiled:
        write(training_pipeline(infra), file)
        _compiled[key] = file.read_text()
    file.write_text(_compiled[key])
    return read(file)


def read(path: Path) -> tuple[dict, dict]:
    spec, platform = yaml.safe_load_all(path.read_text())
    spec["sdkVersion"] = "kfp"
    return spec, platform


def executors(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Containers by executor label."""
    return {
        label: executor["container"]
        for label, executor in spec["deploymentSpec"]["executors"].items()
    }


def step_of(label: str) -> str:
    """`exec-warm-start-2` is a `warm_start`."""
    return re.sub(r"(-\d+)*$", "", label.removeprefix("exec-")).replace("-", "_")


def placed(platform: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [CPU, H100, NODES])
def test_what_is_compiled_fits_the_schemas(tmp_path: Path, name: str):
    spec, platform = documents(tmp_path, load_infra(name, []))
    json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    for config in placed(platform).values():
        json_format.ParseDict(config, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
    assert placed(platform).keys() == executors(spec).keys()


@pytest.mark.parametrize("name", [CPU, pytest.param(H100, marks=pytest.mark.slow)])
def test_compiled_for_a_cluster_it_is_the_golden_file(tmp_path: Path, name: str):
    found = yaml.safe_dump_all(documents(tmp_path, load_infra(name, [])), sort_keys=True, width=100)
    golden = DATA / f"training-{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()


def test_the_agent_is_deployed_after_its_registration_if_the_infra_says_so(tmp_path: Path):
    spec, platform = documents(tmp_path, load_infra(CPU, ["kubernetes.deploy.count=16"]))
    tasks = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert tasks["deploy"]["dependentTasks"] == ["register"]
    resources = executors(spec)["exec-deploy"]["resources"]
    assert resources == executors(spec)["exec-register"]["resources"]
    assert "exec-deploy" in placed(platform)
    plain, _ = documents(tmp_path, load_infra(CPU, []))
    assert "deploy" not in plain["components"]["comp-exit-handler-1"]["dag"]["tasks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"), [(CPU, ()), (H100, ()), (H100, LOCAL), (NODES, ("mode=staged",))]
)
def test_every_executor_s_resources(tmp_path: Path, name: str, words: tuple[str, ...]):
    infra = load_infra(name, list(words))
    assert infra.kubernetes is not None
    spec, platform = documents(tmp_path, infra)
    seen = set()
    for label, container in executors(spec).items():
        step = step_of(label)
        seen.add(step)
        asks = step in WAITING or (step in ASKING and infra.engine == "verl")
        usual = infra.kubernetes.ask if asks else infra.kubernetes.work
        expected = infra.kubernetes.steps.get(step, usual)
        assert expected == resources_of(step, infra)
        resources = container["resources"]
        assert resources["resourceCpuRequest"] == expected.cpu
        burst = "1" if expected.cpu.endswith("m") else expected.cpu
        assert resources["resourceCpuLimit"] == burst
        memory = (resources["resourceMemoryLimit"], resources["resourceMemoryRequest"])
        assert memory == (expected.memory, expected.memory)
        gpus = resources.get("accelerator", {}).get("resourceCount")
        assert gpus == (str(expected.gpus) if expected.gpus else None)
        mounts = {
            mount["mountPath"]: mount for mount in placed(platform)[label].get("emptyDirMounts", [])
        }
        assert "/runs" in mounts
        shm = mounts.get("/dev/shm")
        assert (shm and (shm["medium"], shm["sizeLimit"])) == (
            expected.shm and ("Memory", expected.shm)
        )
    assert seen == WAITING | WORKING | {"warm_start", "evaluate"} | STRETCH[infra.mode]


def test_resources_of_one_step():
    infra = load_infra(CPU, ["kubernetes.steps.judge.memory=3Gi", "kubernetes.steps.judge.cpu=2"])
    assert resources_of("judge", infra).memory == "3Gi"
    assert resources_of("update", infra).memory == "1Gi"


@pytest.mark.slow
def test_every_executor_s_nodes_secrets_time_and_identity(tmp_path: Path):
    words = [
        "kubernetes.node_selector={pool: steps}",
        "kubernetes.tolerations=[dedicated=vagen:NoSchedule, nvidia.com/gpu:NoExecute]",
        "kubernetes.pull_secrets=[registry]",
        "kubernetes.step_hours=0.5",
        "kubernetes.team=agents",
        "kubernetes.cost_center='4711'",
    ]
    _, platform = documents(tmp_path, load_infra(CPU, words))
    for label, config in placed(platform).items():
        assert config["nodeSelector"]["labels"] == {"pool": "steps"}, label
        assert config["tolerations"] == [
            {"effect": "NoSchedule", "key": "dedicated", "operator": "Equal", "value": "vagen"},
            {"effect": "NoExecute", "key": "nvidia.com/gpu", "operator": "Exists"},
        ]
        (secret,) = config["secretAsEnv"]
        assert secret["secretName"] == "vagen-s3"
        assert {pair["envVar"]: pair["secretKey"] for pair in secret["keyToEnv"]} == {
            key: key for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        }
        (site,) = config["configMapAsEnv"]
        assert site["configMapName"] == "vagen-site"
        assert {pair["configMapKey"] for pair in site["keyToEnv"]} >= {"AWS_ENDPOINT_URL_S3"}
        assert config["imagePullSecret"][0]["secretName"] == "registry"
        assert config["activeDeadlineSeconds"] == "1800"
        assert config["securityContext"] == {
            "runAsUser": "1000",
            "runAsGroup": "1000",
            "runAsNonRoot": True,
        }
        assert config["podMetadata"]["labels"] == {
            "app.kubernetes.io/part-of": "vagen",
            "app.kubernetes.io/component": "step",
            "vagen.dev/step": step_of(label).replace("_", "-"),
            "vagen.dev/team": "agents",
            "vagen.dev/cost-center": "4711",
        }
        assert config["imagePullPolicy"] == "IfNotPresent"


def test_every_step_is_tried_again_and_never_cached(tmp_path: Path):
    spec, _ = documents(tmp_path, load_infra(H100, []))
    dags = [spec["root"]["dag"], *(p["dag"] for p in spec["components"].values() if "dag" in p)]
    steps = 0
    for name, task in (item for dag in dags for item in dag["tasks"].items()):
        if "executorLabel" not in spec["components"][task["componentRef"]["name"]]:
            continue
        steps += 1
        assert not task["cachingOptions"].get("enableCache"), name
        assert task["retryPolicy"]["maxRetryCount"] == 2, name
        assert task["retryPolicy"]["backoffDuration"] == "30s", name
    assert steps == 8


@pytest.mark.slow
def test_no_secret_value_is_in_a_compiled_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-seen")
    pipeline = training_pipeline(load_infra(CPU, []))
    assert "not-to-be-seen" not in write(pipeline, tmp_path / "x.yaml").read_text()


def test_the_evaluation_is_named_by_the_pipeline_run(tmp_path: Path):
    spec, platform = read(write(evaluation_pipeline(load_infra(H100, [])), tmp_path / "x.yaml"))
    json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    inputs = spec["root"]["dag"]["tasks"]["measure"]["inputs"]["parameters"]
    assert inputs["name"]["runtimeValue"]["constant"] == "measured-{{$.pipeline_job_uuid}}"
    assert set(spec["root"]["inputDefinitions"]["parameters"]) == {"run", "split", "count"}
    (container,) = executors(spec).values()
    assert container["resources"]["resourceMemoryLimit"] == "64Gi"
    assert container["resources"]["accelerator"]["resourceCount"] == "1"
    (config,) = placed(platform).values()
    assert {mount["mountPath"] for mount in config["emptyDirMounts"]} == {"/runs", "/dev/shm"}


@pytest.mark.slow
def test_the_image_of_the_infra_yields_to_the_command_line(tmp_path: Path):
    infra = load_infra(CPU, ["kubernetes.image=example.org/a:1"])
    spec, _ = documents(tmp_path, infra)
    assert {container["image"] for container in executors(spec).values()} == {"example.org/a:1"}
    pipeline = training_pipeline(infra, image="example.org/b:1")
    spec, _ = read(write(pipeline, tmp_path / "y.yaml"))
    assert {container["image"] for container in executors(spec).values()} == {"example.org/b:1"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("kubernetes.tolerations=[gpu]", "is no toleration; write key=value:effect"),
        ("kubernetes.work.memory=16 GB", "write a quantity of Kubernetes"),
        ("kubernetes.namespace=My_Space", "lower-case letters, digits"),
        ("kubernetes.step_hours=0", "greater than 0"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_first(word: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_infra(CPU, [word])
