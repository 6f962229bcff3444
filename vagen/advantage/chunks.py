"""Runs an estimator over part of the trajectories at a time.

The temporary arrays of an estimator (float64 copies, positions of the selected tokens) are several
times the size of its arguments. Chunks of whole trajectories bound the memory at a constant time
per chunk.

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
"""Padded tokens of a chunk; more if one trajectory has more."""


def row_slices(x_BT: Tensor) -> Iterator[slice]:
    """Slices of consecutive rows with `CHUNK_TOKENS` tokens each, but at least one row."""
    size = max(1, CHUNK_TOKENS // max(1, x_BT.shape[1]))
    for start in range(0, x_BT.shape[0], size):
        yield slice(start, start + size)


def chunks(inputs: AdvantageInputs) -> Iterator[tuple[slice | Tensor, AdvantageInputs]]:
    """Yields the rows of a chunk and its estimator inputs in float64.

    All rows of a trajectory are in one chunk, adjacent and in the given order.
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
    """Applies an estimator of independent trajectories to a whole batch in chunks.

    Advantages are float64 [B, T], to be whitened; returns have the result's type.
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
