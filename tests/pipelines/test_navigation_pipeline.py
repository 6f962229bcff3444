"""navigation-tiny with small numbers: one iteration of the whole pipeline."""

from pathlib import Path

import pytest

from vagen.cli.main import main
from vagen.rollout.batch import TrajectoryBatch
from vagen.stages.run import Run

SMALL = (
    "envs.rooms.train_size=12",
    "envs.rooms.val_size=2",
    "envs.rooms.test_size=2",
    "envs.rooms.env_config.picture_size=64",
    "data.train_batch_size=6",
    "rollout_manager.max_turns=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=6",
    "critic.ppo_mini_batch_size=6",
    "warm_start.steps=12",
    "warm_start.batch_size=6",
    "trainer.total_training_steps=1",
    "infra.threads=1",
)


@pytest.mark.slow
def test_navigation_tiny_completes_an_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "navigation-tiny", "--name", "one", *SMALL]) == 0
    run = Run.open(tmp_path / "outputs" / "one")
    batch = TrajectoryBatch.load(run.step(0, "judge"), kind="judge")
    turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
    assert len(batch.trajectories) == 6
    assert all(turn.state["env_name"] == "Navigation" for turn in turns)
    judged = [turn for turn in turns if turn.parsed["format_correct"]]
    assert all(turn.verdict is not None for turn in judged)
    assert (run.path / "evaluations" / "final" / "report.html").is_file()
