"""Every preset trains the tiny FrozenLake run."""

import math
from pathlib import Path

import pytest
import torch
import yaml

from vagen.config import PRESETS
from vagen.experiment.load import load_experiment, load_infra
from vagen.models.loading import load_model
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import build
from vagen.stages.judge import judge
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.stages.warm_start import warm_start
from vagen.steps import version_after

TWICE = ("vagen_full", "grpo_mask")
"""With a second iteration, which starts from weights that have moved."""
SMALL = [
    "data.train_batch_size=4",
    "data.max_response_length=40",
    "algorithm.overlong.buffer_len=39",  # something to learn from where nothing is won
    "rollout_manager.max_turns=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "critic.ppo_mini_batch_size=2",
    "envs.frozenlake.train_size=16",
    "envs.frozenlake.val_size=4",
    "envs.frozenlake.test_size=4",
]


def small_run(folder: Path, *overrides: str) -> Run:
    """frozenlake-tiny with small numbers; the preset alone says what the algorithm is."""
    shipped = Path(__file__).parents[2] / "experiments" / "frozenlake-tiny.yaml"
    tree = yaml.safe_load(shipped.read_text())
    del tree["preset"], tree["envs"]["frozenlake"]["env_config"]["prompt_format"]
    (folder / "lake.yaml").write_text(yaml.safe_dump(tree))
    infra = load_infra(None, [f"output_dir={folder}", "device=cpu", "threads=1"])
    return Run.create(load_experiment(folder / "lake.yaml", [*SMALL, *overrides]), infra)


@pytest.fixture(scope="module")
def policy(make_outputs) -> Path:
    """A policy that knows the words and a little of the format."""
    run = small_run(make_outputs(), "preset=vagen_full", "warm_start.steps=8")
    build(run)
    warm_start(run)
    return run.warm_start / "policy"


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains(preset: str, policy: Path, make_outputs) -> None:
    """Few scores differ after so short a warm start: the filter keeps equal ones here."""
    group = 2 if PRESETS[preset].values["rollout_manager"].get("n_trajectory", 1) > 1 else 1
    run = small_run(
        make_outputs(),
        f"preset={preset}",
        f"rollout_manager.n_trajectory={group}",
        "warm_start.steps=0",
        "algorithm.rollout_filter.include_zero=true",
        f"actor_rollout_ref.model.path={policy}",
    )
    build(run)
    warm_start(run)
    iterations = 1 + (preset in TWICE)
    for iteration in range(iterations):
        for stage in (rollout, judge, advantage, update):
            metrics = stage(run, iteration)["metrics"]
            assert all(map(math.isfinite, metrics.values())), (stage.__name__, metrics)
        assert metrics["actor/skipped_steps"] == 0
    assert run.engine is not None and run.engine.version == version_after(iterations - 1)
    before = load_model(policy).model.state_dict()
    after = run.engine.actor.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    has_critic = "critic/vf_clipfrac" in metrics
    assert has_critic == (run.experiment.algorithm.adv_estimator != "grpo")
