"""Statistics over seeds: a seed is one observation, on any number of levels.

Shapes: S seeds, L levels, E environments. Sources: A. B. Owen, "The pigeonhole bootstrap", Annals
of Applied Statistics 1 (2007); A. C. Cameron, J. B. Gelbach, D. L. Miller, "Robust inference with
multiway clustering", JBES 29 (2011); W. G. Howe, JASA 69 (1974), 789-794; G. Y. Zou, A. Donner,
Statistics in Medicine 27 (2008), 1693-1702; R. Agarwal et al., "Deep reinforcement learning at the
edge of the statistical precipice", NeurIPS 2021. `rliable` of the last one is not used, since it
cannot be imported with pandas 3 and ignores its random state, so results would not be reproducible.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vagen.tracking.stats import Interval

_RESAMPLES = 5_000


@final
@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure and its 95 % interval over seeds; None if seeds do not determine one."""

    value: float
    ci95: Interval | None


def mean_over_seeds(scores: ArrayLike) -> IntervalEstimate:
    """Mean of results of all seeds on the same levels, with an interval over seeds and levels.

    The variance of a bootstrap over seeds is the variance of the seeds' means divided by their
    number, and likewise for levels; a mean needs no resampling. Both include the noise of single
    results, which is subtracted once (Cameron, Gelbach, Miller). Percentiles of three seeds are too
    few (their range contains the truth three times in four). So each part is multiplied by its own
    Student quantile, and the two are added as squares (Howe 1974; Zou and Donner 2008).

    >>> mean_over_seeds([[1, 0], [1, 1], [1, 0]]).value
    0.6666666666666666

    Args:
        scores: A result, or a paired difference, per seed and level, shape [S, L].

    Returns:
        The mean; its interval is None for a single seed or if all results are equal.

    Raises:
        ValueError: There are no results, or one is not finite.
    """
    from scipy.special import stdtrit  # slow to import

    scores_SL = _finite(scores, 2)
    seeds, levels = scores_SL.shape
    mean = float(scores_SL.mean())
    if seeds < 2 or np.ptp(scores_SL) == 0:
        return IntervalEstimate(mean, None)
    by_seeds = float(stdtrit(seeds - 1, 0.975)) ** 2 * _squared_error(scores_SL.mean(1))
    if levels == 1:
        return _around(mean, by_seeds)
    of_levels, of_single = _squared_error(scores_SL.mean(0)), _squared_error(scores_SL.ravel())
    wide = float(stdtrit(levels - 1, 0.975)) ** 2
    squared = max(by_seeds + wide * max(of_levels - of_single, 0.0), wide * of_levels)
    return _around(mean, squared)


def iqm(scores: ArrayLike) -> IntervalEstimate:
    """Interquartile mean over seeds and environments, with `rliable`'s stratified bootstrap.

    Args:
        scores: Mean result per seed and environment, shape [S, E]; seeds are resampled separately
            for each environment.

    Raises:
        ValueError: See `mean_over_seeds`.
    """
    from scipy.stats import trim_mean

    scores_SE = _finite(scores, 2)
    value = float(trim_mean(scores_SE.ravel(), 0.25))
    seeds, environments = scores_SE.shape
    if seeds < 2:
        return IntervalEstimate(value, None)
    drawn = np.random.default_rng(0).integers(0, seeds, (_RESAMPLES, seeds, environments))
    resampled = scores_SE[drawn, np.arange(environments)].reshape(_RESAMPLES, -1)
    return IntervalEstimate(value, _percentiles(trim_mean(resampled, 0.25, axis=1)))


def probability_of_improvement(baseline: ArrayLike, candidate: ArrayLike) -> IntervalEstimate:
    """Probability that a training of `candidate` beats one of `baseline`; a tie counts half.

    Mean over environments of the Mann-Whitney U divided by the number of pairs, with `rliable`'s
    stratified bootstrap.

    Args:
        baseline: Mean result per seed and environment, shape [S, E].
        candidate: Likewise, with the same environments; seeds may differ.

    Raises:
        ValueError: See `mean_over_seeds`.
    """
    before, after = _finite(baseline, 2), _finite(candidate, 2)
    wins_abE = (after[:, None] > before[None]) + 0.5 * (after[:, None] == before[None])
    value = float(wins_abE.mean())
    if min(len(before), len(after)) < 2:
        return IntervalEstimate(value, None)
    rng = np.random.default_rng(0)
    environments = before.shape[1]

    def shares(seeds: int) -> NDArray[np.float64]:
        """Share of each seed in the resamples, shape [resamples, E, S]."""
        even = np.full(seeds, 1 / seeds)
        return rng.multinomial(seeds, even, (_RESAMPLES, environments)) / seeds

    drawn = np.einsum("rea,abe->reb", shares(len(after)), wins_abE)
    return IntervalEstimate(value, _percentiles((drawn * shares(len(before))).sum(2).mean(1)))


def _squared_error(values: NDArray[np.float64]) -> float:
    """Squared standard error of a mean."""
    return float(values.var(ddof=1)) / values.size


def _around(mean: float, squared_half: float) -> IntervalEstimate:
    half = math.sqrt(squared_half)
    return IntervalEstimate(mean, (mean - half, mean + half))


def _percentiles(draws: NDArray[np.float64]) -> Interval | None:
    """Percentile interval; None if all resamples are equal, as for too few seeds."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return None if low == high else (float(low), float(high))


def _finite(scores: ArrayLike, dimensions: int) -> NDArray[np.float64]:
    found = np.asarray(scores, np.float64)
    if found.ndim != dimensions or not found.size or not np.isfinite(found).all():
        raise ValueError(
            f"statistics over seeds need finite results in {dimensions} dimensions, not of shape "
            f"{list(found.shape)}"
        )
    return found
