"""Advantage estimation from a batch, end to end."""

import copy
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from vagen.engines import columns as stage
from vagen.engines.columns import add_columns
from vagen.engines.objectives import CRITIC_MASK
from vagen.learning.selection import turn_rewards_by_trajectory
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.types import Status, TokenRow, Trajectory, TurnRewards


class FixedEngine:
    """Log-probabilities and values that belong to sampled tokens, whatever stands between them.

    So all that changes with observations or padding must come from the step itself.
    """

    kl_coef = 0.05
    same_logprobs = False

    def logprobs(self, rows: list[TokenRow], images: Any, *, reference: bool = False):
        return [self._spread(row, -1.0 if reference else -0.5) for row in rows]

    def values(self, rows: list[TokenRow], images: Any):
        last = [float(len(self._owner(row)) + row.loss_mask.sum()) for row in rows]
        return [self._spread(row, 2.0, junk=50.0) for row in rows], np.asarray(last, np.float32)

    def action_mask(self, row: TokenRow) -> np.ndarray:
        return np.arange(len(row.input_ids)) > 0

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
    for i, trajectory in enumerate(batch.trajectories):
        trajectory.group_id = str(i % 2)
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


@pytest.mark.parametrize("estimator", ["turn_wise_gae", "masked_gae", "bi_level_gae"])
def test_without_loss_mask_observations_have_what_the_2025_code_gives_them(
    make_experiment, batch, estimator
):
    """Their turn's advantage if it is per turn, otherwise the whitened 0: they are learnt from."""
    options = ("rollout_manager.use_loss_mask=false", "algorithm.truncation_bootstrap=false")
    config = with_estimator(make_experiment, estimator, *options)
    masked = with_estimator(make_experiment, estimator, options[1])
    expected = copy.deepcopy(batch.trajectories)
    add_columns(masked, FixedEngine(), expected, {})
    add_columns(config, FixedEngine(), batch.trajectories, {})
    neutral = set()
    for trajectory, other in zip(batch.trajectories, expected, strict=True):
        row, advantages = trajectory.rows[0], trajectory.rows[0].columns["advantages"]
        for name in ("advantages", "returns"):
            np.testing.assert_array_equal(
                row.columns[name][row.loss_mask], other.rows[0].columns[name][row.loss_mask]
            )
        assert advantages[0] == 0, "no action"
        between = np.flatnonzero(~row.loss_mask[1:]) + 1
        for t in between if estimator == "turn_wise_gae" else ():
            later = np.flatnonzero(row.loss_mask[t:])
            if later.size:
                assert advantages[t] == advantages[t + later[0]] != 0
        if estimator != "turn_wise_gae":
            neutral |= set(advantages[between].tolist())
    assert estimator == "turn_wise_gae" or (len(neutral) == 1 and neutral != {0.0})


