"""A training that ends early: later steps of the pipeline pass on what there is."""

import json
import shutil

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.engines.local.engine import LocalEngine
from vagen.progress import configure, read_events
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.folder import Stop, read_results
from vagen.run.layout import KEEP_CHECKPOINTS, validated_iteration
from vagen.stages.build import build
from vagen.stages.evaluate import evaluate
from vagen.stages.execute import execute, stage_named
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.steps import ITERATION
from vagen.storage import read_manifest
from vagen.train import iterate, train

SUCCESS_RULE = (
    "trainer.total_training_steps=5",
    "trainer.test_freq=1",
    "trainer.early_stop.min_val_success=1.0",
    "trainer.early_stop.val_success_patience=2",
)
REASON = "validation success was below 1 2 times in a row"


def test_names_of_validations():
    names = ("iteration-0010", "iteration-0000", "final", "warm_start", "iteration-x")
    assert [validated_iteration(name) for name in names] == [9, None, None, None, None]


@pytest.mark.slow
def test_after_the_stop_every_step_passes_on_the_last_update(make_started_run):
    run = make_started_run(*SUCCESS_RULE)
    configure(run.events)
    assert run.last_iteration == 4
    iterate(run, 0, 2)
    assert run.stop is None
    iterate(run, 2, 5)
    assert run.stop == Stop(2, REASON)
    assert run.last_iteration == 2
    last = execute(run, update, iteration=2)
    before = sorted(run.path.rglob("*"))
    for name in ITERATION:
        passed = execute(run, stage_named(name), iteration=3)
        assert (passed["uri"], passed["sha256"]) == (last["uri"], last["sha256"])
    passed = execute(run, evaluate, name="iteration-0004", split="val")
    assert passed["uri"] == last["uri"]
    assert sorted(run.path.rglob("*")) == before, "nothing new is written"


def test_the_variance_of_scores_is_that_of_a_level_s_trajectories(make_started_run):
    run = make_started_run("rollout_manager.n_trajectory=2", "data.train_batch_size=3")
    configure(run.events)
    metrics = execute(run, rollout, iteration=0)["metrics"]
    batch = TrajectoryBatch.load(run.step(0, "rollout"))
    scores = [trajectory.score for trajectory in batch.trajectories]
    variances = [((a - b) / 2) ** 2 for a, b in zip(scores[::2], scores[1::2], strict=True)]
    assert metrics["rollout/reward_variance"] == pytest.approx(sum(variances) / 3)


@pytest.mark.slow
def test_a_training_that_stops_early_ends_well_and_resumes_to_the_same(make_started_run):
    run = make_started_run(*SUCCESS_RULE)
    train(run)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["stopped_early"] == REASON and summary["iterations"] == 3
    final = json.loads((run.evaluation("final") / "results.json").read_text())
    assert final["policy_version"] == "iteration-0002"
    registration = json.loads((run.registration / "registration.json").read_text())
    assert registration["policy"] == str(run.checkpoint(2) / "policy")
    assert sorted(path.name for path in (run.path / "iterations").iterdir()) == [
        "0000",
        "0001",
        "0002",
    ]
    assert sorted(path.name for path in (run.path / "evaluations").iterdir()) == [
        "final",
        "iteration-0001",
        "iteration-0002",
        "iteration-0003",
        "warm_start",
    ]

    digest = read_manifest(run.registration).digest
    finished = len(read_events(run.events))
    train(run)
    again = json.loads((run.path / "summary.json").read_text())
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in summary.items() if k != "seconds"
    }
    assert read_manifest(run.registration).digest == digest
    later = [e for e in read_events(run.events)[finished:] if e["event"] == "stage_finished"]
    assert not [e for e in later if e["iteration"] is not None], "no iteration is run again"


@pytest.mark.slow
def test_the_best_validated_policy_is_kept_tested_and_registered(make_run, warm_runs, monkeypatch):
    """Learning rates that get out of hand spoil the policy: the best one is not among the last."""
    original = LocalEngine.update

    def update(engine, *arguments, **options):
        engine.lr_scale = 1e-3 if engine.updates == 0 else 1000.0
        return original(engine, *arguments, **options)

    monkeypatch.setattr(LocalEngine, "update", update)
    run = make_run(
        "trainer.total_training_steps=5",
        "trainer.test_freq=1",
        "trainer.select=best_validation",
        "envs.game.env_config.max_distance=1",  # what the warm start solves on any processor
        "envs.game.val_size=24",
    )
    build(run)
    shutil.copytree(warm_runs["tiny:vl"].warm_start, run.warm_start)
    run.infra = run.infra.model_copy(update={"save_freq": 4})
    train(run)
    found = run.validations()
    assert list(found) == [0, 1, 2, 3, 4], "the last one as well"
    best = max(found, key=lambda number: (found[number], number))
    assert best < 5 - KEEP_CHECKPOINTS, found
    assert run.final_iteration == best
    assert read_results(run.evaluation("final"))["policy_version"] == f"iteration-{best:04d}"
    registration = json.loads((run.registration / "registration.json").read_text())
    assert registration["policy"] == str(run.checkpoint(best) / "policy")
    assert run.newest_policy() == registration["policy"]
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["final"]["iteration"], summary["iterations"]) == (best + 1, 5)


def test_the_best_of_no_validation_is_refused(capsys):
    words = ["plan", "frozenlake-tiny", "trainer.select=best_validation", "trainer.test_freq=0"]
    assert main(words) == USER_ERROR
    assert "set trainer.test_freq" in capsys.readouterr().err
