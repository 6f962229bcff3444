"""Whole iterations with filter, normalisation and importance weights, and with greedy baselines."""

import numpy as np
import pytest
import torch

from vagen.models.loading import load_model
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.episodes import greedy_specs, training_specs
from vagen.rollout.play import play
from vagen.rollout.types import Status
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import load_levels
from vagen.stages.finalize import finalize
from vagen.stages.judge import judge
from vagen.stages.rollout import episode_metrics, rollout
from vagen.stages.update import update
from vagen.stages.weights import engine_at

STARPO_S = (
    "data.train_batch_size=4",
    "rollout_manager.n_trajectory=3",
    "algorithm.rollout_filter.strategy=top_k",
    "algorithm.rollout_filter.value=0.5",
    "algorithm.rollout_filter.loss_scaling=sqrt",
    "algorithm.reward_normalization.method=asym_clip",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
)


def play_iteration(run: Run, iteration: int) -> dict[str, float]:
    for stage in (rollout, judge, advantage, update):
        stage(run, iteration)
    return run.iteration_metrics()[iteration]


@pytest.mark.slow
def test_an_iteration_learns_from_the_kept_trajectories_only(make_started_run, tmp_path):
    run = make_started_run(*STARPO_S, model="tiny:text")
    metrics = play_iteration(run, 0)
    batch = TrajectoryBatch.load(run.step(0, "advantage"))
    kept = [t for t in batch.trajectories if t.kept]
    assert 0 < len(kept) <= 6 < len(batch.trajectories)
    assert len(kept) + sum(t.kept is False for t in batch.trajectories) == 12
    for trajectory in batch.trajectories:
        assert bool(trajectory.rows[0].columns) == trajectory.kept
    scores = [float(t.rows[0].columns["rewards"].sum()) for t in kept]
    assert min(scores) >= -1.1 and max(scores) <= 3.1, "normalised, less a little KL"
    assert metrics["rollout/filter_kept"] == len(kept) / 12
    assert metrics["rollout/reward_std"] > 0 and metrics["update/skipped"] == 0
    assert metrics["actor/tis_mean"] == pytest.approx(1, abs=1e-3)
    assert metrics["actor/grad_norm"] > 0

    for trajectory in batch.trajectories:
        if not trajectory.kept:
            trajectory.rows[0].input_ids[:] = trajectory.rows[0].input_ids[::-1]
    changed = batch.save(tmp_path / "changed")
    again = update(run, 0, source=changed, out=tmp_path / "again")["metrics"]
    for name, value in again.items():
        assert metrics[name] == value, name


@pytest.mark.slow
def test_an_iteration_that_keeps_nothing_is_skipped_and_counted(make_started_run):
    """Almost greedy, the trajectories of a level are alike; the run goes on to its end."""
    run = make_started_run(
        *STARPO_S,
        "actor_rollout_ref.rollout.temperature=0.0001",
        "trainer.total_training_steps=2",
        model="tiny:text",
    )
    for iteration in range(2):
        metrics = play_iteration(run, iteration)
        assert metrics["rollout/filter_kept"] == 0.0
        assert metrics["rollout/zero_std_groups"] == 1.0
        assert metrics["update/skipped"] == 1.0
        assert "actor/loss" not in metrics
    before = load_model(run.warm_start / "policy").model.state_dict()
    after = load_model(run.checkpoint(1) / "policy").model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert engine_at(run, "iteration-0001").updates == 2
    finalize(run)


@pytest.mark.slow
def test_remax_subtracts_the_score_of_a_greedy_episode(make_started_run):
    run = make_started_run(
        "algorithm.adv_estimator=remax",
        "algorithm.kl_ctrl.kl_coef=0",
        "data.train_batch_size=4",
        "rollout_manager.n_trajectory=2",
        model="tiny:text",
    )
    metrics = play_iteration(run, 0)
    config, engine = run.experiment, engine_at(run, "warm_start")
    specs = training_specs(config, load_levels(run), 0)
    greedy, _ = play(
        config,
        greedy_specs(specs),
        policy=engine.policy(slots=4),
        processor=engine.processor,
        sampling=config.actor_rollout_ref.rollout.model_copy(update={"temperature": 0.0}),
        split="train",
    )
    scores = {t.group_id: t.score for t in greedy}
    assert len(scores) == 4 and len(set(scores.values())) > 1, "the levels differ"
    batch = TrajectoryBatch.load(run.step(0, "rollout"))
    assert [t.trajectory_id for t in batch.trajectories] == [s.trajectory_id for s in specs]
    assert all(t.baseline_score == scores[t.group_id] for t in batch.trajectories)
    assert metrics["rollout/baseline_score"] == np.mean(list(scores.values()))
    played = episode_metrics(batch.trajectories, "train")
    assert played.items() <= metrics.items(), "greedy episodes are in no training metric"
    shown = {d for t in batch.trajectories for row in t.rows for d in row.images}
    assert set(batch.images) == shown
    for trajectory in TrajectoryBatch.load(run.step(0, "advantage")).trajectories:
        assert trajectory.status is not Status.ENV_ERROR
        row = trajectory.rows[0]
        first = np.flatnonzero(row.loss_mask)[0]
        expected = trajectory.score - scores[trajectory.group_id]
        assert row.columns["advantages"][first] == pytest.approx(expected, abs=1e-5)


def test_without_remax_there_are_no_baselines(batch_dirs):
    batch = TrajectoryBatch.load(batch_dirs["tiny:text"].parent / "rollout")
    assert {t.baseline_score for t in batch.trajectories} == {None}
    assert "rollout/baseline_score" not in batch.metrics
