"""Small real things that many tests share: experiments, warm-started models, a played iteration.

Nothing that is session-scoped may be changed by a test; what a test changes it makes anew.
"""

import fcntl
import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_experiment import experiment_tree

STARTED = ("levels", "warm_start")
"""Folders of a run that iterations start from."""
LONGEST = ("test_same_training.py", "test_resume.py")
"""Begin first: begun last, they would keep one process busy when the others are done."""

# Models this small gain nothing from a second thread, and no test's speed may depend on whether an
# earlier one has set the number; set before torch is imported, for child processes too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray gives way to every other process, so that on a busy machine its tests would wait for ever.
os.environ.setdefault("RAY_worker_niceness", "0")
# Nor a process for every core that a test's node claims to have, before anybody asks for one.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# kfp asks for its caller, and would be told the source of each of a test's frames: four fifths of
# what compiling takes.
inspect.stack = functools.partial(inspect.stack, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then what fills the time that one of them takes longer."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path not in slow))


@pytest.fixture(scope="session")
def warm_program() -> Iterator[Path]:
    """Stands for Python: its processes have imported what commands and steps need."""
    from warm_process import LIBRARIES
    from warm_python import warm_python

    with warm_python(*LIBRARIES, "kfp.dsl") as program:
        yield program


@pytest.fixture
def warm_commands(warm_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.executable` is that program."""
    monkeypatch.setattr(sys, "executable", str(warm_program))


@pytest.fixture
def warm_steps(warm_commands: None, mlflow_tables: Path, tmp_path: Path) -> None:
    """As `warm_commands`; MLflow's database in `tmp_path/outputs` has its tables."""
    (tmp_path / "outputs").mkdir()
    shutil.copy(mlflow_tables, tmp_path / "outputs")


@pytest.fixture(scope="session")
def ray_workers() -> Iterator[Path]:
    """Ray's workers have imported what they need; what `warm_workers` yields."""
    pytest.importorskip("ray")
    from warm_python import warm_workers

    with warm_workers() as folder:
        yield folder


@pytest.fixture(scope="session")
def ray_cluster(ray_workers: Path) -> Iterator[str]:
    """Setting of infra: a cluster of one node for all engines, each after the one before it.

    A Ray of its own costs an engine six seconds of a core.
    """
    from ray_cluster import nodes

    with nodes(1, gpus=8) as (_, address):
        yield address


@pytest.fixture(scope="session")
def swift(tmp_path_factory):
    """An S3 server; without Swift on this machine the test is skipped."""
    from swift_server import SwiftServer, missing

    if reason := missing():
        pytest.skip(reason)
    with SwiftServer(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture
def bucket(swift, monkeypatch) -> str:
    """URI of a fresh bucket; the environment has what boto3 needs for it."""
    for name, value in swift.environment().items():
        monkeypatch.setenv(name, value)
    return swift.new_bucket()


@pytest.fixture(scope="session")
def make_experiment(tmp_path_factory) -> Callable[..., Any]:
    """A checked experiment: `make_experiment("seed=3", model="tiny:text")`."""
    from vagen.experiment.load import load_experiment

    def make(*overrides: str, **options: Any):
        path = tmp_path_factory.mktemp("experiment") / "test.yaml"
        path.write_text(yaml.safe_dump(experiment_tree(**options)))
        return load_experiment(path, list(overrides))

    return make


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory) -> Path:
    """An MLflow database that has its tables already: MLflow takes longer to make them than most
    tests to do what they test.
    """
    from vagen.tracking import default_uri, open_client

    empty = tmp_path_factory.mktemp("empty")
    open_client(default_uri(empty))
    return empty / "mlflow.db"


@pytest.fixture(scope="session")
def make_outputs(tmp_path_factory, mlflow_tables: Path) -> Callable[[], Path]:
    """Folders for runs, each with an MLflow database of its own."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("outputs")
        shutil.copy(mlflow_tables, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def make_run(make_outputs, make_experiment) -> Callable[..., Any]:
    """A run's folder with its configuration and nothing else; MLflow in the same place."""
    from vagen.experiment.load import load_infra
    from vagen.run.run import Run

    def make(*overrides: str, **options: Any):
        infra = load_infra(None, [f"output_dir={make_outputs()}", "device=cpu", "threads=1"])
        return Run.create(make_experiment(*overrides, **options), infra)

    return make


class OnDemand(dict[str, Any]):
    """What is made of a tiny model when it is first asked for: most tests need one of the two."""

    def __init__(self, make: Callable[[str], Any]):
        super().__init__()
        self._make = make

    def __missing__(self, model: str) -> Any:
        self[model] = self._make(model)
        return self[model]


@pytest.fixture(scope="session")
def warm_runs(make_run, tmp_path_factory) -> OnDemand:
    """A run per tiny model: levels built, warm start done, by one of the workers for all."""
    from vagen.stages.build import build
    from vagen.stages.warm_start import warm_start

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def make(model: str) -> Any:
        run, made = make_run(model=model), shared / f"warm-{model.partition(':')[2]}"
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # which no child inherits
            if made.exists():
                for name in STARTED:
                    shutil.copytree(made / name, run.path / name)
                return run
            build(run)
            warm_start(run)
            partial = tmp_path_factory.mktemp("partial")
            for name in STARTED:
                shutil.copytree(run.path / name, partial / name)
            partial.rename(made)
        return run

    return OnDemand(make)


def _adopt_levels(run: Any) -> None:
    """Says of levels that were drawn for a like experiment that they are the run's own."""
    from vagen.storage import MANIFEST, commit_directory, read_manifest, reuse_file

    payload = read_manifest(run.levels).payload | {"config_digest": run.config_digest}
    with commit_directory(run.levels, kind="levels", payload=payload, replace=True) as folder:
        for path in run.levels.iterdir():
            if path.name != MANIFEST:
                reuse_file(path, folder / path.name)


@pytest.fixture(scope="session")
def take_over(warm_runs) -> Callable[..., Any]:
    """Gives a run the levels and the warm start of `warm_runs`; returns it."""

    def give(run: Any, model: str = "tiny:vl"):
        for name in STARTED:
            shutil.copytree(warm_runs[model].path / name, run.path / name)
        _adopt_levels(run)
        return run

    return give


@pytest.fixture(scope="session")
def make_started_run(make_run, take_over) -> Callable[..., Any]:
    """As `make_run`, with levels and warm start taken over from `warm_runs`."""
    return lambda *overrides, model="tiny:text": take_over(make_run(*overrides, model=model), model)


@pytest.fixture(scope="session")
def vl_dir(warm_runs) -> Path:
    """Model directory of the warm-started vision-language model."""
    return warm_runs["tiny:vl"].warm_start / "policy"


@pytest.fixture(scope="session")
def vl_model(vl_dir):
    """The warm-started vision-language model; not to be trained."""
    from vagen.models.loading import load_model

    return load_model(vl_dir)


@pytest.fixture(scope="session")
def text_model(warm_runs):
    """The warm-started text model; not to be trained."""
    from vagen.models.loading import load_model

    return load_model(warm_runs["tiny:text"].warm_start / "policy")


@pytest.fixture(scope="session")
def batch_dirs(warm_runs) -> OnDemand:
    """Per tiny model: the first iteration up to its advantages."""
    from vagen.stages.advantage import advantage
    from vagen.stages.judge import judge
    from vagen.stages.rollout import rollout

    def make(model: str) -> Path:
        run = warm_runs[model]
        for stage in (rollout, judge, advantage):
            stage(run, 0)
        return run.step(0, "advantage")

    return OnDemand(make)


@pytest.fixture
def batch(batch_dirs):
    """The vision-language batch with all columns, fresh from disk."""
    from vagen.rollout.batch import TrajectoryBatch

    return TrajectoryBatch.load(batch_dirs["tiny:vl"])


@pytest.fixture(scope="session")
def make_engine(warm_runs, make_experiment) -> Callable[..., Any]:
    """A fresh engine at the warm start: `make_engine("critic.ppo_epochs=2")`."""
    import torch

    from vagen.engines.local.engine import LocalEngine

    def make(*overrides: str, model: str = "tiny:vl", helpers: int = 0):
        return LocalEngine(
            make_experiment(*overrides, model=model),
            warm_runs[model].warm_start / "policy",
            device=torch.device("cpu"),
            helpers=helpers,
        )

    return make
