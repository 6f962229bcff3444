"""The components: current documents, and what each hands on, over a real run."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import local
from kfp.dsl import Artifact

from components import check, digest, readme
from pipelines.definition import evaluation_pipeline, models_pipeline
from vagen.cli.main import main
from vagen.config import dump_yaml
from vagen.experiment.load import load_infra
from vagen.run.run import Run
from vagen.steps import STEPS
from vagen.storage import read_manifest


@pytest.mark.parametrize("name", readme.names())
def test_readme_is_current(name: str):
    path = Path(readme.ROOT) / name / "README.md"
    assert path.read_text() == readme.readme(name), "run `python -m components.readme`"


@pytest.mark.parametrize("name", readme.names())
def test_metadata_is_current(name: str):
    path = Path(readme.ROOT) / name / "metadata.yaml"
    assert path.read_text() == readme.metadata(name), "run `python -m components.readme`"


HEAVY = {"torch", "transformers", "mlflow", "pandas", "pyarrow", "scipy"}
IN_ORDER: list[tuple[str, dict[str, Any], str]] = [
    ("begin", {"experiment": "", "infra": "", "code": digest()}, ""),
    ("build", {}, "levels"),
    ("warm_start", {}, "warm_start"),
    ("evaluate", {"name": "warm_start", "split": "test"}, "evaluations/warm_start"),
    ("rollout", {"iteration": 0}, "iterations/0000/rollout"),
    ("judge", {"iteration": 0}, "iterations/0000/judge"),
    ("advantage", {"iteration": 0}, "iterations/0000/advantage"),
    ("update", {"iteration": 0}, "iterations/0000/update"),
    ("train", {"start": 1, "stop": 2}, "iterations/0001/update"),
    ("evaluate", {"name": "final", "split": "test"}, "evaluations/final"),
    ("measure", {"name": "now", "split": "val", "count": 2}, "evaluations/now"),
    ("register", {}, "registration"),
    (
        "finalize",
        {"namespace": "", "status": SimpleNamespace(state="COMPLETE", error_message=None)},
        "",
    ),
]


@pytest.mark.slow
def test_a_step_that_asks_the_ray_cluster_loads_nothing_heavy_and_says_what_is_wrong(
    make_experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("ray")
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    settings = [f"output_dir={tmp_path}", f"store={(tmp_path / 'store').as_uri()}"]
    run = Run.create(make_experiment(), load_infra("kubernetes-cpu", settings))
    assert run.mirror is not None
    code = (
        "import atexit, sys; from vagen.launch import step; from ray import job_submission\n"
        f"atexit.register(lambda: print({HEAVY} & set(sys.modules)))\n"
        f"step.run_stage({run.mirror.uri!r}, 'rollout', iteration=0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("no access to a Kubernetes cluster"), "no trace before it"
    assert done.stdout == "set()\n", "seconds of every step"


@pytest.mark.slow
def test_what_the_components_hand_on(make_started_run, tmp_path: Path):
    run: Run = make_started_run("trainer.total_training_steps=2")
    for name, given, folder in IN_ORDER:
        component = getattr(importlib.import_module(f"components.{name}.component"), name)
        outputs = {
            key: Artifact(name=key, uri=str(tmp_path / f"{name}-{key}"))
            for key, output in (component.component_spec.outputs or {}).items()
        }
        assert component.python_func(run=str(run.path), **given, **outputs) is None
        if not outputs:
            continue
        metrics = outputs.pop("metrics")
        ((key, artifact),) = outputs.items()
        manifest = read_manifest(run.path / folder)
        assert artifact.metadata["sha256"] == manifest.digest, name
        assert artifact.uri == str(tmp_path / f"{name}-{key}"), "the launcher owns it"
        assert set(metrics.metadata) <= set(manifest.payload["metrics"])
        content = Path(artifact.path).read_text()
        if key == "report":
            assert "<html" in content
        else:
            pointer = {"location": str(run.path / folder), "sha256": manifest.digest}
            assert json.loads(content) == pointer
    assert json.loads((run.path / "summary.json").read_text())["iterations"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("warm_steps")
def test_an_evaluation_by_itself_runs_here(make_started_run, tmp_path: Path):
    run: Run = make_started_run()
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "pipeline"))
    evaluation_pipeline(load_infra(None, []))(run=str(run.path), split="val", count=2)
    (folder,) = run.evaluation("").iterdir()
    assert folder.name.startswith("measured-")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_steps")
def test_an_evaluation_of_models_runs_here(tmp_path: Path):
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "pipeline"))
    options = {
        "environments": {"lake": "frozenlake-tiny"},
        "models": ["expert", "random"],
        "count": 4,
    }
    infra = load_infra(None, [f"output_dir={tmp_path}"])
    uri = (tmp_path / "store" / "night").as_uri()
    models_pipeline(infra, ["expert", "random"], scheduled=True)(
        evaluation=json.dumps(options), infra=dump_yaml(infra), folder=uri
    )
    (made,) = (tmp_path / "store").iterdir()
    assert made.name.startswith("night-")
    out = tmp_path / "here"
    assert main(["eval", made.as_uri(), "--to", str(out)]) == 0
    lines = json.loads((out / "table.json").read_text())["lines"]
    assert {line["model"]: line["levels"] for line in lines} == {"expert": 4, "random": 4}
    assert lines[0]["model"] == "expert" and lines[0]["success"] == 1.0
    (pages, *_) = (tmp_path / "pipeline").rglob("report")
    assert "<html" in pages.read_text()


def test_every_stage_has_a_component():
    # One makes the run, one has all stages of several iterations executed, one knows no run, one
    # serves the agent afterwards.
    assert set(readme.names()) - set(STEPS) == {"begin", "train", "evaluate_model", "deploy"}
    assert set(STEPS) <= set(readme.names())


@pytest.mark.parametrize("path", sorted(Path(readme.ROOT).glob("*/component.py")), ids=str)
def test_components_import_nothing_but_the_launch(path: Path):
    imports = [
        line.split()[1]
        for line in path.read_text().splitlines()
        if line.lstrip().startswith(("import ", "from "))
    ]
    launch = {"vagen.launch.step", "vagen.launch.lifecycle"}
    assert set(imports) <= {"kfp", "kfp.dsl", "components", "components.image", *launch}


def test_a_pipeline_of_other_code_than_the_images_is_refused():
    check(digest())
    with pytest.raises(ValueError, match=r"compiled with other code .* build it again"):
        check("0123456789ab")
