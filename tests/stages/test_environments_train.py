"""The tiny experiment of each environment goes through every stage."""

import json
import math
from pathlib import Path

import pytest

from vagen.experiment.load import load_experiment, load_infra
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Status
from vagen.run.layout import FINAL
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate
from vagen.stages.judge import judge
from vagen.stages.register import register
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.stages.warm_start import warm_start

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SMALL = (
    "warm_start.steps=6",
    "warm_start.batch_size=4",
    "data.max_response_length=64",
    "data.train_batch_size=4",
    "rollout_manager.max_turns=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "critic.ppo_mini_batch_size=4",
    "trainer.total_training_steps=1",
)
SIZES = ("train_size=40", "val_size=2", "test_size=3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env_id", "options"),
    [
        ("svg", "svg", SIZES),
        ("blackjack", "blackjack", SIZES),
        ("household", "household", SIZES),
        ("navigation", "rooms", (*SIZES, "env_config.picture_size=64")),
        ("primitive-skill", "align", (*SIZES, "env_config.image_size=96")),
        ("web", "web", SIZES),
    ],
)
def test_a_tiny_experiment_completes_an_iteration(name, env_id, options, make_outputs):
    overrides = [*SMALL, *(f"envs.{env_id}.{option}" for option in options)]
    infra = load_infra(None, [f"output_dir={make_outputs()}", "device=cpu", "threads=1"])
    run = Run.create(load_experiment(EXPERIMENTS / f"{name}-tiny.yaml", overrides), infra)
    build(run)
    assert math.isfinite(warm_start(run)["metrics"]["warm_start/loss"])
    for stage in (rollout, judge, advantage, update):
        metrics = stage(run, 0)["metrics"]
        assert all(map(math.isfinite, metrics.values())), (stage.__name__, metrics)
    batch = TrajectoryBatch.load(run.step(0, "advantage"))
    assert len(batch.trajectories) == 4
    assert all(trajectory.status is not Status.ENV_ERROR for trajectory in batch.trajectories)
    assert evaluate(run, FINAL, "test")["metrics"]
    register(run)
    registration = json.loads((run.registration / "registration.json").read_text())
    assert registration["model_uri"]
