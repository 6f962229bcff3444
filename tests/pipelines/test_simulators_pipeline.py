"""The tiny experiments of simulators with small numbers: one iteration of the whole pipeline."""

from pathlib import Path

import numpy as np
import pytest

from vagen.cli.main import main
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.run import Run

SMALL = (
    "data.train_batch_size=6",
    "rollout_manager.max_turns=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=6",
    "critic.ppo_mini_batch_size=6",
    "warm_start.batch_size=6",
    "warm_start.steps=2",
    "trainer.total_training_steps=1",
    "infra.threads=1",
)
NAVIGATION = (
    "envs.rooms.train_size=6",
    "envs.rooms.val_size=2",
    "envs.rooms.test_size=2",
    "envs.rooms.env_config.picture_size=64",
)
PRIMITIVE_SKILL = (
    "envs.align.train_size=6",
    "envs.align.val_size=2",
    "envs.align.test_size=2",
    "envs.align.env_config.image_size=96",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "words", "told"),
    [
        ("navigation-tiny", NAVIGATION, {"env_name": "Navigation"}),
        ("primitive-skill-tiny", PRIMITIVE_SKILL, {"task": "AlignTwoCube"}),
    ],
)
def test_a_tiny_experiment_completes_an_iteration(
    experiment: str,
    words: tuple[str, ...],
    told: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", experiment, "--name", "one", *SMALL, *words]) == 0
    run = Run.open(tmp_path / "outputs" / "one")
    batch = TrajectoryBatch.load(run.step(0, "judge"), kind="judge")
    turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
    assert len(batch.trajectories) == 6
    assert all(told.items() <= turn.state.items() for turn in turns)
    rewards = [turn.rewards.env for turn in turns]
    assert np.isfinite(rewards).all()
    assert (run.path / "evaluations" / "final" / "report.html").is_file()
