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
from pipelines.definition import Produced, training_pipeline
from vagen.config import load_infra

GOLDEN = Path(__file__).parents[1] / "data" / "pipelines" / "training-2-iterations.yaml"
SOURCE = Produced("runs/a/iterations/0000/update", "0" * 64)


def compiled(path: Path, mode: str = "staged", start: int = 0, **options: Any) -> dict[str, Any]:
    infra = load_infra(None, [f"mode={mode}"])
    source = SOURCE if start else None
    pipeline = training_pipeline(infra, start=start, source=source, **options)
    content = yaml.safe_load(write(pipeline, path / "pipeline.yaml").read_text())
    # The version of the compiler is its own matter.
    content["sdkVersion"] = "kfp"
    return content


def tasks_of(content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    dags = [content["root"]["dag"]]
    dags += [part["dag"] for part in content["components"].values() if "dag" in part]
    return [item for dag in dags for item in dag["tasks"].items()]


def images_of(content: dict[str, Any]) -> set[str]:
    executors = content["deploymentSpec"]["executors"].values()
    return {executor["container"]["image"] for executor in executors}


def test_two_iterations_compile_to_the_golden_file(tmp_path: Path):
    content = compiled(tmp_path, iterations=2, test_freq=1)
    text = yaml.safe_dump(content, sort_keys=True, width=100)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("mode", ["staged", "fused"])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_every_form_fits_the_schema(tmp_path: Path, mode: str, start: int):
    content = compiled(tmp_path, iterations=3, start=start, mode=mode, test_freq=2)
    json_format.ParseDict(content, pipeline_spec_pb2.PipelineSpec())
    rounds = sum(name.startswith(("round", "train")) for name, _ in tasks_of(content))
    assert rounds == (3 - start if mode == "staged" else {0: 2, 1: 2, 3: 0}[start])


def test_the_schema_check_can_fail(tmp_path: Path):
    content = compiled(tmp_path, iterations=1)
    content["root"]["dag"]["tasks"]["finalize"]["cacheOptions"] = {}
    with pytest.raises(json_format.ParseError, match="cacheOptions"):
        json_format.ParseDict(content, pipeline_spec_pb2.PipelineSpec())


def test_compilation_is_deterministic(tmp_path: Path):
    first = compiled(tmp_path, iterations=2)
    assert compiled(tmp_path, iterations=2) == first


def test_the_exit_handler_closes_the_run_whatever_happened(tmp_path: Path):
    tasks = compiled(tmp_path, iterations=1)["root"]["dag"]["tasks"]
    closing = tasks["finalize"]
    assert closing["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert set(closing["inputs"]["parameters"]) == {"run", "status"}


def test_nothing_is_cached_and_no_name_looks_like_kfp_s_own_loops(tmp_path: Path):
    content = compiled(tmp_path, iterations=12, test_freq=5)
    steps = 0
    for name, task in tasks_of(content):
        assert "-iteration" not in name
        if "executorLabel" in content["components"][task["componentRef"]["name"]]:
            assert not task["cachingOptions"].get("enableCache"), name
            steps += 1
    assert steps == 12 * 4 + 4 + 2 + 2 + 1


def test_steps_are_chained_by_what_they_hand_on(tmp_path: Path):
    content = compiled(tmp_path, iterations=2)
    tasks = content["components"]["comp-round-2"]["dag"]["tasks"]
    assert tasks["update"]["inputs"]["parameters"]["source_sha256"] == {
        "taskOutputParameter": {"outputParameterKey": "sha256", "producerTask": "advantage"}
    }
    outer = content["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert outer["round-2"]["inputs"]["parameters"]["source_uri"] == {
        "taskOutputParameter": {"outputParameterKey": "uri", "producerTask": "round"}
    }
    assert "evaluate" in outer["round"]["dependentTasks"]


def test_the_image_is_a_choice_at_compile_time(tmp_path: Path):
    assert images_of(compiled(tmp_path, iterations=1)) == {"vagen:latest"}
    image = "example.org/vagen@sha256:" + "0" * 64
    assert images_of(compiled(tmp_path, iterations=1, image=image)) == {image}


def test_impossible_requests_are_refused():
    infra = load_infra(None, [])
    with pytest.raises(ValueError, match="start is 3: it must be between 0 and iterations, 2"):
        training_pipeline(infra, iterations=2, start=3)
    with pytest.raises(ValueError, match="start is 1: source must be what the update before it"):
        training_pipeline(infra, iterations=2, start=1)


@pytest.mark.parametrize(
    ("every", "test_freq", "expected"),
    [
        (None, 0, [(0, 10)]),
        (4, 0, [(0, 4), (4, 8), (8, 10)]),
        (None, 5, [(0, 5), (5, 10)]),
        (4, 5, [(0, 4), (4, 5), (5, 8), (8, 10)]),
    ],
)
def test_stretches_of_fused_tasks(
    tmp_path: Path, every: int | None, test_freq: int, expected: list[tuple[int, int]]
):
    words = ["mode=fused", f"iterations_per_task={'null' if every is None else every}"]
    pipeline = training_pipeline(load_infra(None, words), iterations=10, test_freq=test_freq)
    content = yaml.safe_load(write(pipeline, tmp_path / "x.yaml").read_text())
    found = [
        tuple(
            round(task["inputs"]["parameters"][key]["runtimeValue"]["constant"])
            for key in ("start", "stop")
        )
        for name, task in tasks_of(content)
        if name.startswith("train")
    ]
    assert sorted(found) == expected


def test_a_run_taken_up_after_a_validation_s_iteration_makes_up_for_it(tmp_path: Path):
    """It may have ended amid the validation, which rules for stopping early count."""

    def evaluations(start: int) -> set[str]:
        content = compiled(tmp_path, iterations=6, start=start, test_freq=2)
        names = (task["taskInfo"]["name"] for _, task in tasks_of(content))
        return {name for name in names if name.startswith("evaluate iteration")}

    assert evaluations(2) == {"evaluate iteration-0002", "evaluate iteration-0004"}
    assert evaluations(3) == {"evaluate iteration-0004"}
    assert evaluations(6) == set()
