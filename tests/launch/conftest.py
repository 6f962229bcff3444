"""Fixtures: a real Ray head, and a small run in a store that is performed on it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_head import PATIENCE, RayHead

from vagen.experiment.load import load_infra
from vagen.launch.ray_job import StageJob
from vagen.launch.step import run_in_process
from vagen.run.run import Run

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "tests/cluster"))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, ray_workers: Path) -> Iterator[RayHead]:
    head = RayHead(tmp_path_factory.mktemp("scratch"), ray_workers)
    yield head
    head.kill()


@pytest.fixture
def run(head: RayHead, make_experiment: Callable[..., Any], tmp_path: Path) -> Iterator[Run]:
    """A run in a store, of which nothing is done yet; named by its folder."""
    settings = [f"output_dir={tmp_path}/runs", f"store={(tmp_path / 'store').as_uri()}"]
    infra = load_infra(None, [*settings, "device=cpu", "threads=1", "mlflow_tracking_uri=null"])
    experiment = make_experiment("warm_start.steps=40")  # some seconds to be disturbed in
    yield Run.create(experiment, infra, name=f"lake-{tmp_path.name[-12:].strip('-_')}")
    head.end_actors()


@pytest.fixture
def built(run: Run) -> Run:
    """A run with levels, which were built here: a job takes seconds."""
    run_in_process(str(run.path), "build")
    return run


@pytest.fixture
def stage_job(run: Run) -> Callable[..., StageJob]:
    def make(stage: str, lines: list[str] | None = None, seconds: float = 300, **arguments: Any):
        say = (lambda _: None) if lines is None else lines.append
        return StageJob(
            run.mirror.uri,
            stage,
            {"cpu": 1, **arguments},
            seconds=seconds,
            patience=PATIENCE,
            say=say,
        )

    return make
