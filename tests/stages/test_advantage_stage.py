"""Advantage estimation from a batch, end to end."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from vagen.engines.local.losses import CRITIC_MASK
from vagen.rollout.types import Status, TokenRow, Trajectory
from vagen.stages.advantage import add_columns


class FixedEngine:
    """Log-probabilities and values that belong to sampled tokens, whatever stands between them.

    So all that changes with observations or padding must come from the step itself.
    """

    kl_coef = 0.05

    def logprobs(self, rows: list[TokenRow], images: Any, *, reference: bool = False):
        return [self._spread(row, -1.0 if reference else -0.5) for row in rows]

    def values(self, rows: list[TokenRow], images: Any):
        last = [float(len(self._owner(row)) + row.loss_mask.sum()) for row in rows]
        return [self._spread(row, 2.0, junk=50.0) for row in rows], np.asarray(last, np.float32)

    @staticmethod
    def _owner(row: TokenRow) -> str:
        return row.trajectory_id

    @staticmethod
    def _spread(row: TokenRow, scale: float, junk: float = 0.0) -> np.ndarray:
        seed = int(row.trajectory_id.replace("-", ""))
        rng = np.random.Generator(np.random.Philox(key=seed))
        out = np.full(len(row.input_ids), junk, np.float32)
        out += rng.normal() * junk
        count = int(row.loss_mask.sum())
        out[row.loss_mask] = scale * rng.uniform(0.1, 1, count).astype(np.float32)
        return out


MASKED = ("masked_gae", "bi_level_gae", "turn_wise_gae", "grpo")


def with_estimator(make_experiment, name: str, *overrides: str):
    extra = {
        "turn_wise_gae": ("critic.use_reward_mask=true",),
        "gae": ("rollout_manager.use_gae_mask=false",),
        "grpo": ("rollout_manager.n_trajectory=2",),
    }.get(name, ())
    return make_experiment(f"algorithm.adv_estimator={name}", *extra, *overrides)


def sampled(trajectories: list[Trajectory], column: str) -> list[np.ndarray]:
    return [
        row.columns[column][row.loss_mask] for trajectory in trajectories for row in trajectory.rows
    ]


def lengthen(row: TokenRow, place: int, count: int) -> None:
    """Puts observation tokens in front of a place."""
    turn = row.turn_index[place]
    row.input_ids = np.insert(row.input_ids, place, [9] * count).astype(np.int32)
    row.loss_mask = np.insert(row.loss_mask, place, [False] * count)
    row.turn_index = np.insert(row.turn_index, place, [turn] * count).astype(np.int16)
    row.rollout_logprobs = np.insert(row.rollout_logprobs, place, [0] * count).astype(np.float32)


@pytest.mark.parametrize("estimator", MASKED)
def test_observations_and_padding_change_no_advantage(make_experiment, batch, estimator):
    config = with_estimator(make_experiment, estimator)
    plain = copy.deepcopy(batch.trajectories)
    add_columns(config, FixedEngine(), plain, {})
    changed = copy.deepcopy(batch.trajectories)
    for i, trajectory in enumerate(changed):
        row = trajectory.rows[0]
        row.input_ids[~row.loss_mask] = 11
        later = np.flatnonzero(row.turn_index == 1)
        for place in (int(later[0]) if len(later) else 1, 1):
            lengthen(row, place, 3 + i)
    padding = copy.deepcopy(batch.trajectories[0])
    padding.trajectory_id, padding.status = "9", Status.ENV_ERROR
    padding.turns, padding.truncated = [], False
    padding.rows[0].trajectory_id = "9"
    padding.rows[0].loss_mask[:] = False
    lengthen(padding.rows[0], 5, 500)
    together = [padding, *changed]
    add_columns(config, FixedEngine(), together, {})
    for column in ("advantages", "returns", "rewards"):
        for a, b in zip(sampled(plain, column), sampled(changed, column), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert not padding.rows[0].columns["advantages"].any()
    assert any(np.abs(a).max() > 0.1 for a in sampled(plain, "advantages"))


def test_every_column_is_there_for_the_update(batch):
    for trajectory in batch.trajectories:
        row = trajectory.rows[0]
        assert set(row.columns) == {
            "old_logprobs",
            "ref_logprobs",
            "values",
            "rewards",
            "advantages",
            "returns",
            CRITIC_MASK,
        }
        for name, column in row.columns.items():
            assert column.dtype == np.float32 and column.shape == row.input_ids.shape, name
        for name in ("old_logprobs", "ref_logprobs", "rewards", "advantages", "returns"):
            assert not row.columns[name][~row.loss_mask].any(), name
        np.testing.assert_array_equal(row.columns[CRITIC_MASK] != 0, row.loss_mask)


def test_rewards_are_at_the_ends_of_turns(batch):
    """At the warm start the policy is its own reference: there is no KL yet."""
    for trajectory in batch.trajectories:
        row = trajectory.rows[0]
        expected = np.zeros(len(row.input_ids), np.float32)
        for turn in trajectory.turns:
            last = np.flatnonzero(row.loss_mask & (row.turn_index == turn.turn_index))[-1]
            expected[last] = turn.rewards["env"] + turn.rewards["format"]
        np.testing.assert_allclose(row.columns["rewards"], expected, atol=1e-6)


def test_without_turn_rewards_their_sum_is_at_the_very_end(make_experiment, batch):
    config = with_estimator(
        make_experiment, "masked_gae", "rollout_manager.use_multi_turn_reward=false"
    )
    engine = FixedEngine()
    engine.kl_coef = 0.0
    add_columns(config, engine, batch.trajectories, {})
    for trajectory, rewards in zip(
        batch.trajectories, sampled(batch.trajectories, "rewards"), strict=True
    ):
        assert rewards[-1] == pytest.approx(trajectory.score)
        assert not rewards[:-1].any()


def test_kl_is_taken_off_sampled_tokens(make_experiment, batch):
    config = with_estimator(make_experiment, "masked_gae")
    for trajectory in batch.trajectories:
        trajectory.rows[0].columns.clear()
    with_kl, without = copy.deepcopy(batch.trajectories), copy.deepcopy(batch.trajectories)
    engine, free = FixedEngine(), FixedEngine()
    free.kl_coef = 0.0
    add_columns(config, engine, with_kl, {})
    add_columns(config, free, without, {})
    for a, b in zip(with_kl, without, strict=True):
        row, other = a.rows[0], b.rows[0]
        kl = row.columns["old_logprobs"] - row.columns["ref_logprobs"]
        expected = other.columns["rewards"] - 0.05 * kl * row.loss_mask
        np.testing.assert_allclose(row.columns["rewards"], expected, atol=1e-6)
        assert "ref_logprobs" not in other.columns


def test_judge_rewards_count_and_missing_ones_do_not(make_experiment, batch):
    config = with_estimator(make_experiment, "masked_gae")
    engine = FixedEngine()
    engine.kl_coef = 0.0
    batch.trajectories[0].turns[0].rewards["judge_observation"] = 0.5
    assert batch.trajectories[1].turns[0].rewards["judge_observation"] is None
    before = [float(r.sum()) for r in sampled(batch.trajectories, "rewards")]
    add_columns(config, engine, batch.trajectories, {})
    after = [float(r.sum()) for r in sampled(batch.trajectories, "rewards")]
    assert after[0] == pytest.approx(before[0] + 0.5)
    assert after[1:] == pytest.approx(before[1:])


@pytest.fixture
def valued_engine(make_engine):
    """A real engine whose critic says something."""
    engine = make_engine()
    torch.nn.init.normal_(engine.critic.head.weight, generator=torch.Generator().manual_seed(1))
    return engine


def test_truncated_bootstraps_and_terminated_does_not(make_experiment, batch, valued_engine):
    """With gamma and lambda 1 the return of the last token is its reward and what follows."""
    config = with_estimator(make_experiment, "masked_gae")
    add_columns(config, valued_engine, batch.trajectories, batch.images)
    ends = {t.terminated for t in batch.trajectories}
    assert ends == {True, False}, "the batch has both"
    rows = [t.rows[0] for t in batch.trajectories]
    _, last = valued_engine.values(rows, batch.images)
    for trajectory, value in zip(batch.trajectories, last.tolist(), strict=True):
        assert trajectory.truncated != trajectory.terminated
        assert abs(value) > 1e-3
        expected = value if trajectory.truncated else 0.0
        assert trajectory.bootstrap_value == pytest.approx(expected, abs=1e-5)
        row = trajectory.rows[0]
        final = np.flatnonzero(row.loss_mask)[-1]
        to_come = row.columns["returns"][final] - row.columns["rewards"][final]
        assert to_come == pytest.approx(expected, abs=1e-4)


def test_bootstrap_can_be_switched_off(make_experiment, batch, valued_engine):
    config = with_estimator(make_experiment, "masked_gae", "algorithm.truncation_bootstrap=false")
    add_columns(config, valued_engine, batch.trajectories, batch.images)
    assert {t.bootstrap_value for t in batch.trajectories} == {0.0}


def test_failed_episodes_change_nothing_for_the_others(make_experiment, batch, valued_engine):
    config = with_estimator(make_experiment, "bi_level_gae")
    alone = copy.deepcopy(batch.trajectories)
    add_columns(config, valued_engine, alone, batch.images)
    masked, absent = copy.deepcopy(batch.trajectories[0]), copy.deepcopy(batch.trajectories[1])
    masked.trajectory_id, absent.trajectory_id = "m", "n"
    for failed in (masked, absent):
        failed.status, failed.turns = Status.ENV_ERROR, []
        failed.truncated = failed.terminated = False
    masked.rows[0].loss_mask[:] = False
    absent.rows = []
    with_failures = [masked, *batch.trajectories, absent]
    add_columns(config, valued_engine, with_failures, batch.images)
    for a, b in zip(alone, batch.trajectories, strict=True):
        for name in ("advantages", "returns"):
            np.testing.assert_allclose(a.rows[0].columns[name], b.rows[0].columns[name], atol=1e-4)
    for name in ("advantages", "returns", "rewards", CRITIC_MASK):
        assert not masked.rows[0].columns[name].any()
    assert masked.bootstrap_value == 0.0


def test_the_critic_learns_where_its_estimator_has_targets(make_experiment, batch):
    turn_ends = with_estimator(make_experiment, "turn_wise_gae")
    add_columns(turn_ends, FixedEngine(), batch.trajectories, {})
    for trajectory in batch.trajectories:
        assert trajectory.rows[0].columns[CRITIC_MASK].sum() == len(trajectory.turns)
    everywhere = with_estimator(make_experiment, "gae")
    add_columns(everywhere, FixedEngine(), batch.trajectories, {})
    for trajectory in batch.trajectories:
        mask = trajectory.rows[0].columns[CRITIC_MASK]
        assert mask[0] == 0 and mask[1:].all(), "no state comes before the first token"
