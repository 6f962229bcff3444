"""Normalised scores against loops over the definition, and where they are placed."""

import math
import statistics

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vagen.advantage import estimate_advantages
from vagen.learning import normalize_turn_rewards

few = settings(max_examples=150, deadline=None)
METHODS = ["mean", "mean_std", "asym_clip"]
reward = st.sampled_from([0.0, 0.5, 1.0, -0.1, 10.0]) | st.floats(-5, 5, allow_nan=False)
batches = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(reward, min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
)


def slow(score: float, peers: list[float], method: str) -> float:
    mean = statistics.fmean(peers)
    if method == "mean":
        return score - mean
    deviation = statistics.stdev(peers) if len(peers) > 1 else 0.0
    if deviation <= 1e-6:
        return 0.0
    normalized = (score - mean) / (deviation + 1e-6)
    return min(max(normalized, -1.0), 3.0) if method == "asym_clip" else normalized


def peers_of(batch, name: str, grouping: str) -> list[float]:
    return [math.fsum(r) for other, r in batch if grouping == "batch" or other == name]


def normalize(batch, method: str, grouping: str) -> list[list[float]]:
    return normalize_turn_rewards(
        [rewards for _, rewards in batch],
        [name if grouping == "group" else "" for name, _ in batch],
        method=method,
    )


@few
@given(batches, st.sampled_from(METHODS), st.sampled_from(["group", "batch"]))
def test_the_turns_sum_to_the_normalised_score(batch, method, grouping):
    for (name, rewards), found in zip(batch, normalize(batch, method, grouping), strict=True):
        peers = peers_of(batch, name, grouping)
        deviation = statistics.stdev(peers) if len(peers) > 1 else 0.0
        assume(deviation == 0 or deviation > 1e-4)
        expected = slow(math.fsum(rewards), peers, method)
        assert len(found) == len(rewards)
        assert math.fsum(found) == pytest.approx(expected, abs=1e-7)
        scale = 1.0
        if method != "mean":
            scale = 1 / (deviation + 1e-6) if deviation > 1e-6 else 0.0
        assert found[:-1] == pytest.approx([r * scale for r in rewards[:-1]], rel=1e-6, abs=1e-9)


@few
@given(batches)
def test_without_a_method_nothing_changes(batch):
    assert normalize(batch, "none", "group") == [rewards for _, rewards in batch]


def test_a_normalised_score_is_the_group_relative_advantage():
    batch = [("a", [1.0, 2.0]), ("a", [0.5]), ("b", [4.0]), ("b", [1.0, 1.0])]
    found = [math.fsum(rewards) for rewards in normalize(batch, "mean_std", "group")]
    ones = torch.ones(4, 1)
    advantages, _ = estimate_advantages(
        "grpo",
        rewards=torch.tensor([[sum(r)] for _, r in batch], dtype=torch.float64),
        loss_mask=ones,
        attention_mask=ones,
        group_ids=[name for name, _ in batch],
    )
    assert found == pytest.approx(advantages[:, 0].tolist(), abs=1e-9)


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="method 'median'; it must be one of"):
        normalize([("a", [1.0])], "median", "group")
    with pytest.raises(ValueError, match="without a turn"):
        normalize([("a", [])], "mean", "group")
