"""What several seeds tell of a method: a seed is one observation, however many levels it played.

Shapes: S seeds, L levels, E environments. Sources: A. B. Owen, "The pigeonhole bootstrap", Annals
of Applied Statistics 1 (2007); A. C. Cameron, J. B. Gelbach, D. L. Miller, "Robust inference with
multiway clustering", JBES 29 (2011); W. G. Howe, JASA 69 (1974), 789-794; G. Y. Zou, A. Donner,
Statistics in Medicine 27 (2008), 1693-1702; R. Agarwal et al., "Deep reinforcement learning at the
edge of the statistical precipice", NeurIPS 2021. The last one's `rliable` is not used: it cannot be
imported beside pandas 3, and ignores the random state it is given, so no page could be made again.
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
    """A figure and its 95 % interval over seeds; None where seeds do not tell one."""

    value: float
    ci95: Interval | None


def mean_over_seeds(scores: ArrayLike) -> IntervalEstimate:
    """Mean of results that every seed has on the same levels, for other seeds and other levels.

    The bootstrap that draws seeds has the variance of the seeds' means over their number, the one
    that draws levels that of the levels' means over theirs; of a mean neither needs draws. Both
    count the noise of single results, so it is taken off once (Cameron, Gelbach, Miller). Three
    seeds have too few percentiles (the range of three holds the truth three times in four), so
    that each part is weighed with its own Student's quantile, and the two are added as squares
    (Howe 1974; Zou and Donner 2008).

    >>> mean_over_seeds([[1, 0], [1, 1], [1, 0]]).value
    0.6666666666666666

    Args:
        scores: A result, or a paired difference, per seed and level, shape [S, L].

    Returns:
        The mean; its interval is None of a single seed, and where all results are the same.

    Raises:
        ValueError: There is no result, or one is not finite.
    """
    from scipy.special import stdtrit  # slow to load

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
        scores: Mean result per seed and environment, shape [S, E]; seeds are drawn anew for each
            environment.

    Raises:
        ValueError: As for `mean_over_seeds`.
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
    """How likely a training of `candidate` does better than one of `baseline`, a tie counting half.

    Mean over environments of Mann and Whitney's U over the number of pairs, with `rliable`'s
    stratified bootstrap.

    Args:
        baseline: Mean result per seed and environment, shape [S, E].
        candidate: The same of the other, with as many environments; seeds need not be the same.

    Raises:
        ValueError: As for `mean_over_seeds`.
    """
    before, after = _finite(baseline, 2), _finite(candidate, 2)
    wins_abE = (after[:, None] > before[None]) + 0.5 * (after[:, None] == before[None])
    value = float(wins_abE.mean())
    if min(len(before), len(after)) < 2:
        return IntervalEstimate(value, None)
    rng = np.random.default_rng(0)
    environments = before.shape[1]

    def shares(seeds: int) -> NDArray[np.float64]:
        """How often each seed is drawn, as a share: shape [resamples, E, S]."""
        even = np.full(seeds, 1 / seeds)
        return rng.multinomial(seeds, even, (_RESAMPLES, environments)) / seeds

    drawn = np.einsum("rea,abe->reb", shares(len(after)), wins_abE)
    return IntervalEstimate(value, _percentiles((drawn * shares(len(before))).sum(2).mean(1)))


def _squared_error(values: NDArray[np.float64]) -> float:
    """Square of a mean's standard error."""
    return float(values.var(ddof=1)) / values.size


def _around(mean: float, squared_half: float) -> IntervalEstimate:
    half = math.sqrt(squared_half)
    return IntervalEstimate(mean, (mean - half, mean + half))


def _percentiles(draws: NDArray[np.float64]) -> Interval | None:
    """None where all draws are the same: few seeds cannot be as sure as that."""
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
