"""New estimators from a batch: several rows per trajectory, states compared, credit adapted."""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from vagen.advantage import ESTIMATORS, CreditReliability, ProgressDiscount
from vagen.engines.columns import add_columns
from vagen.engines.objectives import CRITIC_MASK
from vagen.learning.turn_credit import anchor_ids, potentials, update_credit
from vagen.rollout.types import TokenRow, Trajectory

EXTRA = {
    "turn_wise_gae": ("critic.use_reward_mask=true",),
    "no_concat_gae_last": ("critic.use_reward_mask=true",),
    "gae": ("rollout_manager.use_gae_mask=false",),
}


def with_estimator(make_experiment, name: str, *overrides: str):
    group = ("rollout_manager.n_trajectory=2",) if ESTIMATORS[name].group_based else ()
    extra = EXTRA.get(name, ())
    return make_experiment(f"algorithm.adv_estimator={name}", *extra, *group, *overrides)


class PositionEngine:
    """Log-probabilities and values that are a function of trajectory and position alone."""

    kl_coef = 0.05
    same_logprobs = False

    def __init__(self, credit: Any = None):
        self.credit = credit

    def logprobs(self, rows: list[TokenRow], images: Any, *, reference: bool = False):
        scale = -1.0 if reference else -0.5
        return [scale * self._noise(row) * row.loss_mask for row in rows]

    def values(self, rows: list[TokenRow], images: Any):
        found = [self._noise(row) for row in rows]
        return found, np.array([noise[-1] + 1 for noise in found], np.float32)

    @staticmethod
    def _noise(row: TokenRow) -> np.ndarray:
        seed = int.from_bytes(row.trajectory_id.encode(), "big") % 2**64
        rng = np.random.Generator(np.random.Philox(key=seed))
        return rng.uniform(0.1, 1, len(row.input_ids)).astype(np.float32)


@pytest.fixture
def trajectories(batch) -> list[Trajectory]:
    """Two groups, with the score of a greedy episode on each."""
    for i, trajectory in enumerate(batch.trajectories):
        trajectory.group_id = f"level-{i % 2}"
        trajectory.baseline_score = 0.25 + i % 2
        for row in trajectory.rows:
            row.columns.clear()
    return batch.trajectories


def a_row_per_turn(trajectory: Trajectory) -> None:
    """All rows hold all of the text; each is learnt from at one turn."""
    (whole,) = trajectory.rows
    trajectory.rows = []
    for k in range(len(trajectory.turns)):
        row = copy.deepcopy(whole)
        row.row_index = k
        row.loss_mask &= row.turn_index == k
        trajectory.rows.append(row)


@pytest.mark.parametrize("name", [n for n, spec in ESTIMATORS.items() if spec.stitches])
def test_rows_of_a_trajectory_are_one_to_every_estimator(make_experiment, trajectories, name):
    config = with_estimator(make_experiment, name)
    engine = PositionEngine(CreditReliability() if ESTIMATORS[name].adapts else None)
    single, several = copy.deepcopy(trajectories), copy.deepcopy(trajectories)
    for trajectory in several:
        a_row_per_turn(trajectory)
    assert any(len(trajectory.rows) > 1 for trajectory in several)
    add_columns(config, engine, single, {})
    add_columns(config, engine, several, {})
    columns = ["rewards", "advantages", "returns"]
    if ESTIMATORS[name].needs_critic:
        columns += [CRITIC_MASK]
    for one, many in zip(single, several, strict=True):
        (row,) = one.rows
        for column in columns:
            parts = [np.where(r.loss_mask, r.columns[column], 0) for r in many.rows]
            expected = np.where(row.loss_mask, row.columns[column], 0)
            np.testing.assert_allclose(np.sum(parts, 0), expected, atol=2e-6, err_msg=column)
    assert any(t.rows[0].columns["advantages"].any() for t in single)


def test_the_critic_of_no_concat_learns_on_first_tokens(make_experiment, trajectories):
    config = with_estimator(make_experiment, "no_concat_gae")
    add_columns(config, PositionEngine(), trajectories, {})
    for trajectory in trajectories:
        (row,) = trajectory.rows
        firsts = [
            np.flatnonzero(row.loss_mask & (row.turn_index == k))[0]
            for k in range(len(trajectory.turns))
        ]
        assert np.flatnonzero(row.columns[CRITIC_MASK]).tolist() == firsts
        assert np.flatnonzero(row.columns["returns"]).tolist() == firsts


def test_states_are_the_same_where_their_content_is(trajectories):
    import torch

    owners = trajectories[:2]
    first, second = owners
    state = first.turns[0].state
    second.turns[0].state = dict(reversed(list(copy.deepcopy(state).items())))
    first.turns[1].state = {**state, "player": [9, 9]}
    length = max(len(t.rows[0].turn_index) for t in owners)
    index = np.full((2, length), -1)
    for b, owner in enumerate(owners):
        index[b, : len(owner.rows[0].turn_index)] = owner.rows[0].turn_index
    anchors = anchor_ids(owners, torch.from_numpy(index)).numpy()
    starts = {int(a) for b in range(2) for a in anchors[b][index[b] == 0]}
    assert len(starts) == 1 and starts.pop() >= 0
    assert not np.isin(anchors[0][index[0] == 1], anchors[0][index[0] == 0]).any()
    for b, owner in enumerate(owners):
        assert (anchors[b][index[b] == -1] == -1).all()
        assert (anchors[b][index[b] == len(owner.turns)] == -1).all()


