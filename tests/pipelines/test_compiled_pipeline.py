"""The compiled pipeline: golden file, Kubeflow's schema, and what must never be in it.

`UPDATE_GOLDEN=1 pytest tests/pipelines` writes the golden file anew after an intended change.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from pipelines.compile import write
from pipelines.definition import training_pipeline
from pipelines.schedule import LIMIT, check_length, stretches
from vagen.config import ConfigError
from vagen.config.trainer_options import TrainerConfig
from vagen.experiment.load import load_infra

GOLDEN = Path(__file__).parents[1] / "data" / "pipelines" / "training.yaml"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("compiled") / "pipeline.yaml"
    return write(training_pipeline(load_infra(None, [])), path).read_text()


@pytest.fixture
def content(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    # The version of the compiler is its own matter.
    loaded["sdkVersion"] = "kfp"
    return loaded


def tasks_of(content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    dags = [content["root"]["dag"]]
    dags += [part["dag"] for part in content["components"].values() if "dag" in part]
    return [item for dag in dags for item in dag["tasks"].items()]


def test_it_is_the_golden_file(content: dict[str, Any]):
    found = yaml.safe_dump(content, sort_keys=True, width=100)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()
    json_format.ParseDict(content, pipeline_spec_pb2.PipelineSpec())


def test_its_size_does_not_depend_on_the_training(text: str):
    assert len(text) < 60_000
    assert "total_training_steps" not in text


def test_the_exit_handler_closes_the_run_whatever_happened(content: dict[str, Any]):
    closing = content["root"]["dag"]["tasks"]["finalize"]
    assert closing["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert set(closing["inputs"]["parameters"]) == {"run", "namespace", "status"}


def test_nothing_is_cached_and_no_name_looks_like_kfp_s_own_loops(content: dict[str, Any]):
    steps = set()
    for name, task in tasks_of(content):
        assert "-iteration" not in name
        component = task["componentRef"]["name"]
        if "executorLabel" in content["components"][component]:
            assert not task["cachingOptions"].get("enableCache"), name
            steps.add(component.removeprefix("comp-").rstrip("-23"))
    assert steps == {
        *("begin", "build", "warm-start", "evaluate", "register", "finalize"),
        *("rollout", "judge", "advantage", "update"),
    }


def test_stretches_run_one_after_the_other(content: dict[str, Any]):
    (loop,) = (task for _, task in tasks_of(content) if "parameterIterator" in task)
    assert loop["iteratorPolicy"] == {"parallelismLimit": 1}


def schedule(make_experiment, *words: str, total: int):
    experiment = make_experiment()
    trainer = TrainerConfig(total_training_steps=total)
    experiment = experiment.model_copy(update={"trainer": trainer})
    return stretches(experiment, load_infra(None, list(words)))


def test_a_staged_iteration_is_a_stretch(make_experiment):
    found = schedule(make_experiment, total=4)
    assert [(each["start"], each["stop"]) for each in found] == [(0, 1), (1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [("null", [(0, 10)]), ("4", [(0, 4), (4, 8), (8, 10)]), ("5", [(0, 5), (5, 10)])],
)
def test_fused_iterations_are_one_task(make_experiment, every, expected):
    words = ("mode=fused", f"iterations_per_task={every}")
    found = schedule(make_experiment, *words, total=10)
    assert [(each["start"], each["stop"]) for each in found] == expected


def test_what_kubernetes_cannot_hold_is_refused(make_experiment):
    check_length(schedule(make_experiment, total=LIMIT))
    with pytest.raises(ConfigError, match=r"61 stretches.* infra\.iterations_per_task=2 or more"):
        check_length(schedule(make_experiment, total=LIMIT + 1))
    check_length(schedule(make_experiment, "mode=fused", "iterations_per_task=2", total=LIMIT + 1))
