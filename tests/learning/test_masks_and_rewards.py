"""Masks, token rewards and the metrics that are not part of a loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.advantage import estimate_advantages
from vagen.learning import (
    Max,
    Mean,
    combine_metrics,
    critic_mask,
    explained_variance,
    last_sampled_mask,
    token_rewards,
    turn_end_mask,
    turn_start_mask,
)
from vagen.rollout.types import TurnRewards

few = settings(max_examples=80, deadline=None)


@st.composite
def rows(draw):
    """Loss mask and turn index [B, T] as a rollout makes them; turns may have sampled nothing."""
    layouts = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4),
            min_size=1,
            max_size=4,
        )
    )
    width = max(1 + sum(a + b for a, b in row) for row in layouts)
    mask = torch.zeros(len(layouts), width, dtype=torch.int64)
    turn = torch.full((len(layouts), width), -1, dtype=torch.int16)
    for b, row in enumerate(layouts):
        at = 1
        for k, (observed, sampled) in enumerate(row):
            turn[b, at : at + observed + sampled] = k
            mask[b, at + observed : at + observed + sampled] = 1
            at += observed + sampled
    return mask, turn, layouts


@few
@given(rows())
def test_turns_begin_and_end_with_their_first_and_last_sampled_tokens(case):
    mask, turn, layouts = case
    ends, starts = turn_end_mask(mask, turn), turn_start_mask(mask, turn)
    for b in range(len(layouts)):
        expected, first = {}, {}
        for t in range(mask.shape[1]):
            if mask[b, t]:
                expected[int(turn[b, t])] = t
                first.setdefault(int(turn[b, t]), t)
        assert starts[b].nonzero().flatten().tolist() == sorted(first.values())
        assert torch.equal(turn_start_mask(mask[b], turn[b]), starts[b])
        assert ends[b].nonzero().flatten().tolist() == sorted(expected.values())
        assert torch.equal(turn_end_mask(mask[b], turn[b]), ends[b])
        last = last_sampled_mask(mask)[b].nonzero().flatten().tolist()
        assert last == sorted(expected.values())[-1:]
        assert last_sampled_mask(mask[b]).nonzero().flatten().tolist() == last


@few
@given(rows(), st.booleans(), st.sampled_from([0.0, 0.1]), st.data())
def test_rewards_lie_on_the_turns_ends_and_kl_on_sampled_tokens(case, per_turn, kl_coef, data):
    mask, turn, _ = case
    ends = turn_end_mask(mask, turn)
    number = st.floats(-3, 3, width=32)
    given_rewards = [
        data.draw(st.lists(number, min_size=n, max_size=n)) for n in ends.sum(1).tolist()
    ]
    generator = torch.Generator().manual_seed(3)
    old, ref = torch.randn(2, *mask.shape, generator=generator)
    junk = torch.where(mask == 1, old, float("nan") if per_turn else 5.0)
    rewards = token_rewards(
        given_rewards,
        loss_mask=mask,
        turn_end_mask=ends,
        use_multi_turn_reward=per_turn,
        old_logprobs=junk,
        ref_logprobs=ref,
        kl_coef=kl_coef,
    )
    assert rewards.dtype == torch.float32
    expected = torch.where(mask == 1, -kl_coef * (old - ref), 0.0)
    for b, row in enumerate(given_rewards):
        where = ends[b].nonzero().flatten().tolist()
        if per_turn:
            for t, reward in zip(where, row, strict=True):
                expected[b, t] += reward
        elif where:
            expected[b, where[-1]] += sum(row)
    torch.testing.assert_close(rewards, expected, rtol=1e-5, atol=1e-5)
    if kl_coef == 0.0:
        for row, placed in zip(given_rewards, rewards.sum(1).tolist(), strict=True):
            assert placed == pytest.approx(sum(row), abs=1e-4)


def test_rewards_that_do_not_fit_are_refused():
    mask = torch.tensor([[0, 1, 1, 0, 1]])
    ends = torch.tensor([[0, 0, 1, 0, 1]])
    with pytest.raises(ValueError, match="row 0 has 1 turn rewards for 2 turn ends"):
        token_rewards([[1.0]], loss_mask=mask, turn_end_mask=ends)
    with pytest.raises(ValueError, match="2 rows of rewards for 1 rows of tokens"):
        token_rewards([[1.0, 2.0], []], loss_mask=mask, turn_end_mask=ends)
    with pytest.raises(ValueError, match="must mark sampled tokens"):
        token_rewards([[1.0]], loss_mask=mask, turn_end_mask=torch.tensor([[0, 0, 1, 0, 0]]))
    with pytest.raises(ValueError, match="must mark sampled tokens"):
        token_rewards([[1.0, 0]], loss_mask=mask, turn_end_mask=torch.tensor([[1, 0, 0, 0, 1]]))
    with pytest.raises(ValueError, match="needs old_logprobs and ref_logprobs"):
        token_rewards([[1.0, 2.0]], loss_mask=mask, turn_end_mask=ends, kl_coef=0.1)


def test_an_absent_part_of_a_turns_reward_adds_nothing():
    assert TurnRewards(env=1.0, format=0.5, judge_prediction=0.25).total == 1.75
    assert TurnRewards(env=0.0, format=0.0).total == 0.0


def test_rewards_and_masks_feed_the_estimators():
    """Turn rewards 1 and 3: with values 0 and a discount of 0.5 per turn, returns 2.5 and 3."""
    mask, turn = torch.tensor([[0, 1, 1, 0, 1]]), torch.tensor([[-1, 0, 0, 1, 1]])
    ends = turn_end_mask(mask, turn)
    rewards = token_rewards([[1.0, 3.0]], loss_mask=mask, turn_end_mask=ends)
    advantages, returns = estimate_advantages(
        "bi_level_gae",
        rewards=rewards,
        values=torch.zeros(1, 5),
        loss_mask=mask,
        turn_end_mask=ends,
        attention_mask=torch.ones(1, 5),
        high_level_gamma=0.5,
        whiten=False,
    )
    assert advantages.tolist() == returns.tolist() == [[0.0, 2.5, 2.5, 0.0, 3.0]]


def test_the_critic_learns_on_the_narrowest_mask_given():
    attended, loss, ends = torch.ones(1, 3), torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1]])
    starts = torch.tensor([[0, 1, 0]])
    only_starts = critic_mask(attention_mask=attended, loss_mask=loss, turn_start_mask=starts)
    assert only_starts.tolist() == [[False, True, False]]
    assert critic_mask(attention_mask=attended).tolist() == [[True, True, True]]
    only_sampled = critic_mask(attention_mask=attended, loss_mask=loss)
    assert only_sampled.tolist() == [[False, True, True]]
    only_ends = critic_mask(attention_mask=attended, loss_mask=loss, turn_end_mask=ends)
    assert only_ends.tolist() == [[False, False, True]]


def test_explained_variance():
    returns = torch.tensor([0.0, 1.0, 2.0, 99.0])
    mask = torch.tensor([1, 1, 1, 0])
    assert explained_variance(returns + 5, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.full((4,), 0.3), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.ones(4), mask) == 0.0
    assert explained_variance(returns, returns, torch.tensor([1, 0, 0, 0])) == 0.0


def test_metrics_of_unequal_micro_batches():
    parts = [
        {"x": Mean(torch.tensor(6.0), torch.tensor(3)), "m": Max(torch.tensor(1.0))},
        {"x": Mean(torch.tensor(2.0), torch.tensor(1)), "m": Max(torch.tensor(4.0))},
        {"x": Mean(torch.tensor(0.0), torch.tensor(0)), "m": Max(torch.tensor(float("-inf")))},
    ]
    assert combine_metrics(parts) == {"x": 2.0, "m": 4.0}
    assert combine_metrics(parts[2:]) == {}


def test_the_sum_lies_on_the_last_row_of_a_trajectory_that_has_a_turn():
    """Rows of two trajectories between each other, and one that shows a last state only."""
    mask = torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]])
    turn = torch.tensor([[-1, 0, 1], [-1, 0, 1], [-1, 2, 2], [-1, 2, 3], [-1, 0, 1]])
    given_rewards = [[1.0, 2.0], [8.0], [4.0], [], [16.0]]
    names = ["a", "b", "a", "a", "b"]
    options = {"loss_mask": mask, "turn_end_mask": turn_end_mask(mask, turn)}
    rewards = token_rewards(
        given_rewards, use_multi_turn_reward=False, trajectory_ids=names, **options
    )
    assert rewards.tolist() == [[0] * 3, [0] * 3, [0, 0, 7], [0] * 3, [0, 0, 24]]
    apart = token_rewards(given_rewards, use_multi_turn_reward=False, **options)
    assert apart.tolist() == [[0, 0, 3], [0, 8, 0], [0, 0, 4], [0] * 3, [0, 0, 16]]
    each = token_rewards(given_rewards, trajectory_ids=names, **options)
    assert each.tolist() == [[0, 1, 2], [0, 8, 0], [0, 0, 4], [0] * 3, [0, 0, 16]]
