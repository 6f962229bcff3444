"""Graders of OpenEnv's checks: one environment that passes and those that fail each."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

pytest.importorskip("openenv", reason="make test-interop installs it")

from game import Game, Seen, app, package
from openenv.core.env_server import Action, create_app
from openenv.validation import GraderRegistry, Level, Subject, load_policy
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from pydantic import BaseModel, Field
from served import served

from vagen.interop.openenv_player import smallest_action

ROOT = Path(__file__).parents[2]
SCRIPT = {"form": "script", "location": "solution.json"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Entry points as `pip install` publishes them; the folder to put on PYTHONPATH."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    published = project["entry-points"]["openenv.validation.graders"]
    folder = tmp_path / "site" / "vagen-9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vagen\nVersion: 9\n")
    lines = "".join(f"{name} = {target}\n" for name, target in published.items())
    (folder / "entry_points.txt").write_text(f"[openenv.validation.graders]\n{lines}")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder.parent


def graders() -> GraderRegistry:
    registry = GraderRegistry()
    assert registry.load_entry_points() == 11
    return registry


def test_each_grader_is_of_a_check_of_the_policy(installed, tmp_path):
    manifest = OpenEnvYamlParser().parse(package(tmp_path / "game"))
    found = graders().select(manifest, Level.SEMANTIC)
    levels = {entry.check_id: entry.level for entry in load_policy("v2").entries}
    assert len(found) == 11 and all(each.level is levels[each.check_id] for each in found)
    assert all(each.run(subject(tmp_path / "game", "")).status.value == "skip" for each in found)


def subject(root: Path, url: str) -> Subject:
    return Subject(
        root=root,
        manifest=OpenEnvYamlParser().parse(root),
        image_ref=None,
        running=SimpleNamespace(base_url=url) if url else None,
        outputs_dir=root,
    )


@pytest.mark.parametrize(
    ("check_id", "fault", "capabilities", "status", "evidence"),
    [
        ("runtime.seed_control", "", {}, "pass", ""),
        ("runtime.seed_control", "seedless", {}, "fail", "same seed differ at reset: observation"),
        ("runtime.seed_control", "constant", {}, "skip", "needs a seed that changes it"),
        ("runtime.episode_determinism", "", {}, "pass", ""),
        ("runtime.episode_determinism", "clock", {}, "fail", "differ at 0.observation.more"),
        ("runtime.episode_determinism", "noisy", {}, "fail", "differ at 1.reward"),
        ("runtime.episode_determinism", "noisy", {"llm_judged": True}, "pass", ""),
        ("runtime.episode_isolation", "", {}, "pass", ""),
        ("runtime.episode_isolation", "one", {}, "pass", ""),
        ("runtime.episode_isolation", "leftover", {}, "fail", "after another episode"),
        ("runtime.episode_isolation", "shared", {}, "fail", "beside another session's episode"),
        ("runtime.oracle_containment", "", {}, "pass", ""),
        ("runtime.oracle_containment", "served", {}, "fail", "the oracle is in /walkthrough"),
        ("runtime.oracle_containment", "", {"oracle": None}, "skip", "needs capabilities.oracle"),
        ("runtime.tool_declaration_accuracy", "", {}, "pass", ""),
        ("runtime.tool_declaration_accuracy", "tools", {"declared_tools": ["look"]}, "pass", ""),
        ("runtime.tool_declaration_accuracy", "tools", {}, "fail", "look is served, but not"),
        ("runtime.tool_declaration_accuracy", "", {"declared_tools": ["x"]}, "fail", "x is declar"),
        ("semantic.oracle_max", "", {}, "pass", ""),
        (
            "semantic.oracle_max",
            "",
            {"oracle": SCRIPT | {"location": "short.json"}},
            "fail",
            "earns 0, not 1",
        ),
        (
            "semantic.oracle_max",
            "",
            {"oracle": {"form": "injected_state", "location": "solved.json"}, "set_state": True},
            "pass",
            "",
        ),
        ("semantic.oracle_max", "", {"oracle": None}, "fail", "no capabilities.oracle"),
        ("semantic.oracle_max", "", {"oracle": SCRIPT | {"location": "serve.py"}}, "skip", "plan"),
        ("semantic.oracle_max", "", {"oracle": SCRIPT | {"location": "x.json"}}, "fail", "has no"),
        ("semantic.floor_gap", "", {}, "pass", ""),
        ("semantic.floor_gap", "idle", {}, "fail", "earn 1 of 1"),
        ("semantic.canary_floor", "", {}, "pass", ""),
        ("semantic.canary_floor", "backward", {}, "fail", "backward.json earns 1, above 0.5"),
        ("semantic.canary_floor", "", {"canaries": None}, "skip", "needs capabilities.canaries"),
        ("semantic.no_solution_leakage", "", {}, "pass", ""),
        ("semantic.no_solution_leakage", "hint", {}, "fail", "lists the solution"),
        ("semantic.no_solution_leakage", "words", {}, "fail", "lists the solution"),
        ("semantic.no_solution_leakage", "", {"oracle": None}, "skip", "needs capabilities.oracle"),
        ("semantic.verifier_determinism", "", {}, "pass", ""),
        ("semantic.verifier_determinism", "noisy", {}, "fail", "have the variance"),
        ("semantic.verifier_determinism", "noisy", {"llm_judged": True}, "pass", ""),
        ("semantic.replayability", "", {}, "skip", "needs a second process"),
    ],
)
def test_an_environment_passes_or_fails(
    installed, tmp_path, check_id, fault, capabilities, status, evidence
):
    root = package(tmp_path / "game", fault, **capabilities)
    grader = graders().get(check_id)
    assert grader
    with served(app(fault)) as url:
        result = grader.run(subject(root, url))
    assert (result.status.value, evidence in " ".join(result.evidence)) == (status, True), result
    assert (result.remediation is not None) == (status == "fail")


class Part(BaseModel):
    size: int = Field(gt=2)


class Wide(Action):
    text: str
    name: str = Field(min_length=2)
    kind: Literal["b", "a"]
    part: Part
    parts: list[Part] = Field(min_length=1)
    either: Part | None
    level: float = Field(ge=1.5)
    on: bool
    more: int = 7


def test_the_smallest_action_is_one_that_the_schema_allows():
    with served(create_app(Game, Wide, Seen)) as url:
        found = smallest_action(url)
    part = {"size": 3}
    assert found == {
        **{"text": "", "name": "  ", "kind": "b", "part": part, "parts": [part], "either": part},
        **{"level": 1.5, "on": False},
    }
    Wide.model_validate(found)


def check(installed: Path, root: Path, *words: str) -> Any:
    places = (installed, ROOT, Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, places))}
    command = [sys.executable, "-m", "vagen.cli.main", "env", "check", str(root), "--openenv"]
    return subprocess.run([*command, *words], capture_output=True, text=True, env=environment)


def test_the_command_grades_a_package_in_processes(installed, tmp_path):
    good, bad = (package(tmp_path / f"{fault}_", fault) for fault in ("", "process"))
    done = check(installed, good)
    assert done.returncode == 0 and "FAIL" not in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("PASS") == 16 and done.stdout.count("SKIP") == 1
    done = check(installed, bad)
    assert done.returncode and "another process it differs at 0.observation.more" in done.stdout
    with served(app()) as url:
        done = check(installed, good, "--url", url)
    assert done.stdout.count("PASS") == 16, done.stdout + done.stderr
    (good / "openenv.yaml").write_text("name: game\n")
    assert "has no `validation:` block" in check(installed, good).stderr