def test_rewards_are_on_the_tokens_that_complete_what_earned_them(make_engine, batch):
    found = {}
    for turn in (turn for t in batch.trajectories for turn in t.turns):
        turn.placed = [(7, 0.125), (len(turn.response_text) // 2, -1.0)]
    for placement in ("turn_end", "span"):
        engine = make_engine(f"rollout_manager.reward_placement={placement}")
        found[placement] = copy.deepcopy(batch.trajectories)
        add_columns(engine.config, engine, found[placement], batch.images)
    text_of = ChatRenderer(engine.processor).text
    for at_end, trajectory in zip(found["turn_end"], found["span"], strict=True):
        row = trajectory.rows[0]
        change = row.columns["rewards"] - at_end.rows[0].columns["rewards"]
        for turn in trajectory.turns:
            places = np.flatnonzero(row.loss_mask & (row.turn_index == turn.turn_index))
            said = [text_of(row.input_ids[places[: n + 1]].tolist()) for n in range(len(places))]
            expected = np.zeros(len(places), np.float32)
            for end, paid in turn.placed:
                expected[next(n for n, text in enumerate(said) if len(text) >= end)] += paid
            expected[-1] -= sum(paid for _, paid in turn.placed)
            np.testing.assert_allclose(change[places], expected, atol=1e-6)


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


def test_the_rollout_s_log_probabilities_are_computed_again_for_a_sample_only(
    make_engine, batch, monkeypatch
):
    monkeypatch.setattr(stage, "COMPARED", 2)
    found, metrics = {}, {}
    for reuse in ("null", "false"):
        engine = make_engine(f"actor_rollout_ref.actor.use_rollout_log_probs={reuse}")
        passed, trajectories = [], copy.deepcopy(batch.trajectories)
        plain = engine.logprobs

        def counted(rows, images, reference=False, plain=plain, passed=passed):
            passed.append(0 if reference else len(rows))
            return plain(rows, images, reference=reference)

        monkeypatch.setattr(engine, "logprobs", counted)
        metrics[reuse] = add_columns(engine.config, engine, trajectories, batch.images)
        assert sum(passed) == (2 if reuse == "null" else len(trajectories))
        found[reuse] = [t.rows[0] for t in trajectories]
    for row, computed in zip(found["null"], found["false"], strict=True):
        expected = np.where(row.loss_mask, row.rollout_logprobs, 0)
        np.testing.assert_array_equal(row.columns["old_logprobs"], expected)
        for name, column in computed.columns.items():
            np.testing.assert_allclose(row.columns[name], column, atol=1e-3, err_msg=name)
    assert metrics["null"].keys() == metrics["false"].keys()


def test_rewards_are_at_the_ends_of_turns(batch):
    """At the warm start the policy is its own reference: there is no KL yet."""
    for trajectory in batch.trajectories:
        row = trajectory.rows[0]
        expected = np.zeros(len(row.input_ids), np.float32)
        for turn in trajectory.turns:
            last = np.flatnonzero(row.loss_mask & (row.turn_index == turn.turn_index))[-1]
            expected[last] = turn.rewards.env + turn.rewards.format
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


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_what_a_turn_without_sampled_tokens_earned_is_not_lost(make_experiment, batch, dropped):
    """It goes to the last turn before it, or to the first."""
    engine = FixedEngine()
    engine.kl_coef = 0.0
    trajectory = next(t for t in batch.trajectories if len(t.turns) > 2)
    for k, turn in enumerate(trajectory.turns):
        turn.rewards = TurnRewards(env=10.0**k, format=0.0)
    row = trajectory.rows[0]
    row.loss_mask[row.turn_index == dropped] = False
    add_columns(with_estimator(make_experiment, "masked_gae"), engine, [trajectory], {})
    heir = max(dropped - 1, 0) if dropped else 1
    earned = [row.columns["rewards"][row.turn_index == k].sum() for k in range(3)]
    expected = [1.0, 10.0, 100.0]
    expected[heir] += expected[dropped]
    expected[dropped] = 0.0
    assert earned == pytest.approx(expected)


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
    judged = batch.trajectories[0].turns[0]
    judged.rewards = replace(judged.rewards, judge_observation=0.5)
    assert batch.trajectories[1].turns[0].rewards.judge_observation is None
    before = [float(r.sum()) for r in sampled(batch.trajectories, "rewards")]
    add_columns(config, engine, batch.trajectories, {})
    after = [float(r.sum()) for r in sampled(batch.trajectories, "rewards")]
    assert after[0] == pytest.approx(before[0] + 0.5)
    assert after[1:] == pytest.approx(before[1:], abs=1e-6)


@pytest.fixture
def valued_engine(make_engine):
    """A real engine whose critic says something."""
    engine = make_engine()
    torch.nn.init.normal_(engine.critic.head.weight, generator=torch.Generator().manual_seed(1))
    return engine


def test_truncated_bootstraps_and_terminated_does_not(make_experiment, batch, valued_engine):
    """With gamma and lambda 1 the return of the last token is its reward and what follows."""
    config = with_estimator(make_experiment, "masked_gae", "algorithm.truncation_bootstrap=true")
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


def test_a_cut_that_shows_no_state_bootstraps_where_the_critic_has_learnt(
    make_experiment, batch, valued_engine
):
    """With gamma and lambda 1 the last return is its reward and the value that was there before."""
    config = with_estimator(make_experiment, "masked_gae", "algorithm.truncation_bootstrap=true")
    cut = next(t for t in batch.trajectories if t.truncated)
    row = cut.rows[0]
    end = int(np.flatnonzero(row.loss_mask)[-1])
    for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
        setattr(row, name, getattr(row, name)[: end + 1])
    is_image = row.input_ids == valued_engine.processor.image_token_id
    row.images = row.images[: int((is_image[1:] & ~is_image[:-1]).sum())]
    cut.status = Status.TRUNCATED_TOKENS
    add_columns(config, valued_engine, [cut], batch.images)
    assert abs(cut.bootstrap_value) > 1e-3
    expected = row.columns["rewards"][end] + row.columns["values"][end]
    assert row.columns["returns"][end] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("estimator", ["turn_wise_gae", "no_concat_gae_last"])
def test_a_critic_of_turn_ends_bootstraps_at_the_last_of_them(make_experiment, batch, estimator):
    options = ("truncation_bootstrap=true", "high_level_gamma=1.0")
    options = ("critic.use_reward_mask=true", *(f"algorithm.{option}" for option in options))
    config = with_estimator(make_experiment, estimator, *options)
    engine = FixedEngine()
    engine.kl_coef = 0.0
    add_columns(config, engine, batch.trajectories, {})
    cut = [t.rows[0] for t in batch.trajectories if t.truncated]
    assert cut
    for row in cut:
        end = np.flatnonzero(row.loss_mask)[-1]
        expected = row.columns["rewards"][end] + row.columns["values"][end]
        assert row.columns["returns"][end] == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("cut", ["top_p=0.5", "top_k=3", "top_p=1.0"])
def test_what_was_drawn_from_a_cut_distribution_is_compared_with_the_whole(
    make_experiment, batch, cut
):
    """The policy before the update is the trainer's: the rollout's drew from fewer tokens."""
    sampling = f"actor_rollout_ref.rollout.{cut}"
    config = with_estimator(make_experiment, "grpo", sampling, "trainer.agreement.enable=false")
    engine = FixedEngine()
    engine.same_logprobs = True
    add_columns(config, engine, batch.trajectories, {})
    row = batch.trajectories[0].rows[0]
    expected = row.rollout_logprobs if cut == "top_p=1.0" else engine.logprobs([row], {})[0]
    np.testing.assert_allclose(
        row.columns["old_logprobs"][row.loss_mask], expected[row.loss_mask], atol=1e-6
    )


@pytest.mark.parametrize("shown", [True, False], ids=["state shown", "state had no room"])
@pytest.mark.parametrize(
    ("estimator", "at_ends"),
    [
        ("turn_wise_gae", True),
        ("no_concat_gae_last", True),
        ("bi_level_gae", True),
        ("masked_gae", False),
        ("no_concat_gae", False),
    ],
)
def test_the_last_reward_of_a_truncated_episode_counts(
    make_experiment, batch, estimator, at_ends, shown
):
    config = with_estimator(
        make_experiment,
        estimator,
        "algorithm.truncation_bootstrap=true",
        "algorithm.high_level_gamma=1.0",
        f"critic.use_reward_mask={str(at_ends).lower()}",
    )
    cut = next(t for t in batch.trajectories if t.truncated)
    row = cut.rows[0]
    end = int(np.flatnonzero(row.loss_mask)[-1])
    learnt = int(np.flatnonzero(row.loss_mask & (row.turn_index == len(cut.turns) - 1))[0])
    at = learnt if estimator == "no_concat_gae" else end
    if not shown:
        for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
            setattr(row, name, getattr(row, name)[: end + 1])
    returns = []
    for reward in (0.0, 10.0):
        cut.turns[-1].rewards = TurnRewards(env=reward, format=0.0)
        add_columns(config, FixedEngine(), [cut], {})
        returns.append(row.columns["returns"][at])
    assert returns[1] - returns[0] == pytest.approx(10.0, rel=1e-4)


@pytest.mark.parametrize(("bootstraps", "terminated"), [("true", True), ("false", False)])
def test_what_is_over_or_switched_off_does_not_bootstrap(
    make_experiment, batch, valued_engine, bootstraps, terminated
):
    option = f"algorithm.truncation_bootstrap={bootstraps}"
    for trajectory in batch.trajectories:
        trajectory.truncated, trajectory.terminated = True, terminated
    config = with_estimator(make_experiment, "masked_gae", option)
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
    masked = with_estimator(make_experiment, "gae")
    add_columns(masked, FixedEngine(), batch.trajectories, {})
    for row in (trajectory.rows[0] for trajectory in batch.trajectories):
        np.testing.assert_array_equal(row.columns[CRITIC_MASK] != 0, row.loss_mask)
    everywhere = with_estimator(make_experiment, "gae", "rollout_manager.use_loss_mask=false")
    add_columns(everywhere, FixedEngine(), batch.trajectories, {})
    for trajectory in batch.trajectories:
        mask = trajectory.rows[0].columns[CRITIC_MASK]
        assert mask[0] == 0 and mask[1:].all(), "no state comes before the first token"


GROUPED = ("data.train_batch_size=3", "rollout_manager.n_trajectory=2")


@pytest.fixture
def grouped(batch) -> list[Trajectory]:
    """Three groups of two: equal scores, scores 1 apart, scores 4 apart."""
    assert len(batch.trajectories) == 6
    for i, trajectory in enumerate(batch.trajectories):
        trajectory.group_id = "abc"[i // 2]
        for row in trajectory.rows:
            row.columns.clear()
        for turn in trajectory.turns:
            turn.rewards = TurnRewards(env=0.25, format=0.0)
        gap = (0.0, 1.0, 4.0)[i // 2] * (i % 2)
        first = 0.25 + gap - 0.25 * len(trajectory.turns)
        trajectory.turns[0].rewards = TurnRewards(env=first, format=0.0)
    return batch.trajectories


def filtered(strategy: str, value: float, *overrides: str) -> tuple[str, ...]:
    options = (f"strategy={strategy}", f"value={value}")
    return (*GROUPED, *(f"algorithm.rollout_filter.{o}" for o in options), *overrides)


@pytest.mark.parametrize("estimator", MASKED)
@pytest.mark.parametrize(
    ("scaling", "keep", "scale"), [("none", 4, 1.0), ("linear", 4, 2 / 3), ("sqrt", 2, 3**-0.5)]
)
@pytest.mark.parametrize("normalization", ["none", "mean_std"])
def test_what_the_filter_drops_is_as_if_it_had_not_been_played(
    make_experiment, grouped, estimator, scaling, keep, scale, normalization
):
    """Normalisation, groups and whitening see the kept alone; only the scaling knows the rest."""
    common = (
        f"algorithm.reward_normalization.method={normalization}",
        "algorithm.reward_normalization.grouping=batch",
    )
    filtering = filtered("top_k", keep / 6, f"algorithm.rollout_filter.loss_scaling={scaling}")
    alone = copy.deepcopy(grouped[-keep:])
    unfiltered = with_estimator(make_experiment, estimator, *GROUPED, *common)
    add_columns(unfiltered, FixedEngine(), alone, {})
    config = with_estimator(make_experiment, estimator, *filtering, *common)
    metrics = add_columns(config, FixedEngine(), grouped, {})
    assert [t.kept for t in grouped] == [False] * (6 - keep) + [True] * keep
    assert all(not row.columns for t in grouped[:-keep] for row in t.rows)
    for column, factor in (("advantages", scale), ("returns", 1.0), ("rewards", 1.0)):
        for a, b in zip(sampled(alone, column), sampled(grouped[-keep:], column), strict=True):
            np.testing.assert_allclose(a * factor, b, rtol=1e-6, atol=1e-6)
    assert metrics["rollout/filter_kept"] == pytest.approx(keep / 6)
    assert metrics["rollout/zero_std_groups"] == pytest.approx(1 / 3)
    assert metrics["rollout/reward_std"] == pytest.approx((0 + 0.5**0.5 + 8**0.5) / 3)


@pytest.mark.parametrize("estimator", ["bi_level_gae", "turn_wise_gae", "gae"])
def test_an_environment_of_a_mixture_is_whitened_as_if_it_were_alone(
    make_experiment, grouped, estimator
):
    options = (
        *GROUPED,
        "algorithm.whitening=environment",
        "algorithm.reward_normalization.method=mean_std",
        "algorithm.reward_normalization.grouping=environment",
    )
    config = with_estimator(make_experiment, estimator, *options)
    for trajectory in grouped[2:]:
        trajectory.config_id = "sea"
    alone = copy.deepcopy(grouped[:2]), copy.deepcopy(grouped[2:])
    for part in alone:
        add_columns(config, FixedEngine(), part, {})
    add_columns(config, FixedEngine(), grouped, {})
    for a, b in zip(
        sampled([*chain(*alone)], "advantages"), sampled(grouped, "advantages"), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)
    together = copy.deepcopy(grouped)
    batch = with_estimator(make_experiment, estimator, *options, "algorithm.whitening=batch")
    add_columns(batch, FixedEngine(), together, {})
    assert not np.allclose(sampled(together, "advantages")[0], sampled(grouped, "advantages")[0])


def test_groups_of_equal_scores_teach_nothing_with_kl_in_the_reward(make_experiment, grouped):
    config = with_estimator(make_experiment, "grpo", *GROUPED)
    metrics = add_columns(config, FixedEngine(), grouped, {})
    rewards = [float(r.sum()) for r in sampled(grouped, "rewards")]
    assert abs(rewards[0] - rewards[1]) > 0.01, "the penalty differs"
    silent = [not a.any() for a in sampled(grouped, "advantages")]
    assert silent == [True, True, False, False, False, False]
    assert metrics["rollout/zero_std_groups"] == pytest.approx(1 / 3)


def test_failed_episodes_are_in_no_group(make_experiment, grouped):
    """The group of a failed episode and one other has no deviation and teaches nothing."""
    grouped[5].status = Status.ENV_ERROR
    grouped[5].rows[0].loss_mask[:] = False
    config = with_estimator(make_experiment, "masked_gae", *filtered("top_k", 1.0))
    metrics = add_columns(config, FixedEngine(), grouped, {})
    assert [t.kept for t in grouped] == [False, False, True, True, False, None]
    assert metrics["rollout/filter_kept"] == pytest.approx(2 / 5)
    assert metrics["rollout/zero_std_groups"] == pytest.approx(1 / 2)


def test_episodes_with_a_cut_answer_are_as_if_they_had_not_been_played(make_experiment, grouped):
    grouped[0].turns[-1].length_cut = True
    grouped[3].status = Status.TRUNCATED_TOKENS
    alone = copy.deepcopy([grouped[i] for i in (1, 2, 4, 5)])
    add_columns(with_estimator(make_experiment, "grpo", *GROUPED), FixedEngine(), alone, {})
    config = with_estimator(
        make_experiment, "grpo", *GROUPED, "algorithm.overlong.mask_truncated=true"
    )
    metrics = add_columns(config, FixedEngine(), grouped, {})
    assert [t.kept for t in grouped] == [False, True, True, False, True, True]
    learnt = [t for t in grouped if t.kept]
    for a, b in zip(sampled(alone, "advantages"), sampled(learnt, "advantages"), strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics["rollout/filter_kept"] == pytest.approx(4 / 6)


def test_every_answer_near_its_limit_pays_for_its_length(make_experiment, grouped):
    """And an evaluation's rewards are what was earned."""
    config = with_estimator(
        make_experiment,
        "masked_gae",
        "algorithm.overlong.buffer_len=10",
        "algorithm.overlong.penalty_factor=0.5",
        "data.max_response_length=12",
    )
    before = [turn_rewards_by_trajectory(config, [t], training=False) for t in grouped]
    after = turn_rewards_by_trajectory(config, grouped)
    paid = 0.0
    for trajectory, earned in zip(grouped, before, strict=True):
        turns = [row.turn_index[row.loss_mask] for row in trajectory.rows]
        for k, turn in enumerate(trajectory.turns):
            tokens = sum(int((found == k).sum()) for found in turns)
            assert earned[trajectory.trajectory_id][k] == turn.rewards.total
            cost = 0.5 * min(max((tokens - 2) / 10, 0), 1)
            paid += cost
            expected = turn.rewards.total - cost
            assert after[trajectory.trajectory_id][k] == pytest.approx(expected)
    assert paid > 0


def test_deviations_are_measured_without_a_filter_too(make_experiment, grouped):
    config = with_estimator(make_experiment, "masked_gae", *GROUPED)
    metrics = add_columns(config, FixedEngine(), grouped, {})
    assert metrics["rollout/zero_std_groups"] == pytest.approx(1 / 3)
    assert metrics["rollout/filter_kept"] == 1.0 and {t.kept for t in grouped} == {None}
    for i, trajectory in enumerate(grouped):
        trajectory.group_id = str(i)
    metrics = add_columns(config, FixedEngine(), grouped, {})
    assert "rollout/reward_std" not in metrics, "a group of one has none"


def test_judge_rewards_count_in_the_scores_that_are_compared(make_experiment, grouped):
    config = with_estimator(make_experiment, "masked_gae", *filtered("top_k", 0.4))
    judged = grouped[1].turns[0]
    judged.rewards = replace(judged.rewards, judge_prediction=9.0)
    add_columns(config, FixedEngine(), grouped, {})
    assert [t.kept for t in grouped] == [True, True] + [False] * 4


def test_where_nothing_is_kept_there_are_no_columns(make_experiment, grouped):
    config = with_estimator(make_experiment, "masked_gae", *filtered("min_p", 0.5))
    metrics = add_columns(config, FixedEngine(), grouped[:2], {})
    assert metrics == {
        "rollout/filter_kept": 0.0,
        "rollout/reward_std": 0.0,
        "rollout/zero_std_groups": 1.0,
    }
    assert [t.kept for t in grouped[:2]] == [False, False]


def test_evaluation_is_neither_filtered_nor_normalised(make_experiment, grouped):
    config = with_estimator(
        make_experiment,
        "masked_gae",
        *filtered("top_k", 0.4, "algorithm.reward_normalization.method=mean"),
    )
    engine = FixedEngine()
    engine.kl_coef = 0.0
    add_columns(config, engine, grouped, {}, training=False)
    assert {t.kept for t in grouped} == {None}
    scores = [float(rewards.sum()) for rewards in sampled(grouped, "rewards")]
    assert scores == pytest.approx([0, 0, 0, 1, 0, 4], abs=1e-6)


@pytest.mark.parametrize("per_turn", ["true", "false"])
def test_normalised_rewards_stay_at_their_turns(make_experiment, grouped, per_turn):
    """Scores 0 and 4: mean 2, deviation 8 ** 0.5. KL comes after, unscaled."""
    config = with_estimator(
        make_experiment,
        "masked_gae",
        *GROUPED,
        "algorithm.reward_normalization.method=mean_std",
        f"rollout_manager.use_multi_turn_reward={per_turn}",
    )
    plain = copy.deepcopy(grouped)
    add_columns(config, FixedEngine(), grouped, {})
    free = FixedEngine()
    free.kl_coef = 0.0
    add_columns(config, free, plain, {})
    scores = [float(rewards.sum()) for rewards in sampled(plain, "rewards")]
    half = 0.5**0.5
    assert scores == pytest.approx([0, 0, -half, half, -half, half], abs=1e-5)
    for a, b in zip(grouped, plain, strict=True):
        row = a.rows[0]
        kl = row.columns["old_logprobs"] - row.columns["ref_logprobs"]
        expected = b.rows[0].columns["rewards"] - 0.05 * kl * row.loss_mask
        np.testing.assert_allclose(row.columns["rewards"], expected, atol=1e-6)
    several = next(t for t in plain[4:] if len(t.turns) > 1)
    row = several.rows[0]
    first = np.flatnonzero(row.loss_mask & (row.turn_index == 0))[-1]
    earned = several.turns[0].rewards.env if per_turn == "true" else 0.0
    assert row.columns["rewards"][first] == pytest.approx(earned / 8**0.5, rel=1e-4)
