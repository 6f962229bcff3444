"""The files that ship: experiments, infra, constraints, and the reference of options."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tools.docs.options import render
from vagen.config import InfraConfig
from vagen.config.errors import section_of
from vagen.config.schema import ExperimentConfig
from vagen.experiment.load import load_experiment, load_infra

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
INFRAS = sorted((ROOT / "experiments" / "infra").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_loads_and_is_named_like_its_file(path: Path) -> None:
    assert load_experiment(path).name == path.stem


@pytest.mark.parametrize("path", INFRAS, ids=lambda path: path.stem)
def test_every_infra_loads(path: Path) -> None:
    load_infra(path)


def test_laptop_spells_out_every_default() -> None:
    written = yaml.safe_load((ROOT / "experiments" / "infra" / "laptop.yaml").read_text())
    # The options of a GPU, of another engine, and of a store that is not there, have no meaning.
    assert written == InfraConfig().model_dump(exclude={"local", "verl", "s3"})


def test_the_reference_is_current() -> None:
    stored = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert stored == render(), "run: python -m tools.docs.options docs/configuration.md"


def test_every_option_is_documented() -> None:
    undocumented = []

    def visit(model: type[BaseModel], prefix: str) -> None:
        for name, field in model.model_fields.items():
            section, _ = section_of(field.annotation)
            if section is not None:
                visit(section, f"{prefix}{name}.")
            elif not field.description:
                undocumented.append(f"{prefix}{name}")

    visit(ExperimentConfig, "")
    visit(InfraConfig, "infra.")
    assert not undocumented


def test_constraints_pin_every_dependency_and_no_machine_path() -> None:
    text = (ROOT / "constraints" / "laptop.txt").read_text()
    pins = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {requirement.split(">")[0].split("=")[0].strip() for requirement in wanted}
    assert names <= set(pins)
    assert "/" not in re.sub(r"constraints/\w+\.txt", "", text)
    assert not any("+" in version for version in pins.values())
