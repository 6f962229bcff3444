"""Mean and spread of scores within groups of trajectories.

Shape legend: B trajectories, G groups.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Size, mean and spread of each group, in order of its first trajectory."""

    index: NDArray[np.int64]  # [B] group of each trajectory
    sizes: NDArray[np.int64]  # [G]
    means: NDArray[np.float64]  # [G]
    squares: NDArray[np.float64]  # [G] sums of squared differences from the mean

    @property
    def stds(self) -> NDArray[np.float64]:
        """Unbiased deviations [G] (ddof 1), as in the group-relative estimators and in RAGEN.

        0 for a group of one.
        """
        return np.sqrt(self.squares / np.maximum(self.sizes - 1, 1))

    @property
    def variances(self) -> NDArray[np.float64]:
        """Population variances [G] (ddof 0)."""
        return self.squares / self.sizes


def group_statistics(scores: NDArray[np.float64], group_ids: Sequence[Hashable]) -> GroupStatistics:
    """Size, mean and spread of scores in each group.

    Args:
        scores: [B] floats, scores of trajectories that count.
        group_ids: B ids of any kind.

    Raises:
        ValueError: Unequal lengths.
    """
    if len(scores) != len(group_ids):
        raise ValueError(f"{len(group_ids)} group ids for {len(scores)} scores")
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(name, len(numbers)) for name in group_ids], np.int64)
    sizes = np.bincount(index, minlength=len(numbers))
    means = np.bincount(index, weights=scores, minlength=len(numbers)) / sizes
    squares = np.bincount(index, weights=(scores - means[index]) ** 2, minlength=len(numbers))
    return GroupStatistics(index, sizes, means, np.asarray(squares, np.float64))
