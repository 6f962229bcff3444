"""Draws training levels by how much can be learnt from them (`data.curriculum`).

A level has the weight `p (1 - p)`, the variance of success: levels that always or never succeed
teach nothing (learnability: Rutherford et al., "No Regrets", arXiv 2408.15099, eq. 4; Tzannetos et
al., "Proximal Curriculum", arXiv 2304.12877). Since levels are rarely repeated, p is estimated for
buckets of levels of similar difficulty in one environment:

    p = (s + 1) / (n + 2),   s = sum_i d^i successes_i,   n = sum_i d^i episodes_i

over the episodes of i + 1 iterations ago, with discount d. For unplayed buckets p is 1/2. Of N
levels the l-th is drawn with probability

    w_l = (1 - u) p_l (1 - p_l) / sum_m p_m (1 - p_m) + u / N,   u the uniform share,

without replacement in an iteration (while others remain). The draws depend only on the run's seed,
the iteration and the committed statistics of the previous rollout.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vagen.config.data_options import CurriculumConfig
from vagen.rollout.levels import LevelSet
from vagen.rollout.types import Status, Trajectory

BucketCounts = Mapping[str, tuple[float, float]]
"""Discounted successes and episodes by bucket."""
DISCOUNT, UNIFORM = 0.8, 0.2
"""d and u above."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The level distribution of an iteration."""

    config: CurriculumConfig
    levels: Sequence[LevelSet]
    seen: BucketCounts
    """Statistics at the start of the iteration."""
    seed: int
    """Seed of the iteration's draws."""

    def order(self) -> NDArray[np.int64] | None:
        """Indices of all training levels in the order drawn; None for a uniform distribution."""
        if not self.config.enable:
            return None
        buckets = buckets_of(self.config, self.levels)
        return weighted_order(draw_weights([*buckets.values()], self.seen), self.seed)

    def count(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[BucketCounts | None, dict[str, float]]:
        """Statistics for the next iteration, and metrics; None and empty without a curriculum.

        Args:
            trajectories: All played trajectories; failed environments do not count.
        """
        valid = [t for t in trajectories if t.status is not Status.ENV_ERROR]
        if not self.config.enable:
            return None, {}
        names = buckets_of(self.config, self.levels)
        buckets = [names[t.config_id, t.seed] for t in valid]
        seen = count_successes(self.seen, buckets, [t.success for t in valid])
        metrics = {
            f"curriculum/share/{name}": buckets.count(name) / len(valid) for name in sorted(buckets)
        }
        metrics |= {f"curriculum/success/{name}": _rate(*seen[name]) for name in seen}
        for level_set in self.levels:
            levels = {ref.seed: ref.difficulty for ref in level_set.splits["train"]}
            drawn = [levels[t.seed] for t in valid if t.config_id == level_set.config_id]
            if drawn and drawn[0]:
                mean = float(np.mean([difficulty[0] for difficulty in drawn]))
                metrics[f"curriculum/difficulty/{level_set.config_id}"] = mean
        return seen, metrics


def buckets_of(config: CurriculumConfig, levels: Sequence[LevelSet]) -> dict[tuple[str, int], str]:
    """Bucket of each training level: `<config id>/<number>`, where 0 is the easiest.

    Levels sorted by difficulty are cut into parts of equal size. Equally difficult ones join the
    first of them, so a bucket may be empty.
    """
    buckets = {}
    for level_set in levels:
        refs = level_set.splits["train"]
        ranks = sorted(ref.difficulty for ref in refs)
        for ref in refs:
            number = bisect_left(ranks, ref.difficulty) * config.buckets // len(refs)
            buckets[level_set.config_id, ref.seed] = f"{level_set.config_id}/{number}"
    return buckets


def draw_weights(buckets: Sequence[str], seen: BucketCounts) -> NDArray[np.float64]:
    """Probability [N] of each level from its bucket; sums to 1."""
    rates = np.array([_rate(*seen.get(name, (0.0, 0.0))) for name in buckets])
    learnable = rates * (1 - rates)
    return (1 - UNIFORM) * learnable / learnable.sum() + UNIFORM / len(buckets)


def weighted_order(weights: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Indices drawn without replacement, each in proportion to its weight among the rest.

    Sorts by exponential random times with the weights as rates (Efraimidis and Spirakis 2006,
    algorithm A).
    """
    rng = np.random.Generator(np.random.Philox(key=seed))
    return np.argsort(rng.standard_exponential(len(weights)) / weights, kind="stable")


def count_successes(
    seen: BucketCounts, buckets: Sequence[str], successes: Sequence[bool]
) -> BucketCounts:
    """The statistics after one more iteration.

    Args:
        seen: Previous statistics.
        buckets: Bucket of each episode.
        successes: Success of each episode.
    """
    played = Counter(buckets)
    won = Counter(name for name, success in zip(buckets, successes, strict=True) if success)
    return {
        name: (DISCOUNT * s + won[name], DISCOUNT * n + played[name])
        for name in sorted({*seen, *played})
        for s, n in [seen.get(name, (0.0, 0.0))]
    }


def _rate(successes: float, episodes: float) -> float:
    """Posterior mean with a uniform prior."""
    return (successes + 1) / (episodes + 2)
