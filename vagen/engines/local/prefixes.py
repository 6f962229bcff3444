"""Key/value caches of common prompt prefixes, computed once.

Episodes of an environment share the system prompt; episodes of a level share the first message.
Only text is shared, as tokens after an image depend on it.

Shape legend: P tokens of a prefix.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

CAPACITY = 8
"""Maximum number of cached prefixes."""


class Prefixes:
    """Keys and values of prefixes, by their token ids."""

    def __init__(self) -> None:
        self._known: list[tuple[NDArray[np.int32], Tensor]] = []

    def __len__(self) -> int:
        return len(self._known)

    @property
    def full(self) -> bool:
        """Whether the cache is full."""
        return len(self._known) >= CAPACITY

    def add(self, ids: NDArray[np.int32], keys_values: Tensor) -> None:
        """Adds a prefix: ids int32 [P], and the result of `SlotCache.read`."""
        self._known.append((ids, keys_values))

    def clear(self) -> None:
        """Empties the cache, as needed before the weights change."""
        self._known.clear()

    def longest(self, ids: NDArray[np.int32]) -> Tensor | None:
        """Keys and values of the longest cached prefix of `ids`, [..., P, D]; else None."""
        best, best_length = None, 0
        for known, keys_values in self._known:
            reach = min(len(known), len(ids))
            differs = np.flatnonzero(known[:reach] != ids[:reach])
            length = int(differs[0]) if len(differs) else reach
            if length > best_length:
                best, best_length = keys_values, length
        return None if best is None else best[..., :best_length, :]


def common_length(beginnings: Sequence[NDArray[np.int32]]) -> int:
    """Length of the longest common prefix of at least one sequence."""
    shortest = min(len(ids) for ids in beginnings)
    same = np.stack([ids[:shortest] for ids in beginnings])
    differs = (same != same[0]).any(0)
    return int(differs.argmax()) if differs.any() else shortest
