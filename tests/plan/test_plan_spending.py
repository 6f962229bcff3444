"""Time and disk of a run, against what a real one takes."""

import time

import pytest

from vagen.plan.shape import read_shape
from vagen.plan.sizes import measure
from vagen.plan.spending import disk, iteration_seconds
from vagen.train import iterate


def test_what_is_kept_and_played_more_often_counts(make_experiment, vl_dir):
    def plan(*overrides: str):
        experiment = make_experiment("trainer.total_training_steps=100", *overrides)
        shape, sizes = read_shape(str(vl_dir), experiment), measure(experiment, str(vl_dir))
        return disk(experiment, shape, sizes)

    every, few = plan(), plan("trainer.keep_iterations=5")
    assert (every.kept, few.kept) == (100, 5)
    assert every.total - few.total == 95 * every.iteration
    assert plan("trainer.test_freq=10").evaluations > every.evaluations


@pytest.mark.slow
def test_an_iteration_takes_about_the_disk_and_the_time_that_the_plan_says(make_run, take_over):
    run = take_over(make_run("trainer.total_training_steps=2", "data.train_batch_size=24"))
    policy = str(run.warm_start / "policy")
    shape, sizes = read_shape(policy, run.experiment), measure(run.experiment, policy)
    with run.at_work():
        iterate(run, 0, 1)
        begun = time.monotonic()
        iterate(run, 1, 2)
        taken = time.monotonic() - begun
    seconds = iteration_seconds(run.experiment, run.infra, shape, sizes)
    assert seconds / 10 < taken < seconds * 10
    planned = disk(run.experiment, shape, sizes)
    files = (run.path / "iterations" / "0001").rglob("*.parquet")
    batches = sum({path.stat().st_ino: path.stat().st_size for path in files}.values())
    assert planned.iteration / 3 < batches < planned.iteration * 3
    saved = [path.stat().st_size for path in run.checkpoint(1).rglob("*") if path.is_file()]
    assert sum(saved) == pytest.approx(planned.checkpoints / 2, rel=0.2)
