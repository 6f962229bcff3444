"""Beginnings of first prompts, computed once for all conversations that begin alike.

Episodes of one environment share their system prompt; episodes of one level share all of the first
message. Only text is shared: what follows an image depends on the image.

Shape legend: P tokens of a beginning.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

MOST = 8
"""Beginnings remembered at once."""


class Prefixes:
    """Keys and values of beginnings, by their ids."""

    def __init__(self) -> None:
        self._known: list[tuple[NDArray[np.int32], Tensor]] = []

    def __len__(self) -> int:
        return len(self._known)

    @property
    def full(self) -> bool:
        """Whether no further one is remembered."""
        return len(self._known) >= MOST

    def add(self, ids: NDArray[np.int32], keys_values: Tensor) -> None:
        """Remembers a beginning: ids int32 [P], and what `SlotCache.read` gave."""
        self._known.append((ids, keys_values))

    def clear(self) -> None:
        """Forgets all: the weights may change."""
        self._known.clear()

    def longest(self, ids: NDArray[np.int32]) -> Tensor | None:
        """Keys and values of the longest known beginning of `ids`, [..., P, D]; None if none is."""
        best, best_length = None, 0
        for known, keys_values in self._known:
            reach = min(len(known), len(ids))
            differs = np.flatnonzero(known[:reach] != ids[:reach])
            length = int(differs[0]) if len(differs) else reach
            if length > best_length:
                best, best_length = keys_values, length
        return None if best is None else best[..., :best_length, :]


def common_length(beginnings: Sequence[NDArray[np.int32]]) -> int:
    """Number of tokens that all of some beginnings, at least one, have in common."""
    shortest = min(len(ids) for ids in beginnings)
    same = np.stack([ids[:shortest] for ids in beginnings])
    differs = (same != same[0]).any(0)
    return int(differs.argmax()) if differs.any() else shortest
