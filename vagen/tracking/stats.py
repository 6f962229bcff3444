"""How sure a success rate and a difference of two are."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]

_Z95 = 1.959963984540054
_Z80 = 0.8416212335729143
_CHUNK = 1_000
_LEAST_LEVELS = 6
"""Fewer differences, all of one sign, are not unlikely enough: 2 (1/2)^5 is .06."""


class PairedGain(NamedTuple):
    """Mean difference over the same levels and its interval."""

    gain: float
    ci95: Interval


class GainOfSeeds(NamedTuple):
    """Mean difference of trainings with the same seeds, and how sure it is of another seed."""

    gain: float
    ci95: Interval | None
    """Of the mean over seeds; None of a single one."""
    t: float | None
    """Student's, of a mean of 0; None of a single seed or of equal differences."""


def binomial_ci95(successes: int, count: int) -> Interval:
    """Wilson's 95 % interval of a success rate.

    Args:
        successes: number of successes.
        count: number of independent trials, at least 1.

    Raises:
        ValueError: if `successes` is not within 0 and `count`.

    Source: E. B. Wilson, JASA 22 (1927), 209–212.
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count} trials are no success rate")
    rate, z2 = successes / count, _Z95**2
    center = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count**2))
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == count else center + half
    return low, high


def success_ci95(rates: Sequence[float]) -> Interval:
    """95 % interval of the mean success over levels.

    Wilson's where each level was won or lost; where some were tried several times, attempts at one
    level are no independent trials, and levels are drawn with replacement (`paired_bootstrap`).

    Args:
        rates: success per level, shape [N].
    """
    if all(rate in (0, 1) for rate in rates):
        return binomial_ci95(int(sum(rates)), len(rates))
    return paired_bootstrap(np.zeros(len(rates)), rates, seed=0).ci95


def pass_at_k(levels: Sequence[Sequence[bool]], most: int) -> dict[str, dict[str, float]]:
    """What several attempts at each level tell, for k = 1, 2, 4 … `most`; empty for one attempt.

    `pass_at`: share of levels that at least one of k attempts wins; `pass_all`: that all of k win
    (pass^k). Both are unbiased: means over every choice of k from a level's n attempts with c wins,
    `1 - C(n-c, k) / C(n, k)` and `C(c, k) / C(n, k)`. Levels with fewer attempts than k are left
    out.

    Args:
        levels: outcome of each attempt, by level.
        most: the largest k.

    Source: M. Chen et al., arXiv 2107.03374 (pass@k); S. Yao et al., arXiv 2406.12045 (pass^k).
    """
    if most == 1:
        return {}
    rates = _rates_of_attempts(levels, most)
    return {
        name: {k: math.fsum(found) / len(found) for k, found in by_k.items()}
        for name, by_k in rates.items()
    }


def attempts_ci95(levels: Sequence[Sequence[bool]], most: int) -> dict[str, dict[str, Interval]]:
    """The 95 % intervals over levels of what `pass_at_k` finds, called `pass_at_ci95`, ...

    Args:
        levels: outcome of each attempt, by level.
        most: the largest k.
    """
    if most == 1:
        return {}
    rates = _rates_of_attempts(levels, most)
    return {
        f"{name}_ci95": {k: success_ci95(found) for k, found in by_k.items()}
        for name, by_k in rates.items()
    }


def _rates_of_attempts(
    levels: Sequence[Sequence[bool]], most: int
) -> dict[str, dict[str, list[float]]]:
    """Per level, by name and k: the share of its choices of k that win somewhere, or everywhere."""
    found: dict[str, dict[str, list[float]]] = {"pass_at": {}, "pass_all": {}}
    for k in sorted({*(2**i for i in range(most.bit_length())), most}):
        tried = [(len(wins), sum(wins)) for wins in levels if len(wins) >= k]
        if tried:
            found["pass_at"][str(k)] = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in tried]
            found["pass_all"][str(k)] = [math.comb(c, k) / math.comb(n, k) for n, c in tried]
    return found


def levels_needed(
    baseline: Sequence[float] | ArrayLike, candidate: Sequence[float] | ArrayLike
) -> int | None:
    """Levels that would tell this difference from none: at 5 %, in four of five measurements.

    `((z_.975 + z_.8) s / gain)²`, with the standard deviation `s` of the paired differences.

    Args:
        baseline: result per level, shape [N].
        candidate: result per level, in the same order, shape [N].

    Returns:
        None where nothing is known: of one level, of no difference at all.

    Raises:
        ValueError: as for `paired_bootstrap`.

    Source: J. Cohen, Statistical Power Analysis for the Behavioral Sciences (1988), chapter 2.
    """
    difference = _paired(baseline, candidate)
    gain = float(difference.mean())
    if difference.size < 2 or gain == 0:
        return None
    spread = float(difference.std(ddof=1))
    return max(_LEAST_LEVELS, math.ceil(((_Z95 + _Z80) * spread / gain) ** 2))


def paired_seeds(
    baseline: Sequence[float] | ArrayLike, candidate: Sequence[float] | ArrayLike
) -> GainOfSeeds:
    """Mean of `candidate - baseline` over seeds, with Student's 95 % interval.

    A seed is one observation, however many levels it was measured on: what a method does differs
    more from seed to seed than a test's levels tell.

    Args:
        baseline: result per seed, shape [S].
        candidate: result per seed, in the same order, shape [S].

    Raises:
        ValueError: as for `paired_bootstrap`.
    """
    from scipy.special import stdtrit  # slow to load, for every step

    difference = _paired(baseline, candidate)
    gain, count = float(difference.mean()), difference.size
    if count < 2:
        return GainOfSeeds(gain, None, None)
    error = float(difference.std(ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, 0.975)) * error
    return GainOfSeeds(gain, (gain - half, gain + half), gain / error if error else None)


def paired_bootstrap(
    baseline: Sequence[float] | ArrayLike,
    candidate: Sequence[float] | ArrayLike,
    *,
    seed: int,
    resamples: int = 10_000,
) -> PairedGain:
    """Mean of `candidate - baseline` over the same levels, with its 95 % percentile interval.

    Levels are drawn with replacement, both results of a level together, so that what is hard for
    both does not blur the difference.

    Args:
        baseline: result per level, e.g. success as 0 or 1, shape [N].
        candidate: result per level, in the same order, shape [N].
        seed: of the draws.
        resamples: number of bootstrap samples.

    Returns:
        `(gain, (low, high))`.

    Raises:
        ValueError: if the two have different lengths, are empty or hold NaN or infinity.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    difference = _paired(baseline, candidate)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            difference[
                rng.integers(0, difference.size, (min(_CHUNK, resamples - i), difference.size))
            ].mean(axis=1)
            for i in range(0, resamples, _CHUNK)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return PairedGain(float(difference.mean()), (float(low), float(high)))


def _paired(
    baseline: Sequence[float] | ArrayLike, candidate: Sequence[float] | ArrayLike
) -> NDArray[np.float64]:
    before, after = (np.asarray(x, np.float64) for x in (baseline, candidate))
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(
            f"a paired comparison needs one result per level or seed from both: these have shapes "
            f"{list(before.shape)} and {list(after.shape)}"
        )
    difference = after - before
    if not np.isfinite(difference).all():
        raise ValueError("a paired comparison needs finite results")
    return difference
