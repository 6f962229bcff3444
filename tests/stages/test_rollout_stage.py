"""The rollout step: what it writes, what it refuses, what it measures."""

import copy
import shutil
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from vagen.rollout.batch import BatchError, TrajectoryBatch
from vagen.rollout.types import Status, TurnRewards
from vagen.stages.rollout import check_images, episode_metrics, rollout, set_baselines


def test_played_again_it_is_the_same(warm_runs, batch_dirs, tmp_path):
    run = warm_runs["tiny:vl"]
    first = batch_dirs["tiny:vl"].parent / "rollout"
    again = replace(run, path=tmp_path)
    for name in ("levels", "warm_start"):
        shutil.copytree(run.path / name, tmp_path / name)
    rollout(again, 0)
    for name in ("trajectories", "turns", "tokens", "images"):
        file = f"{name}.parquet"
        assert (first / file).read_bytes() == (again.step(0, "rollout") / file).read_bytes(), name


@pytest.mark.slow
def test_groups_that_are_all_alike_are_replaced(make_started_run):
    """By groups of levels that the batch has not had; what is in it is as it would be without."""
    words = ("rollout_manager.n_trajectory=2", "data.train_batch_size=6")
    plain, refilled, tried = (
        make_started_run(*words, f"algorithm.filter_groups.max_num_gen_batches={most}")
        for most in (1, 8, 2)
    )
    for run in (plain, refilled, tried):
        rollout(run, 0)
    before, after, few = (
        TrajectoryBatch.load(run.step(0, "rollout")) for run in (plain, refilled, tried)
    )
    scores = defaultdict(list)
    for trajectory in after.trajectories:
        scores[trajectory.group_id].append(trajectory.score)
    assert len(scores) == 6 and all(a != b for a, b in scores.values())
    first = {t.trajectory_id: t for t in before.trajectories}
    shared = [t for t in after.trajectories if t.trajectory_id in first]
    assert 0 < len(shared) < 12
    for trajectory in shared:
        same = first[trajectory.trajectory_id].rows[0].input_ids
        np.testing.assert_array_equal(trajectory.rows[0].input_ids, same)
    played = after.metrics["rollout/groups_played"]
    refills = sum(t.group_id > "0000-0005" for t in after.trajectories) / 2
    assert played >= 6 + refills > 6, "a refill may be alike, too"
    assert "rollout/groups_played" not in before.metrics
    # Two rounds are too few here: the batch is whole all the same.
    assert len(few.trajectories) == 12 and few.metrics["rollout/groups_played"] <= played
    assert after.metrics["train/score"] != np.mean([t.score for t in after.trajectories])


def test_text_models_take_the_same_way(batch_dirs):
    batch = TrajectoryBatch.load(batch_dirs["tiny:text"].parent / "rollout")
    assert not batch.images and all(not t.rows[0].images for t in batch.trajectories)
    assert batch.metrics["train/success"] >= 0
    assert {turn.observation_text[:1] for t in batch.trajectories for turn in t.turns} != {""}


def drop(batch: TrajectoryBatch, place: int) -> None:
    """Takes a token out of the second trajectory's row."""
    row = batch.trajectories[1].rows[0]
    for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
        setattr(row, name, np.delete(getattr(row, name), place))
    row.columns = {name: np.delete(column, place) for name, column in row.columns.items()}


def test_image_blocks_that_do_not_fit_are_refused_and_kept(batch, vl_model, tmp_path):
    processor = vl_model.processor
    check_images(batch, processor, tmp_path / "rollout")
    assert not list(tmp_path.iterdir())
    whole = copy.deepcopy(batch)
    row = batch.trajectories[1].rows[0]
    drop(batch, int(np.flatnonzero(row.input_ids == processor.image_token_id)[0]))
    name = batch.trajectories[1].trajectory_id
    with pytest.raises(BatchError, match=rf"{name} has image blocks of \[15, 16"):
        check_images(batch, processor, tmp_path / "rollout")
    kept = TrajectoryBatch.load(tmp_path / "rollout-refused", kind="advantage")
    assert [t.trajectory_id for t in kept.trajectories] == [name]
    np.testing.assert_array_equal(kept.trajectories[0].rows[0].input_ids, row.input_ids)

    whole.trajectories[1].rows[0].images.pop()
    with pytest.raises(BatchError, match="image blocks"):
        check_images(whole, processor, tmp_path / "rollout")


def test_failed_episodes_are_counted_and_left_out(batch):
    before = episode_metrics(batch.trajectories, "train")
    failed = copy.deepcopy(batch.trajectories[0])
    failed.status, failed.rows = Status.ENV_ERROR, []
    after = episode_metrics([*batch.trajectories, failed], "train")
    assert before["train/env_error"] == 0 and after["train/env_error"] == 1
    assert {k: v for k, v in after.items() if k != "train/env_error"} == {
        k: v for k, v in before.items() if k != "train/env_error"
    }
    assert episode_metrics([failed], "train") == {"train/env_error": 1.0}


def test_metrics_are_means(batch):
    metrics = episode_metrics(batch.trajectories, "x")
    turns = [turn for t in batch.trajectories for turn in t.turns]
    assert metrics["x/success"] == np.mean([t.success for t in batch.trajectories])
    assert metrics["x/turns"] == len(turns) / len(batch.trajectories)
    assert metrics["x/length_cut"] == np.mean([turn.length_cut for turn in turns])
    sampled = sum(int(t.rows[0].loss_mask.sum()) for t in batch.trajectories)
    assert metrics["x/response_length"] == sampled / len(turns)


def test_a_mixture_is_measured_per_environment(batch):
    half = batch.trajectories[: len(batch.trajectories) // 2]
    for trajectory in half:
        trajectory.config_id = "other"
    metrics = episode_metrics(batch.trajectories, "train")
    assert metrics["train/success/other"] == np.mean([t.success for t in half])
    assert "train/success/game" in metrics


def test_a_greedy_episode_that_failed_is_no_baseline(batch, make_experiment):
    greedy = copy.deepcopy(batch.trajectories[:3])
    greedy[0].status = Status.ENV_ERROR
    for trajectory, earned in zip(greedy, (5.0, 2.0, 3.0), strict=True):
        trajectory.turns = trajectory.turns[:1]
        trajectory.turns[0].rewards = TurnRewards(env=earned, format=0.0)
    metrics = set_baselines(make_experiment(), batch.trajectories[:3], greedy)
    assert [t.baseline_score for t in batch.trajectories[:3]] == [None, 2.0, 3.0]
    assert metrics == {"rollout/baseline_score": 2.5, "rollout/baseline_missing": 1.0}
