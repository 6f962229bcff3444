"""Estimators over part of the trajectories at a time.

What an estimator needs beside its arguments (float64 copies, positions of the selected tokens) is
several times their size. So it runs over chunks of whole trajectories: memory is bounded, and time
is a constant per chunk.

Shape legend: B rows, T tokens of the padded row, L trajectories.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from vagen.advantage.inputs import AdvantageEstimate, AdvantageInputs

CHUNK_TOKENS = 1 << 16
"""Padded tokens of a chunk, unless one trajectory has more."""


def row_slices(x_BT: Tensor) -> Iterator[slice]:
    """Consecutive rows, `CHUNK_TOKENS` tokens at a time but at least one row."""
    size = max(1, CHUNK_TOKENS // max(1, x_BT.shape[1]))
    for start in range(0, x_BT.shape[0], size):
        yield slice(start, start + size)


def chunks(inputs: AdvantageInputs) -> Iterator[tuple[slice | Tensor, AdvantageInputs]]:
    """Yields rows and what an estimator reads of them, as float64.

    Each trajectory is in one chunk with all its rows, which follow each other in the order given.
    """
    ids = inputs.trajectory_ids
    counts = torch.bincount(ids, minlength=inputs.counted.numel()).tolist()
    order = None if bool((ids[1:] >= ids[:-1]).all()) else ids.argsort(stable=True)
    size = max(1, CHUNK_TOKENS // max(1, inputs.rewards.shape[1]))
    first = first_row = row = 0
    for trajectory, count in enumerate(counts):
        if row > first_row and row + count - first_row > size:
            yield _chunk(inputs, order, slice(first_row, row), slice(first, trajectory))
            first, first_row = trajectory, row
        row += count
    if row > first_row:
        yield _chunk(inputs, order, slice(first_row, row), slice(first, len(counts)))


def _chunk(
    inputs: AdvantageInputs, order: Tensor | None, place: slice, trajectories: slice
) -> tuple[slice | Tensor, AdvantageInputs]:
    rows = place if order is None else order[place]
    places = {"row": rows, "trajectory": trajectories}
    parts: dict[str, Any] = {}
    for field in fields(inputs):
        value, place_of = getattr(inputs, field.name), places.get(field.metadata["belongs_to"])
        if value is not None and place_of is not None:
            parts[field.name] = value[place_of]
    parts["trajectory_ids"] = parts["trajectory_ids"] - trajectories.start
    for name in ("rewards", "task_rewards", "values"):
        if name in parts:
            parts[name] = parts[name].double()
    return rows, replace(inputs, **parts)


def by_chunks(
    function: Callable[[AdvantageInputs], tuple[Tensor, Tensor]],
) -> Callable[[AdvantageInputs], AdvantageEstimate]:
    """Turns an estimator of one trajectory at a time into one of the whole batch.

    Its advantages come out as float64 [B, T], to be whitened, its returns in the result's type.
    """

    @functools.wraps(function)
    def whole(inputs: AdvantageInputs) -> AdvantageEstimate:
        advantages = torch.empty_like(inputs.rewards, dtype=torch.float64)
        returns = torch.empty_like(inputs.rewards, dtype=inputs.dtype)
        for rows, part in chunks(inputs):
            raw, targets = function(part)
            advantages[rows] = raw
            returns[rows] = targets.to(inputs.dtype)
        return AdvantageEstimate(advantages, returns)

    return whole
