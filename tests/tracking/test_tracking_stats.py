from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_rel

from vagen.tracking.stats import (
    attempts_ci95,
    binomial_ci95,
    levels_needed,
    paired_bootstrap,
    paired_seeds,
    pass_at_k,
    success_ci95,
)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_binomial_interval_is_wilsons(case):
    successes, count = case
    expected = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    low, high = binomial_ci95(successes, count)
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)
    assert 0 <= low <= successes / count <= high <= 1


@pytest.mark.parametrize("case", [(0, 0), (3, 2), (-1, 2)])
def test_impossible_counts_are_refused(case):
    with pytest.raises(ValueError, match="not a success rate"):
        binomial_ci95(*case)


def test_paired_interval_is_that_of_the_mean_difference():
    rng = np.random.default_rng(0)
    before = rng.random(400) < 0.4
    after = before | (rng.random(400) < 0.3)
    gain, (low, high) = paired_bootstrap(before, after, seed=1)
    difference = after.astype(float) - before
    half = 1.96 * difference.std() / 20
    assert gain == pytest.approx(difference.mean())
    assert low == pytest.approx(gain - half, abs=0.005)
    assert high == pytest.approx(gain + half, abs=0.005)
    assert paired_bootstrap(before, after, seed=1) == (gain, (low, high))
    back = paired_bootstrap(after, before, seed=1)
    assert back.gain == pytest.approx(-gain) and back.ci95[1] == pytest.approx(-low, abs=0.005)


def test_the_interval_covers_a_true_difference_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        hardness = rng.random(128)
        before, after = rng.random(128) < 0.5 * hardness, rng.random(128) < 0.5 * hardness + 0.2
        _, (low, high) = paired_bootstrap(before, after, seed=trial, resamples=1_000)
        covered += low <= 0.2 <= high
    assert 180 <= covered <= 198


def test_equal_results_have_no_gain():
    assert paired_bootstrap([1, 0, 1], [1, 0, 1], seed=0) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [([1], [1, 0], "one result per level"), ([], [], "one result"), ([np.nan], [1], "finite")],
)
def test_unpaired_results_are_refused(a, b, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(a, b, seed=0)


def test_seeds_are_compared_by_students_t():
    before, after = [0.48, 0.45, 0.52], [0.63, 0.62, 0.61]
    expected = ttest_rel(after, before)
    found = paired_seeds(before, after)
    assert found.t == pytest.approx(expected.statistic)
    assert found.ci95 == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.gain == pytest.approx(np.mean(after) - np.mean(before))


def test_one_seed_says_nothing_of_another():
    assert paired_seeds([0.5], [0.75]) == (0.25, None, None)
    assert paired_seeds([0.5, 0.25], [0.75, 0.5]) == (0.25, (0.25, 0.25), None)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=4))
def test_attempts_are_counted_as_every_choice_of_them_would_be(levels):
    found = pass_at_k(levels, 5)
    for k in (1, 2, 4, 5):
        choices = [[*combinations(wins, k)] for wins in levels if len(wins) >= k]
        if not choices:
            assert str(k) not in found["pass_at"]
            continue
        some = fmean(fmean(any(chosen) for chosen in of_level) for of_level in choices)
        every = fmean(fmean(all(chosen) for chosen in of_level) for of_level in choices)
        assert found["pass_at"][str(k)] == pytest.approx(some)
        assert found["pass_all"][str(k)] == pytest.approx(every)
    assert pass_at_k(levels, 1) == {}


def test_attempts_at_a_level_are_no_independent_trials():
    """Levels that are won always or never, but for one: ten attempts tell little more than one."""
    rates = [0.0, 1.0] * 20
    assert success_ci95(rates) == binomial_ci95(20, 40)
    low, high = success_ci95([*rates, 0.5])
    narrow_low, narrow_high = binomial_ci95(205, 410)
    assert high - low > 2.5 * (narrow_high - narrow_low)


def test_attempts_have_intervals_over_levels():
    levels = [[True, True], [True, False], [False, False]] * 10
    found = attempts_ci95(levels, 2)
    assert found["pass_at_ci95"]["2"] == binomial_ci95(20, 30)
    assert found["pass_all_ci95"]["2"] == binomial_ci95(10, 30)
    assert found["pass_at_ci95"]["1"] == success_ci95([1.0, 0.5, 0.0] * 10)
    assert attempts_ci95(levels, 1) == {}


@pytest.mark.slow
def test_as_many_levels_as_needed_tell_a_difference_in_four_of_five_measurements():
    rng = np.random.default_rng(0)

    def pair(count):
        return rng.random(count) < 0.5, rng.random(count) < 0.7

    needed = levels_needed(*pair(100_000))
    assert needed is not None
    assert 80 < needed < 110
    told = [paired_bootstrap(*pair(needed), seed=0, resamples=300).ci95[0] > 0 for _ in range(200)]
    assert 0.7 < np.mean(told) < 0.9
    assert levels_needed([0, 0], [1, 1]) == 6
    assert levels_needed([0, 1], [0, 1]) is None and levels_needed([0], [1]) is None
