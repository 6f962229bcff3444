"""Estimators over part of the trajectories at a time.

What an estimator needs beside its arguments (float64 copies, positions of the selected tokens) is
several times their size. So it runs over chunks of whole trajectories: memory is bounded, and time
is a constant per chunk.

Shape legend: B rows, T tokens of the padded row, L trajectories.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vagen.advantage.inputs import AdvantageInputs, Estimate

CHUNK_TOKENS = 1 << 16
"""Padded tokens of a chunk, unless one trajectory has more."""

Estimator = Callable[[AdvantageInputs], Estimate]


def row_slices(x_BT: Tensor) -> Iterator[slice]:
    """Consecutive rows, `CHUNK_TOKENS` tokens at a time but at least one row."""
    size = max(1, CHUNK_TOKENS // max(1, x_BT.shape[1]))
    for start in range(0, x_BT.shape[0], size):
        yield slice(start, start + size)


def chunks(inputs: AdvantageInputs) -> Iterator[tuple[slice | Tensor, AdvantageInputs]]:
    """Yields rows and what an estimator reads of them, as float64.

    Each trajectory is in one chunk with all its rows, which follow each other in the order given.
    """
    line_of_row = inputs.line_of_row
    counts = torch.bincount(line_of_row, minlength=inputs.counted.numel()).tolist()
    ordered = bool((line_of_row[1:] >= line_of_row[:-1]).all())
    order = None if ordered else line_of_row.argsort(stable=True)
    size = max(1, CHUNK_TOKENS // max(1, inputs.rewards.shape[1]))
    first_line = first_row = row = 0
    for line, count in enumerate(counts):
        if row > first_row and row + count - first_row > size:
            yield _chunk(inputs, order, slice(first_row, row), slice(first_line, line))
            first_line, first_row = line, row
        row += count
    if row > first_row:
        yield _chunk(inputs, order, slice(first_row, row), slice(first_line, len(counts)))


def _chunk(
    inputs: AdvantageInputs, order: Tensor | None, place: slice, lines: slice
) -> tuple[slice | Tensor, AdvantageInputs]:
    rows = place if order is None else order[place]

    def part(x: Tensor | None, which: slice | Tensor) -> Tensor | None:
        return None if x is None else x[which]

    values = part(inputs.values, rows)
    return rows, replace(
        inputs,
        rewards=inputs.rewards[rows].double(),
        values=None if values is None else values.double(),
        loss_mask=inputs.loss_mask[rows],
        turn_end_mask=part(inputs.turn_end_mask, rows),
        attention_mask=inputs.attention_mask[rows],
        anchor_ids=part(inputs.anchor_ids, rows),
        line_of_row=inputs.line_of_row[rows] - lines.start,
        counted=inputs.counted[lines],
        group_ids=part(inputs.group_ids, lines),
        bootstrap_values=part(inputs.bootstrap_values, lines),
        baselines=part(inputs.baselines, lines),
        turn_lams=part(inputs.turn_lams, lines),
        turn_gammas=part(inputs.turn_gammas, lines),
    )


def by_chunks(function: Callable[[AdvantageInputs], tuple[Tensor, Tensor]]) -> Estimator:
    """Turns an estimator of one trajectory at a time into one of the whole batch.

    Its advantages come out as float64 [B, T], to be whitened, its returns in the result's type.
    """

    @functools.wraps(function)
    def whole(inputs: AdvantageInputs) -> Estimate:
        advantages = torch.empty_like(inputs.rewards, dtype=torch.float64)
        returns = torch.empty_like(inputs.rewards, dtype=inputs.dtype)
        for rows, part in chunks(inputs):
            raw, targets = function(part)
            advantages[rows] = raw
            returns[rows] = targets.to(inputs.dtype)
        return Estimate(advantages, returns)

    return whole
