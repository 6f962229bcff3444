import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import local
from kfp.dsl import Artifact

from components import readme
from pipelines.definition import evaluation_pipeline
from vagen.config import load_infra
from vagen.stages.dispatch import STAGES


@pytest.mark.parametrize("name", readme.names())
def test_readme_is_current(name: str):
    path = Path(readme.ROOT) / name / "README.md"
    assert path.read_text() == readme.readme(name), "run `python -m components.readme`"


@pytest.mark.parametrize("name", readme.names())
def test_metadata_is_current(name: str):
    path = Path(readme.ROOT) / name / "metadata.yaml"
    assert path.read_text() == readme.metadata(name), "run `python -m components.readme`"


INPUTS: dict[str, Any] = {
    "iteration": 2,
    "start": 2,
    "stop": 4,
    "name": "final",
    "split": "test",
    "count": 0,
    "source_uri": "",
    "source_sha256": "",
    "experiment": "",
    "infra": "",
    "status": SimpleNamespace(state="SUCCEEDED", error_message=None),
}
"""Arguments by name, as the pipeline gives them."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run whose stages are those of `pipeline_stages`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("VAGEN_EXECUTOR", "pipeline_stages:open_run")
    return str(tmp_path)


@pytest.mark.parametrize("name", readme.names())
def test_what_a_component_hands_on(name: str, run: str):
    component = getattr(importlib.import_module(f"components.{name}.component"), name)
    spec = component.component_spec
    artifacts = {
        key: Artifact(name=key)
        for key, output in (spec.outputs or {}).items()
        if output.type.startswith("system.")
    }
    given = {key: INPUTS[key] for key in (spec.inputs or {}) if key != "run"}
    produced = component.python_func(run=run, **given, **artifacts)
    if not spec.outputs:
        assert produced is None
        return
    uri, sha256 = produced
    assert Path(uri).is_relative_to(run) and len(sha256) == 64
    metrics = artifacts.pop("metrics")
    assert metrics.metadata == {"success": 0.5}  # what is not finite is left out
    (artifact,) = artifacts.values()
    assert artifact.uri.startswith(uri)
    assert artifact.metadata["sha256"] == sha256


def test_an_evaluation_by_itself_runs_here(run: str, tmp_path: Path):
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "pipeline"))
    evaluation_pipeline(load_infra(None, []))(run=run)
    (folder,) = (tmp_path / "evaluations").iterdir()
    assert folder.name.startswith("measured-")


def test_every_stage_has_a_component():
    # One makes the run, one has all stages of several iterations executed.
    assert set(readme.names()) - set(STAGES) == {"begin", "train"}
    assert set(STAGES) <= set(readme.names())


@pytest.mark.parametrize("path", sorted(Path(readme.ROOT).glob("*/component.py")), ids=str)
def test_components_import_nothing_but_the_stages(path: Path):
    imports = [
        line.split()[1]
        for line in path.read_text().splitlines()
        if line.lstrip().startswith(("import ", "from "))
    ]
    allowed = {
        "typing",
        "kfp",
        "kfp.dsl",
        "components.image",
        "vagen.stages.session",
        "vagen.stages.lifecycle",
    }
    assert set(imports) <= allowed
