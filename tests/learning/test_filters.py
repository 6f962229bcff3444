"""The rollout filter against loops over its definition."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.learning import group_statistics, loss_scale, select_groups

few = settings(max_examples=200, deadline=None)
deviations = st.lists(
    st.one_of(st.just(0.0), st.just(1.5), st.floats(0.01, 20, allow_nan=False)),
    min_size=1,
    max_size=9,
)
shares = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0])


def chosen(stds: list[float], **options) -> list[int]:
    return np.flatnonzero(select_groups(np.array(stds), **options)).tolist()


def slow_top_p(stds: list[float], share: float, mode: str, include_zero: bool) -> set[int]:
    """Largest first, until the share is held."""
    pool = [g for g, std in enumerate(stds) if include_zero or std > 0]
    if share == 1.0:
        return set(pool)
    weigh = (lambda std: std) if mode == "linear" else math.exp
    total = math.fsum(weigh(stds[g]) for g in pool)
    held: list[int] = []
    for g in sorted(pool, key=lambda g: (-stds[g], g)):
        if total == 0 or math.fsum(weigh(stds[h]) for h in held) >= share * total * (1 - 1e-9):
            break
        held.append(g)
    return set(held)


@few
@given(deviations, shares, st.sampled_from(["linear", "softmax"]), st.booleans())
def test_top_p_is_the_shortest_list_that_holds_the_share(stds, share, mode, include_zero):
    found = chosen(
        stds, strategy="top_p", value=share, top_p_prob_mode=mode, include_zero=include_zero
    )
    assert set(found) == slow_top_p(stds, share, mode, include_zero)


@few
@given(deviations, shares, st.booleans())
def test_top_k_is_a_share_of_all_groups(stds, share, include_zero):
    found = chosen(stds, strategy="top_k", value=share, include_zero=include_zero)
    pool = [g for g, std in enumerate(stds) if include_zero or std > 0]
    size = max(1, math.floor(round(share * len(stds), 9)))
    assert set(found) == set(sorted(pool, key=lambda g: (-stds[g], g))[:size])


@few
@given(deviations, shares, st.booleans())
def test_min_p_is_relative_to_the_largest(stds, share, include_zero):
    found = chosen(stds, strategy="min_p", value=share, include_zero=include_zero)
    threshold = share * max(stds) * (1 - 1e-9)
    assert set(found) == {
        g for g, std in enumerate(stds) if std >= threshold and (include_zero or std > 0)
    }


def test_the_strategies_differ():
    stds = [0.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0]
    assert chosen(stds, strategy="top_k", value=0.25) == [1, 2]
    assert chosen(stds, strategy="top_k", value=1.0) == [1, 2, 3, 4]
    assert chosen(stds, strategy="top_p", value=0.9) == [1, 2, 3]
    assert chosen(stds, strategy="top_p", value=0.9, top_p_prob_mode="softmax") == [1, 2, 3]
    assert chosen(stds, strategy="top_p", value=0.85, top_p_prob_mode="softmax") == [1, 2]
    assert chosen(stds, strategy="min_p", value=0.5) == [1, 2, 3]
    assert len(chosen(stds, strategy="top_p", value=1.0, include_zero=True)) == 8
    assert chosen(stds, strategy="none", value=0.25) == list(range(8))


@pytest.mark.parametrize("strategy", ["top_k", "top_p", "min_p"])
def test_where_all_scores_are_equal_nothing_is_kept(strategy):
    assert chosen([0.0, 0.0], strategy=strategy, value=0.9) == []
    assert chosen([], strategy=strategy, value=0.9) == []


def test_equal_scores_are_equal_whatever_the_rounding():
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floats."""
    scores = np.array([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 5.0, 7.0])
    assert scores[0] != scores[1]
    groups = group_statistics(scores, ["a", "a", "b", "b"])
    assert chosen(groups.stds.tolist(), strategy="top_k", value=1.0) == [1]


@few
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(-9, 9, allow_nan=False)), min_size=1, max_size=9
    )
)
def test_group_statistics_are_the_unbiased_ones(rows):
    names, scores = [name for name, _ in rows], [score for _, score in rows]
    groups = group_statistics(np.array(scores), names)
    for i, name in enumerate(names):
        own = [score for other, score in rows if other == name]
        g = groups.index[i]
        assert groups.sizes[g] == len(own)
        assert groups.means[g] == pytest.approx(statistics.fmean(own), abs=1e-9)
        expected = statistics.stdev(own) if len(own) > 1 else 0.0
        assert groups.stds[g] == pytest.approx(expected, abs=1e-9)


def test_loss_scale():
    assert loss_scale(1, 4, "none") == 1.0
    assert loss_scale(1, 4, "linear") == 0.25
    assert loss_scale(1, 4, "sqrt") == 0.5
    assert loss_scale(0, 0, "sqrt") == 0.0


def test_what_does_not_exist_is_refused():
    stds = np.ones(2)
    with pytest.raises(ValueError, match="must be one of"):
        select_groups(stds, strategy="best", value=0.5)
    with pytest.raises(ValueError, match="must be one of"):
        select_groups(stds, strategy="top_p", value=0.5, top_p_prob_mode="cubic")
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        select_groups(stds, strategy="top_k", value=0.0)
    with pytest.raises(ValueError, match="must be one of"):
        loss_scale(1, 1, "cubic")
    with pytest.raises(ValueError, match="1 group ids for 2 scores"):
        group_statistics(np.ones(2), ["a"])
