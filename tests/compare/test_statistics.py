"""Figures over seeds against other formulas, and against data whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from vagen.compare.statistics import iqm, mean_over_seeds, probability_of_improvement


def binary(rng, seeds, levels, of_seeds, of_levels, mean=0.5):
    """Outcomes of trainings whose success varies from seed to seed and from level to level."""
    chances = mean + of_seeds * rng.standard_normal((seeds, 1))
    chances = chances + of_levels * rng.standard_normal((1, levels))
    return (rng.random((seeds, levels)) < np.clip(chances, 0.02, 0.98)).astype(float)


def interval(scores) -> tuple[float, float]:
    ci95 = mean_over_seeds(scores).ci95
    assert ci95 is not None
    return ci95


def test_of_one_level_it_is_students_interval():
    scores = np.array([[0.2], [0.5], [0.9], [0.4]])
    expected = stats.t.interval(0.95, 3, scores.mean(), stats.sem(scores[:, 0]))
    assert mean_over_seeds(scores).value == pytest.approx(0.5)
    assert interval(scores) == pytest.approx(expected)


def test_where_levels_do_not_differ_it_is_students_interval_over_the_seeds_means():
    scores = np.repeat([[0.0], [0.25], [1.0]], 50, axis=1) + 0.0
    expected = stats.t.interval(0.95, 2, scores.mean(), stats.sem(scores[:, 0]))
    low, high = interval(scores)
    assert (low, high) == pytest.approx(expected, abs=1e-9)


def test_with_many_seeds_and_levels_it_is_the_two_way_bootstraps():
    rng = np.random.default_rng(3)
    scores = 0.3 * rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((1, 80))
    scores = scores + 0.05 * rng.standard_normal((60, 80))
    draws = [
        scores[np.ix_(rng.integers(0, 60, 60), rng.integers(0, 80, 80))].mean() for _ in range(4000)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    found = interval(scores)
    assert found[1] - found[0] == pytest.approx(high - low, rel=0.06)


def test_where_only_seeds_differ_it_is_scipys_bootstrap_over_seeds():
    rng = np.random.default_rng(5)
    of_seeds = rng.standard_normal(80)
    drawn = stats.bootstrap((of_seeds,), np.mean, method="percentile", rng=1)
    found = interval(np.repeat(of_seeds[:, None], 30, axis=1))
    assert found == pytest.approx(tuple(drawn.confidence_interval), abs=0.02)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("of_seeds", "of_levels"), [(0.0, 0.0), (0.1, 0.2), (0.25, 0.1), (0.0, 0.45)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(seeds, of_seeds, of_levels):
    rng = np.random.default_rng(seeds)
    held = []
    for _ in range(400):
        ci95 = mean_over_seeds(binary(rng, seeds, 48, of_seeds, of_levels)).ci95
        held.append(ci95 is not None and ci95[0] <= 0.5 <= ci95[1])
    assert np.mean(held) >= 0.92


def test_the_interval_of_a_paired_gain_holds_the_effect_and_no_more_than_it_must():
    rng = np.random.default_rng(11)
    held, of_pairs, of_unpaired = [], [], []
    for _ in range(400):
        hard = rng.random((1, 48))
        luck = 0.1 * rng.standard_normal((5, 1))
        noise = 0.05 * rng.standard_normal((2, 5, 48))
        before, after = hard + luck + noise[0], hard + luck + 0.1 + noise[1]
        low, high = interval(after - before)
        held.append(low <= 0.1 <= high)
        of_pairs.append(high - low)
        alone = interval(after)
        of_unpaired.append(alone[1] - alone[0])
    assert 0.92 <= np.mean(held) <= 0.98
    assert np.mean(of_pairs) < 0.2 * np.mean(of_unpaired)


def test_seeds_are_the_observations_and_not_their_episodes():
    """Two seeds that differ much tell little, on however many levels."""
    few = interval(np.repeat([[0.2], [0.8]], 10, axis=1))
    many = interval(np.repeat([[0.2], [0.8]], 10_000, axis=1))
    assert many == pytest.approx(few)
    assert many[1] - many[0] > 1


def test_no_interval_where_none_can_be_told():
    assert mean_over_seeds([[1, 0, 1]]).ci95 is None
    assert mean_over_seeds([[1, 1], [1, 1]]).ci95 is None
    assert iqm([[0.5]]).ci95 is None
    assert probability_of_improvement([[0.5]], [[0.6], [0.7]]).ci95 is None
    assert probability_of_improvement([[0.5], [0.4]], [[0.6], [0.7]]).ci95 is None


@pytest.mark.parametrize("scores", [[], [[]], [[np.nan, 1.0]], [1.0, 2.0]])
def test_what_is_no_table_of_results_is_refused(scores):
    with pytest.raises(ValueError, match="finite results"):
        mean_over_seeds(scores)


def test_the_interquartile_mean_is_that_of_the_middle_half():
    scores = np.array([[0.0, 0.1], [0.2, 0.3], [0.4, 0.5], [0.6, 9.0]])
    assert iqm(scores).value == pytest.approx((0.2 + 0.3 + 0.4 + 0.5) / 4)


def test_the_probability_of_improvement_is_mann_and_whitneys():
    rng = np.random.default_rng(2)
    before, after = rng.random((7, 1)), rng.random((9, 1)) + 0.2
    u = stats.mannwhitneyu(after[:, 0], before[:, 0]).statistic
    assert probability_of_improvement(before, after).value == pytest.approx(u / 63)


def test_of_environments_the_probability_is_the_mean():
    before, after = [[0.0, 1.0], [0.1, 1.0]], [[1.0, 0.0], [1.0, 0.0]]
    assert probability_of_improvement(before, after).value == pytest.approx(0.5)
    assert probability_of_improvement(before, before).value == pytest.approx(0.5)


def test_both_are_what_rliable_finds():
    """Figures of rliable 1.2.0 (beside pandas 2), 20,000 draws."""
    rng = np.random.default_rng(7)
    one = rng.beta(5, 3, (8, 3))
    other = np.clip(one[:6] * 0.8 + 0.1 * rng.standard_normal((6, 3)) + 0.15, 0, 1)
    found = iqm(one)
    assert found.value == pytest.approx(0.62667169)
    assert found.ci95 == pytest.approx((0.55580332, 0.70008823), abs=0.01)
    better = probability_of_improvement(one, other)
    assert better.value == pytest.approx(0.51388889)
    assert better.ci95 == pytest.approx((0.33333333, 0.69444444), abs=0.03)
