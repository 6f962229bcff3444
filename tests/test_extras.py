"""What `pip install vagen` brings without extras: it trains, and says which extra has the rest."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vagen.cli.main import main
from vagen.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def distributions(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


HOMES = packages_distributions()  # takes seconds


def homes_of(module: str) -> set[str]:
    names = HOMES.get(module, [module])
    return {canonicalize_name(name) for name in names}


def test_every_extra_library_is_in_its_extra_and_not_in_the_core() -> None:
    core = distributions(PROJECT["dependencies"])
    for module, extra in EXTRAS.items():
        inside = distributions(PROJECT["optional-dependencies"][extra])
        assert module == "botocore" or homes_of(module) & inside, module
        assert not homes_of(module) & core, module


def test_every_import_is_of_a_declared_library() -> None:
    """Of the core, of an extra, or of what is named here with its reason."""
    from test_rooms import imports

    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = set[str]().union(*map(distributions, groups))
    known = {
        "ai2thor",  # docs/environments.md: its build is downloaded by its user
        "botocore",  # boto3's own
        "browsergym",  # docs/environments.md: it asks for an old Playwright
        "s3transfer",  # boto3's own
        "hydra",  # verl's configuration
        "kfp_server_api",  # kfp's client
        "omegaconf",
        "pandas",  # what MLflow hands a pyfunc model
        "psutil",  # Ray's
        "pydantic_core",
        "pyglet",  # MiniWorld's
        "vllm",  # docs/verl.md
    }
    strangers = {
        module
        for folder in ("vagen", "components", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        for name in imports(path)
        if (module := name.partition(".")[0]) not in sys.stdlib_module_names | known
        and module not in ("vagen", "components", "pipelines")
        and not homes_of(module) & declared
    }
    assert not strangers


BARE = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in {names}
        return None if absent else super().find_spec(name, path, target)

sys.meta_path = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
"""


@pytest.fixture
def bare(tmp_path: Path):
    """Runs the command line in a folder of its own, without the libraries of any extra."""
    absent = {*EXTRAS} - {"fastapi", "uvicorn"}  # MLflow's server needs these two
    (tmp_path / "sitecustomize.py").write_text(BARE.format(names=absent))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vagen.cli.main", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return run


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("compile", "frozenlake-tiny", "--output", "pipeline.yaml"), "kubernetes"),
        (("sweep", "presets-seeds"), "sweep"),
        (("store", "ls", "s3://bucket/runs"), "s3"),
        (("env", "show", "SVG"), "envs"),
        (("env", "show", "PrimitiveSkill"), "envs"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(bare, words, extra) -> None:
    done = bare(*words)
    assert f"pip install 'vagen[{extra}]'" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr and done.returncode == 2


@pytest.mark.slow
def test_the_core_trains(bare) -> None:
    small = (
        *("trainer.total_training_steps=1", "data.train_batch_size=4", "warm_start.steps=2"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "critic.ppo_mini_batch_size=4"),
        *(f"envs.frozenlake.{split}_size=4" for split in ("train", "val", "test")),
    )
    done = bare("run", "frozenlake-tiny", *small)
    assert done.returncode == 0, done.stdout + done.stderr


def test_experiments_have_names_in_any_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "frozenlake-tiny"]) == 0
    assert "frozenlake-tiny" in capsys.readouterr().out
    assert not (tmp_path / "experiments").exists()


def test_every_data_file_is_in_the_wheel() -> None:
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {
        path
        for package, patterns in given["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    data = {path for path in (ROOT / "vagen").rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert data <= packed, data - packed
