"""Time and disk of a run: what the plan says of them, and the disk that a real one takes."""

import pytest

from vagen.config import InfraConfig
from vagen.plan.memory import checkpoints, disk, iteration_seconds
from vagen.plan.shape import read_shape
from vagen.plan.sizes import measure
from vagen.train import iterate


def test_what_is_kept_and_played_more_often_counts(make_experiment, vl_dir):
    def plan(*overrides: str):
        experiment = make_experiment("trainer.total_training_steps=100", *overrides)
        shape, sizes = read_shape(str(vl_dir), experiment), measure(experiment, str(vl_dir))
        return disk(experiment, shape, sizes)

    every, few = plan(), plan("trainer.keep_iterations=5")
    assert few["batches of 5 iterations"] == every["batches of 100 iterations"] // 20
    assert plan("trainer.test_freq=10")["evaluations"] > every["evaluations"]


def test_the_time_follows_the_work_and_the_cores(make_experiment, vl_dir, monkeypatch):
    monkeypatch.setattr("vagen.plan.memory.operations_per_second", lambda: 1e9)

    def seconds(threads: int, *overrides: str) -> float:
        experiment = make_experiment(*overrides)
        shape, sizes = read_shape(str(vl_dir), experiment), measure(experiment, str(vl_dir))
        return iteration_seconds(experiment, InfraConfig(threads=threads), shape, sizes)

    one = seconds(1, "data.train_batch_size=12")
    assert seconds(2, "data.train_batch_size=12") == pytest.approx(one / 2)
    assert seconds(1, "data.train_batch_size=24") == pytest.approx(one * 2)
    assert seconds(1, "data.train_batch_size=12", "critic.ppo_epochs=2") > one


@pytest.mark.slow
def test_an_iteration_takes_about_the_disk_that_the_plan_says(make_run, take_over):
    small = "actor_rollout_ref.actor.optim.lr=1e-6"  # answers stay as long as planned
    run = take_over(make_run("trainer.total_training_steps=2", "data.train_batch_size=24", small))
    policy = str(run.warm_start / "policy")
    shape, sizes = read_shape(policy, run.experiment), measure(run.experiment, policy)
    with run.session():
        iterate(run, 0, 1)
        iterate(run, 1, 2)
    planned = disk(run.experiment, shape, sizes)["batches of 2 iterations"] / 2
    files = (run.path / "iterations" / "0001").rglob("*.parquet")
    batches = sum({path.stat().st_ino: path.stat().st_size for path in files}.values())
    assert planned / 3 < batches < planned * 3
    saved = [path.stat().st_size for path in run.checkpoint(1).rglob("*") if path.is_file()]
    assert sum(saved) == pytest.approx(checkpoints(run.experiment, shape)[0], rel=0.2)