def test_gigpo_logs_how_many_turns_it_could_compare(make_experiment, trajectories):
    config = with_estimator(make_experiment, "gigpo")
    for trajectory in trajectories:
        trajectory.group_id = "level"
        for k, turn in enumerate(trajectory.turns):
            turn.state = {"env_name": "FrozenLake", "depth": k}
    metrics = add_columns(config, PositionEngine(), trajectories, {})
    assert metrics["gigpo/singleton_turns"] == 0.0
    assert metrics["gigpo/nonzero_turns"] > 0.0
    for i, trajectory in enumerate(trajectories):
        for turn in trajectory.turns:
            turn.state = {"own": [i, turn.turn_index]}
    metrics = add_columns(config, PositionEngine(), trajectories, {})
    assert metrics["gigpo/singleton_turns"] == 1.0
    assert metrics["gigpo/nonzero_turns"] == 0.0


def test_remax_subtracts_the_greedy_score(make_experiment, trajectories):
    config = with_estimator(make_experiment, "remax")
    plain = copy.deepcopy(trajectories)
    for trajectory in plain:
        trajectory.baseline_score = 0.0
    for batch in (plain, trajectories):
        add_columns(config, PositionEngine(), batch, {})
    for a, b in zip(plain, trajectories, strict=True):
        difference = (a.rows[0].columns["advantages"] - b.rows[0].columns["advantages"])[
            a.rows[0].loss_mask
        ]
        np.testing.assert_allclose(difference, b.baseline_score, atol=1e-5)


def test_lambda_of_a_turn_follows_what_earlier_batches_showed(make_experiment, trajectories):
    """First 1 everywhere, and where critic and return have agreed that of `lam_min`."""
    config = with_estimator(make_experiment, "adaptive_credit")
    credit = CreditReliability(lam_min=0.5)
    engine = PositionEngine(credit)
    agreed = [[float(i), float(-i), i / 2] for i in range(50)]
    for lam in (1.0, 0.5):
        metrics = add_columns(config, engine, trajectories, {})
        assert metrics["credit/lam/turn_0"] == pytest.approx(lam)
        fixed = copy.deepcopy(trajectories)
        options = f"algorithm.high_level_lam={lam}"
        add_columns(with_estimator(make_experiment, "bi_level_gae", options), engine, fixed, {})
        for a, b in zip(trajectories, fixed, strict=True):
            found, expected = (t.rows[0].columns["advantages"] for t in (a, b))
            np.testing.assert_allclose(found, expected, atol=1e-5)
        credit.update(agreed, agreed)


def test_a_critic_that_foresaw_the_returns_is_trusted(make_experiment, trajectories):
    config = with_estimator(make_experiment, "adaptive_credit", "algorithm.high_level_gamma=0.9")
    credit = CreditReliability(lam_min=0.5)
    add_columns(config, PositionEngine(credit), trajectories, {})
    update_credit(config, credit, trajectories)
    assert len(credit.turns) == max(len(t.turns) for t in trajectories)
    assert credit.turns[0].weight == len(trajectories)
    for trajectory in trajectories:
        a_row_per_turn(trajectory)
        to_go = 0.0
        for k, row in reversed(list(enumerate(trajectory.rows))):
            end = np.flatnonzero(row.loss_mask & (row.turn_index == k))[-1]
            to_go = row.columns["rewards"][end] + 0.9 * to_go
            row.columns["values"][end] = to_go
    for _ in range(50):
        update_credit(config, credit, trajectories)
    assert credit.lams(1)[0] == pytest.approx(0.5, abs=0.02)


def test_discounts_follow_the_progress_of_the_true_state(make_experiment, trajectories):
    config = with_estimator(
        make_experiment, "adaptive_credit", "algorithm.adaptive_credit.mode=gamma"
    )
    credit = ProgressDiscount()
    engine = PositionEngine(credit)
    metrics = add_columns(config, engine, trajectories, {})
    assert metrics["credit/gamma/mean"] == pytest.approx(0.95)
    assert metrics["credit/gamma/std"] == pytest.approx(0.0, abs=1e-12)
    for trajectory in trajectories:
        found = potentials(trajectory)
        assert len(found) == len(trajectory.turns) + 1 and found[0] == 0.0
    update_credit(config, credit, trajectories)
    assert set(credit.envs) == {"FrozenLake"}
    steps = [b - a for t in trajectories for a, b in pairwise(potentials(t))]
    assert credit.envs["FrozenLake"].mean_x == pytest.approx(np.mean(steps))
    metrics = add_columns(config, engine, trajectories, {})
    assert (metrics["credit/gamma/std"] > 0) == (np.std(steps) > 0)


def test_trajectories_without_columns_teach_nothing(make_experiment, trajectories):
    config = with_estimator(make_experiment, "adaptive_credit")
    credit = CreditReliability()
    update_credit(config, credit, trajectories)
    assert credit.turns == []


@pytest.mark.parametrize(
    ("mode", "seen"),
    [("lambda", ([[1.0], [2.0]], [[0.5], [0.75]])), ("gamma", ("game", [[0.0, 0.5, 0.75]]))],
)
def test_running_statistics_are_part_of_the_checkpoint(make_engine, tmp_path, mode, seen):
    overrides = (
        "algorithm.adv_estimator=adaptive_credit",
        f"algorithm.adaptive_credit.mode={mode}",
    )
    engine, other = make_engine(*overrides), make_engine(*overrides)
    engine.credit.update(*seen)
    assert other.credit != engine.credit
    engine.save(tmp_path / "checkpoint")
    other.load(tmp_path / "checkpoint", version="again")
    assert other.credit == engine.credit
    assert make_engine().credit is None
