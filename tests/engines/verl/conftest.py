"""Tests of the verl engine need verl: `make test-verl` installs it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import nodes
from verl_stories import OVERRIDES, Story, go_on, rows_of, started, tell
from vl_families import write_qwen25vl

from vagen.engines.verl.env_vars import configure, is_installed

INSTALLED = is_installed()
if INSTALLED:
    configure(cpu=True)  # before verl or transformers is imported


@pytest.fixture(scope="session", autouse=True)
def workers(ray_workers: Path) -> None:
    """Ray's processes have imported what they need."""


class _Skipped(pytest.Module):
    """A module that cannot be imported."""

    def collect(self):
        pytest.skip("verl is not installed; `make test-verl` installs it", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent):
    """Skips every module of this folder where verl is not installed."""
    return None if INSTALLED else _Skipped.from_parent(parent, path=module_path)


@pytest.fixture(scope="module")
def make_verl_engine(make_experiment, ray_cluster) -> Iterator[Callable[..., Any]]:
    """The distributed engine on this machine: one at a time, `make(model, "overrides")`."""
    made: list[AbstractContextManager[Any]] = []

    def end() -> None:
        while made:
            made.pop().__exit__(None, None, None)

    def make(model: Path, *overrides: str, ranks: int = 1):
        end()
        settings = (ray_cluster, f"verl.n_gpus_per_node={ranks}")
        engine = started(make_experiment(*overrides), model, *settings)
        entered = engine.__enter__()
        made.append(engine)
        return entered

    yield make
    end()


@pytest.fixture(scope="session")
def vl_batch(batch_dirs) -> Any:
    """The vision-language batch with all columns; not to be changed."""
    from vagen.rollout.batch import TrajectoryBatch

    return TrajectoryBatch.load(batch_dirs["tiny:vl"])


@pytest.fixture(scope="session")
def family_dirs(vl_dir, tmp_path_factory) -> dict[str, Path]:
    """A model directory per family, all with the same tokenizer and image processor."""
    folder = tmp_path_factory.mktemp("families") / "qwen2_5_vl"
    return {"qwen3_vl": vl_dir, "qwen2_5_vl": write_qwen25vl(folder, like=vl_dir)}


@pytest.fixture(scope="session")
def two_ranks(make_experiment, vl_dir, vl_batch, tmp_path_factory) -> Story:
    """Two ranks on two nodes; while they learn a third time, one of them is killed."""
    from vagen.engines.verl.errors import EngineLost

    folder = tmp_path_factory.mktemp("two_ranks") / "checkpoint"
    with nodes(2) as settings, started(make_experiment(*OVERRIDES), vl_dir, *settings) as engine:
        story = tell(engine, vl_batch, folder)
        victim = engine.processes.places["rank 1"]
        # Stopped, it cannot take part in what the other rank begins with it.
        os.kill(victim.pid, signal.SIGSTOP)
        threading.Timer(3, os.kill, (victim.pid, signal.SIGKILL)).start()
        errors = []
        for _ in range(2):
            with pytest.raises(EngineLost) as error:
                go_on(engine, vl_batch)
            errors.append(str(error.value))
        story.found = {"victim": victim, "errors": errors}
    return story


@pytest.fixture(scope="session")
def one_rank(
    two_ranks, make_experiment, vl_dir, vl_batch, warm_runs, ray_cluster, tmp_path_factory
) -> Story:
    """One rank; then it goes back to its checkpoint, plays, and takes up that of two ranks."""
    from vagen.rollout.episodes import training_specs
    from vagen.stages.build import load_levels

    folder = tmp_path_factory.mktemp("one_rank") / "checkpoint"
    run = warm_runs["tiny:vl"]
    specs = training_specs(run.experiment, load_levels(run), 0)[:2]

    def play(engine: Any) -> list[tuple[Any, Any]]:
        """Log-probabilities of the same actions, the servers' and the trainer's."""
        sampling = run.experiment.actor_rollout_ref.rollout
        played, images = engine.play(specs, sampling=sampling, split="train")
        rows = [row for trajectory in played for row in trajectory.rows]
        return [
            (row.rollout_logprobs[row.loss_mask], found[row.loss_mask])
            for row, found in zip(rows, engine.logprobs(rows, images), strict=True)
        ]

    with started(make_experiment(*OVERRIDES), vl_dir, ray_cluster) as engine:
        story = tell(engine, vl_batch, folder)
        played = [play(engine)]
        engine.load(folder, version="checkpoint")
        played.append(play(engine))
        story.found = {
            "played": played,
            "logprobs": engine.logprobs(rows_of(vl_batch), vl_batch.images),
            "state": (engine.updates, engine.version),
            "again": go_on(engine, vl_batch),
            "from_two_ranks": go_on(engine, vl_batch, two_ranks.checkpoint),
        }
    return story


@pytest.fixture
def run_of(make_experiment, take_over, family_dirs, ray_cluster, tmp_path) -> Callable[..., Any]:
    """A run on verl with levels and initial model: `run_of("preset=...", infra=["verl...."])`."""
    from vagen.experiment.load import load_infra
    from vagen.run.run import Run
    from vagen.stages.build import build
    from vagen.stages.warm_start import warm_start

    def make(*overrides: str, infra: Sequence[str] = ()) -> Run:
        laid = [f"output_dir={tmp_path}", "engine=verl", "device=cpu", "threads=1"]
        laid += ["verl.rollout=torch", "verl.agent_workers=1", ray_cluster, *infra]
        if "warm_start.steps=0" in overrides:
            model = f"actor_rollout_ref.model.path={family_dirs['qwen2_5_vl']}"
            run = Run.create(make_experiment(*overrides, model), load_infra(None, laid))
            build(run)
            warm_start(run)
            return run
        return take_over(Run.create(make_experiment(*overrides), load_infra(None, laid)))

    return make
