"""Rows of different lengths laid end to end, so that no linear layer computes padding.

Episodes of one environment begin with the same text. What all rows of a batch begin with stands
once in the line that the model reads, and gradients of all rows flow back through it.

Shape legend: R rows, T tokens of a row, N tokens of all rows, L tokens of the line (N without the
repeated beginnings), M action tokens (those the policy loss reads).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vagen.engines.local.prefixes import common_length
from vagen.models.attention import segments_of
from vagen.models.processor import ProcessedImage, Processor
from vagen.models.vision import image_inputs
from vagen.rollout.types import TokenRow

ROW_FIELDS = ("loss_mask", "rollout_logprobs", "turn_index")
"""Fields of a row that can be read like columns."""


SHARED_LEAST = 0.1
"""A beginning is shared if this share of all tokens is saved: attention has to be masked for it."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Model inputs of some rows, and where their sampled tokens are."""

    inputs: dict[str, Any]
    """Keyword arguments of the backbone."""
    lengths: list[int]
    """Tokens T of each row."""
    places: Tensor | None
    """int64 [N]: place in the line of each token of the rows; None if they are the line."""
    actions: Tensor
    """int64 [M]: place of each action token among the tokens of all rows."""
    predictors: Tensor
    """int64 [M]: place in the line of the token before it, whose hidden state predicts it."""
    targets: Tensor
    """int64 [M]: ids of the action tokens."""
    row_of: Tensor
    """int64 [M]: row of each action token, counted within this batch."""

    def spread(self, line: Tensor) -> Tensor:
        """What the model says at the line's tokens [L, ...], at the tokens of all rows [N, ...]."""
        return line if self.places is None else line.index_select(0, self.places)

    def gather(self, rows: Sequence[TokenRow], column: str) -> Tensor:
        """A column (or one of `ROW_FIELDS`) of the rows at the action tokens, float32 [M]."""
        return self.line(rows, column)[self.actions]

    def line(self, rows: Sequence[TokenRow], column: str) -> Tensor:
        """A column (or one of `ROW_FIELDS`) at the tokens of all rows, float32 [N]."""
        own = column in ROW_FIELDS
        parts = [getattr(row, column) if own else row.columns[column] for row in rows]
        line = np.concatenate(parts).astype(np.float32, copy=False)
        return torch.from_numpy(line).to(self.actions.device)

    def scatter(self, values: Tensor) -> list[np.ndarray]:
        """The inverse of `gather`: one float32 [T] array per row, 0 off the action tokens."""
        line = torch.zeros(sum(self.lengths), dtype=torch.float32)
        line[self.actions.cpu()] = values.detach().float().cpu()
        return self.split(line)

    def split(self, line: Tensor) -> list[np.ndarray]:
        """Cuts values at the tokens of all rows [N] into one float32 [T] array per row."""
        return [part.numpy() for part in line.detach().float().cpu().split(self.lengths)]


def pack(
    rows: Sequence[TokenRow],
    images: dict[str, ProcessedImage],
    processor: Processor,
    device: torch.device,
    dtype: torch.dtype,
    action_mask: Callable[[TokenRow], np.ndarray],
) -> PackedRows:
    """Lays rows end to end.

    Args:
        rows: At least one.
        images: Processed images by digest; every image of the rows is there.
        processor: Of the model that will read them.
        device: Of the model.
        dtype: Of the pixel values.
        action_mask: bool [T] of a row: the tokens whose log-probabilities are wanted. Never the
            first one, which nothing predicts.
    """
    lengths = [len(row.input_ids) for row in rows]
    shared = _shared_beginning(rows, processor.image_token_id)
    ids, positions = [rows[0].input_ids[:shared]], []
    shown: list[ProcessedImage] = []
    for row in rows:
        row_images = [images[digest] for digest in row.images]
        place, _ = processor.positions(row.input_ids, [image.grid for image in row_images], 0)
        positions.append(place[:, shared:] if positions else place)
        ids.append(row.input_ids[shared:])
        shown += row_images
    line = torch.from_numpy(np.concatenate(ids)).long()
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))[:, None]
    inputs: dict[str, Any] = {
        "input_ids": line[None].to(device),
        "position_ids": (position_ids if processor.uses_mrope else position_ids[0]).to(device),
        "attention_mask": None,
        "use_cache": False,
        "segments": segments_of([length - shared for length in lengths], device, shared),
        **image_inputs(shown, processor, device, dtype),
    }
    places = _places(lengths, shared)
    mask = torch.from_numpy(np.concatenate([action_mask(row) for row in rows]))
    actions = mask.nonzero()[:, 0]
    row_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
    return PackedRows(
        inputs=inputs,
        lengths=lengths,
        places=places.to(device) if shared else None,
        actions=actions.to(device),
        predictors=places[actions - 1].to(device),
        targets=line[places[actions]].to(device),
        row_of=row_of[actions].to(device),
    )


def _shared_beginning(rows: Sequence[TokenRow], image_token_id: int | None) -> int:
    """Number of tokens of text that all rows begin with, if it is worth sharing; else 0.

    It ends before the first image, on which what follows depends, and leaves a token to every row.
    """
    beginnings = []
    for row in rows:
        ids = row.input_ids[:-1]
        images = np.flatnonzero(ids == image_token_id)
        beginnings.append(ids[: images[0]] if len(images) else ids)
    length = common_length(beginnings)
    saved = length * (len(rows) - 1)
    return length if saved > SHARED_LEAST * sum(len(row.input_ids) for row in rows) else 0


def _places(lengths: Sequence[int], shared: int) -> Tensor:
    """Place in the line of each token of rows laid end to end, int64 [N]."""
    beginning = torch.arange(shared)
    places, first = [], shared
    for length in lengths:
        places += [beginning, torch.arange(first, first + length - shared)]
        first += length - shared
    return torch.cat(places)


def micro_batches(rows: Sequence[TokenRow], max_tokens: int, parts: int = 1) -> Iterator[list[int]]:
    """Indices of rows in groups of at most `max_tokens` tokens, longest first.

    Rows of similar length fall into one group: attention pads to the longest of a group. A row
    longer than `max_tokens` is a group of its own.

    Args:
        rows: Of any lengths.
        max_tokens: Of a group.
        parts: Groups, of as equal a size as rows allow, that are wanted where so few would do.
    """
    lengths = [len(row.input_ids) for row in rows]
    share = sum(lengths) / parts
    group: list[int] = []
    groups = tokens = done = 0
    for i in sorted(range(len(rows)), key=lambda i: -lengths[i]):
        enough = done + lengths[i] / 2 > share * (groups + 1)
        if group and (enough or tokens + lengths[i] > max_tokens):
            yield group
            group, groups, tokens = [], groups + 1, 0
        group.append(i)
        tokens += lengths[i]
        done += lengths[i]
    if group:
        yield group
