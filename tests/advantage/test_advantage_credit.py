"""Statistics that `adaptive_credit` adapts to."""

import json
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.advantage import AdvantageError, CreditReliability, ProgressDiscount
from vagen.advantage.credit import Moments

few = settings(max_examples=25, deadline=None)
pair = st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32))


@few
@given(
    parts=st.lists(st.lists(pair, max_size=6), max_size=5),
    decay=st.sampled_from([0.0, 0.5, 0.9, 1]),
)
def test_moments_equal_their_definition(parts, decay):
    """Weights, means and central moments over all pairs ever seen, each with its own weight."""
    moments = Moments()
    for part in parts:
        moments.add(part, decay)
    weighted = [
        (decay ** (len(parts) - 1 - i), x, y) for i, part in enumerate(parts) for x, y in part
    ]
    total = math.fsum(w for w, _, _ in weighted)
    assert moments.weight == pytest.approx(total)
    if not total:
        return
    squares = math.fsum(w * w for w, _, _ in weighted)
    assert moments.effective_count == pytest.approx(total**2 / squares)
    mean_x = math.fsum(w * x for w, x, _ in weighted) / total
    mean_y = math.fsum(w * y for w, _, y in weighted) / total
    assert moments.mean_x == pytest.approx(mean_x, abs=1e-9)
    assert moments.mean_y == pytest.approx(mean_y, abs=1e-9)
    for found, power in ((moments.xx, (2, 0)), (moments.yy, (0, 2)), (moments.xy, (1, 1))):
        expected = math.fsum(
            w * (x - mean_x) ** power[0] * (y - mean_y) ** power[1] for w, x, y in weighted
        )
        assert found == pytest.approx(expected, abs=1e-9)


def batch(slope: float, noise: float, count: int, seed: int, turns: int = 2):
    """Returns that are a multiple of the values plus noise."""
    random = Random(seed)
    values = [[random.gauss(1, 2) for _ in range(turns)] for _ in range(count)]
    returns = [[slope * v + random.gauss(0, noise) for v in row] for row in values]
    return returns, values


@pytest.mark.parametrize(
    ("slope", "noise", "low", "high"),
    [
        (1.0, 0.0, 0.499, 0.501),  # calibrated: all the way to lam_min
        (1.0, 2.0, 0.4, 0.65),  # calibrated though the return is noisy
        (0.5, 0.5, 0.7, 0.8),  # values too far apart: half the slope
        (0.0, 1.0, 1.0, 1.0),  # says nothing: Monte Carlo
        (-1.0, 0.5, 1.0, 1.0),  # says the opposite: never trusted
        (3.0, 0.5, 0.5, 0.5),  # values too close together: cut at slope 1
    ],
)
def test_lambda_falls_as_the_critic_proves_calibrated(slope, noise, low, high):
    reliability = CreditReliability(lam_min=0.5)
    for seed in range(4):
        reliability.update(*batch(slope, noise, 100, seed))
    for lam in reliability.lams(2):
        assert low <= lam <= high
    assert reliability.lams(3)[2] == 1.0, "a turn never seen"


def test_a_correlation_that_may_be_chance_does_not_count():
    """Of 8 trajectories even a perfect one is below three standard errors."""
    few_seen, more_seen = CreditReliability(), CreditReliability()
    few_seen.update(*batch(1.0, 0.0, 8, 0))
    more_seen.update(*batch(1.0, 0.0, 9, 0))
    assert few_seen.lams(2) == [1.0, 1.0]
    assert more_seen.lams(2) == pytest.approx([0.5, 0.5])


def test_old_batches_are_forgotten():
    reliability = CreditReliability()
    reliability.update(*batch(1.0, 0.1, 100, 0))
    assert reliability.lams(1)[0] < 0.6
    for seed in range(1, 12):
        reliability.update(*batch(-1.0, 0.1, 100, seed))
    assert reliability.lams(1)[0] == 1.0


def test_constant_values_or_returns_give_lambda_one():
    reliability = CreditReliability()
    reliability.update([[1.0, 2.0]] * 50, [[0.5, v] for v in range(50)])
    assert reliability.lams(2) == [1.0, 1.0]


def test_lam_min_one_is_a_constant():
    reliability = CreditReliability(lam_min=1.0)
    reliability.update(*batch(1.0, 0.0, 100, 0))
    assert reliability.slopes(2) == pytest.approx([1.0, 1.0])
    assert reliability.lams(2) == [1.0, 1.0]


@pytest.mark.parametrize("mode", ["lambda", "gamma"])
def test_a_saved_state_goes_on_identically(mode):
    def make():
        return CreditReliability(lam_min=0.3) if mode == "lambda" else ProgressDiscount()

    def feed(credit, seed):
        if mode == "lambda":
            credit.update(*batch(0.7, 0.5, 30, seed, turns=1 + seed))
        else:
            credit.update("game", batch(1.0, 0.0, 5, seed, turns=4)[0])

    def read(credit):
        return credit.lams(5) if mode == "lambda" else credit.gammas("game", [0.0, 0.2, 0.9])

    straight, before = make(), make()
    for seed in range(2):
        feed(straight, seed)
        feed(before, seed)
    after = make()
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    feed(straight, 2)
    feed(after, 2)
    assert read(after) == read(straight) != read(make())
    assert after.state_dict() == straight.state_dict()
    other = "gamma" if mode == "lambda" else "lambda"
    with pytest.raises(AdvantageError, match=f"'{other}'; it must be '{mode}'"):
        after.load_state_dict({"type": other})


def test_bad_statistics_are_refused():
    with pytest.raises(AdvantageError, match="give one of each for every turn"):
        CreditReliability().update([[1.0]], [[1.0, 2.0]])
    with pytest.raises(AdvantageError, match="value nan of turn 1; not finite"):
        CreditReliability().update([[1.0, 2.0]], [[1.0, math.nan]])
    with pytest.raises(AdvantageError, match=r"gamma = 1.0; it must be in \(0.85, 0.995\)"):
        ProgressDiscount(gamma=1.0)


potentials = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=6)


@few
@given(seen=st.lists(potentials, max_size=4), row=potentials)
def test_discounts_stay_between_their_limits(seen, row):
    discount = ProgressDiscount()
    discount.update("game", seen)
    gammas = discount.gammas("game", row)
    assert len(gammas) == len(row) - 1
    assert all(0.85 <= gamma <= 0.995 for gamma in gammas)
    assert set(discount.gammas("another game", row)) == {0.95}, "nothing seen of it yet"


@few
@given(row=potentials, future=st.permutations(range(6)), cut=st.integers(1, 5))
def test_a_discount_depends_on_the_past_only(row, future, cut):
    """Entry k reads potentials up to k + 1: whatever is shuffled after does not reach it."""
    discount = ProgressDiscount()
    discount.update("game", [[0.0, 0.3, 0.1, 0.9], [0.0, 0.5]])
    shuffled = row[: cut + 1] + [row[i] for i in future if cut < i < len(row)]
    assert discount.gammas("game", row)[:cut] == discount.gammas("game", shuffled)[:cut]


def test_more_progress_discounts_less():
    discount = ProgressDiscount()
    discount.update("game", [[0.0, 0.2], [0.0, 0.4], [0.0, 0.6]])
    low, mean, high = (discount.gammas("game", [0.0, x])[0] for x in (0.1, 0.4, 0.9))
    assert low < mean < high
    assert mean == pytest.approx(0.95)
