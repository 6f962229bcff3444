"""Batches of old iterations are deleted, and the training goes on all the same."""

import shutil
from pathlib import Path

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.run.folder import prunable
from vagen.run.run import Run
from vagen.storage import read_manifest
from vagen.train import iterate


def has_batches(run: Run) -> list[int]:
    return sorted(int(path.parent.name) for path in run.path.glob("iterations/*/rollout"))


def weights(run: Run) -> str:
    return (
        read_manifest(run.checkpoint(run.last_iteration)).files["policy/model.safetensors"].sha256
    )


def go_on(run: Run, stop: int) -> None:
    with run.session():
        iterate(run, 0, stop)


def test_what_a_checkpoint_may_need_stays():
    assert prunable(9, [6, 8], keep=2) == range(7)
    assert prunable(9, [2, 8], keep=2) == range(3)
    assert prunable(9, [8], keep=20) == range(0)
    assert prunable(3, [], keep=1) == range(0)
    assert prunable(9, [2, 6, 8], keep=2, best=2) == range(7)
    assert prunable(9, [2], keep=2, best=2) == range(3)


@pytest.mark.slow
def test_a_training_that_prunes_ends_as_any_other(make_started_run, capsys):
    every, pruned, by_hand = (
        make_started_run("trainer.total_training_steps=3", *words)
        for words in ((), ("trainer.keep_iterations=1",), ())
    )
    go_on(every, 3)
    assert has_batches(every) == [0, 1, 2]

    go_on(pruned, 2)
    go_on(Run.open(pruned.path), 3)
    assert has_batches(pruned) == [2]
    assert weights(pruned) == weights(every)
    assert len(pruned.iteration_metrics()) == 3

    go_on(by_hand, 2)
    assert main(["store", "prune", str(by_hand.path), "--keep", "1", "--dry-run"]) == 0
    assert has_batches(by_hand) == [0, 1]
    assert main(["store", "prune", str(by_hand.path), "--keep", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].replace("would be ", "") == said[1]
    assert said[1].startswith("episodes of 1 iterations removed")
    go_on(Run.open(by_hand.path), 3)
    assert has_batches(by_hand) == [1, 2] and weights(by_hand) == weights(every)
    assert main(["store", "prune", str(by_hand.path), "--keep", "0"]) == USER_ERROR


@pytest.mark.slow
def test_a_run_in_a_store_is_pruned_there(make_run, take_over, tmp_path: Path, capsys):
    store = (tmp_path / "store").as_uri()
    words = ("trainer.total_training_steps=3", "trainer.keep_iterations=2")
    run = make_run(*words, model="tiny:text")
    stored = take_over(
        Run.create(run.experiment, run.infra.model_copy(update={"store": store}), name="stored"),
        "tiny:text",
    )
    go_on(stored, 3)
    there = tmp_path / "store" / "stored" / "iterations"
    assert sorted(path.parent.name for path in there.glob("*/rollout")) == ["0001", "0002"]
    assert main(["store", "prune", f"{store}/stored", "--keep", "1"]) == 0
    assert "episodes of 1 iterations removed" in capsys.readouterr().out
    assert [path.parent.name for path in there.glob("*/rollout")] == ["0002"]
    shutil.rmtree(stored.path)
    again = Run.open(f"{store}/stored")
    go_on(again, 3)
    assert len(again.iteration_metrics()) == 3
