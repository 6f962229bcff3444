"""Confidence intervals of success rates and of their differences."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]

_Z95 = 1.959963984540054
_Z80 = 0.8416212335729143
_CHUNK = 1_000
_MIN_LEVELS = 6
"""With fewer differences, all of one sign, p is too large: 2 (1/2)^5 is .06."""


class PairedGain(NamedTuple):
    """Mean difference on the same levels and its interval."""

    gain: float
    ci95: Interval


class GainOfSeeds(NamedTuple):
    """Mean difference of trainings with the same seeds, and its uncertainty over seeds."""

    gain: float
    ci95: Interval | None
    """Interval of the mean over seeds; None for one seed."""
    t: float | None
    """Student's t for a mean of 0; None for one seed or equal differences."""


def binomial_ci95(successes: int, count: int) -> Interval:
    """Wilson's 95 % interval of a success rate.

    Args:
        successes: Number of successes.
        count: Number of independent trials, at least 1.

    Raises:
        ValueError: `successes` is not within 0 and `count`.

    Source: E. B. Wilson, JASA 22 (1927), 209–212.
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count} trials are not a success rate")
    rate, z2 = successes / count, _Z95**2
    center = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count**2))
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == count else center + half
    return low, high


def success_ci95(rates: Sequence[float]) -> Interval:
    """95 % interval of the mean success over levels.

    Wilson's if each level succeeded or failed. If some levels have several attempts, which are not
    independent, it resamples levels (`paired_bootstrap`).

    Args:
        rates: Success per level, shape [N].
    """
    if all(rate in (0, 1) for rate in rates):
        return binomial_ci95(int(sum(rates)), len(rates))
    return paired_bootstrap(np.zeros(len(rates)), rates, seed=0).ci95


def pass_at_k(levels: Sequence[Sequence[bool]], max_k: int) -> dict[str, dict[str, float]]:
    """Success over several attempts, for k = 1, 2, 4 … `max_k`; empty for one attempt.

    `pass_at`: share of levels where at least one of k attempts succeeds; `pass_all`: where all k do
    (pass^k). Both are unbiased: means over all choices of k from a level's n attempts with c
    successes, `1 - C(n-c, k) / C(n, k)` and `C(c, k) / C(n, k)`. Levels with fewer than k attempts
    are left out.

    Args:
        levels: Outcomes of the attempts, by level.
        max_k: The largest k.

    Source: M. Chen et al., arXiv 2107.03374 (pass@k); S. Yao et al., arXiv 2406.12045 (pass^k).
    """
    return {
        name: {k: math.fsum(found) / len(found) for k, found in by_k.items()}
        for name, by_k in _rates_of_attempts(levels, max_k).items()
    }


def attempts_ci95(levels: Sequence[Sequence[bool]], max_k: int) -> dict[str, dict[str, Interval]]:
    """95 % intervals over levels of `pass_at_k`, named `pass_at_ci95`, ..."""
    return {
        f"{name}_ci95": {k: success_ci95(found) for k, found in by_k.items()}
        for name, by_k in _rates_of_attempts(levels, max_k).items()
    }


def _rates_of_attempts(
    levels: Sequence[Sequence[bool]], max_k: int
) -> dict[str, dict[str, list[float]]]:
    """Per level, by name and k: share of choices of k attempts with any success, or with all."""
    if max_k == 1:
        return {}
    found: dict[str, dict[str, list[float]]] = {"pass_at": {}, "pass_all": {}}
    for k in sorted({*(2**i for i in range(max_k.bit_length())), max_k}):
        tried = [(len(wins), sum(wins)) for wins in levels if len(wins) >= k]
        if tried:
            found["pass_at"][str(k)] = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in tried]
            found["pass_all"][str(k)] = [math.comb(c, k) / math.comb(n, k) for n, c in tried]
    return found


def levels_needed(baseline: ArrayLike, candidate: ArrayLike) -> int | None:
    """Number of levels to detect this difference at the 5 % level with a power of 80 %.

    `((z_.975 + z_.8) s / gain)²`, with the standard deviation `s` of the paired differences.

    Args:
        baseline: Result per level, shape [N].
        candidate: Result per level, in the same order, shape [N].

    Returns:
        None if unknown: for one level or no difference.

    Raises:
        ValueError: See `paired_bootstrap`.

    Source: J. Cohen, Statistical Power Analysis for the Behavioral Sciences (1988), chapter 2.
    """
    difference = _paired(baseline, candidate)
    gain = float(difference.mean())
    if difference.size < 2 or gain == 0:
        return None
    spread = float(difference.std(ddof=1))
    return max(_MIN_LEVELS, math.ceil(((_Z95 + _Z80) * spread / gain) ** 2))


def paired_seeds(baseline: ArrayLike, candidate: ArrayLike) -> GainOfSeeds:
    """Mean of `candidate - baseline` over seeds, with Student's 95 % interval.

    A seed is one observation for any number of levels, since methods vary more over seeds than test
    levels show.

    Args:
        baseline: Result per seed, shape [S].
        candidate: Result per seed, in the same order, shape [S].

    Raises:
        ValueError: See `paired_bootstrap`.
    """
    from scipy.special import stdtrit  # slow to import

    difference = _paired(baseline, candidate)
    gain, count = float(difference.mean()), difference.size
    if count < 2:
        return GainOfSeeds(gain, None, None)
    error = float(difference.std(ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, 0.975)) * error
    return GainOfSeeds(gain, (gain - half, gain + half), gain / error if error else None)


def paired_bootstrap(
    baseline: ArrayLike, candidate: ArrayLike, *, seed: int, resamples: int = 10_000
) -> PairedGain:
    """Mean of `candidate - baseline` over the same levels, with its 95 % percentile interval.

    Resamples levels with both results together, so that difficulty common to both does not widen
    the interval.

    Args:
        baseline: Result per level, e.g. success as 0 or 1, shape [N].
        candidate: Result per level, in the same order, shape [N].
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap samples.

    Returns:
        `(gain, (low, high))`.

    Raises:
        ValueError: The two have different lengths, are empty or contain NaN or infinity.

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


def _paired(baseline: ArrayLike, candidate: ArrayLike) -> NDArray[np.float64]:
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
