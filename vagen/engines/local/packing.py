"""Rows of different lengths laid end to end, so that no linear layer computes padding.

Shape legend: R rows, N tokens of all rows, M action tokens (those the policy loss reads).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vagen.models.attention import Segments
from vagen.models.processor import ProcessedImage, Processor
from vagen.models.vision import image_inputs
from vagen.rollout.types import TokenRow

ROW_FIELDS = ("loss_mask", "rollout_logprobs")
"""Fields of a row that can be read like columns."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Model inputs of some rows, and where their sampled tokens are."""

    inputs: dict[str, Any]
    """Keyword arguments of the backbone."""
    lengths: list[int]
    actions: Tensor
    """int64 [M]: place in the line of each action token."""
    targets: Tensor
    """int64 [M]: the ids there."""
    row_of: Tensor
    """int64 [M]: row of each action token, counted within this batch."""

    @property
    def ends(self) -> Tensor:
        """int64 [R]: place in the line of each row's last token."""
        return torch.tensor(self.lengths).cumsum(0) - 1

    def gather(self, rows: Sequence[TokenRow], column: str) -> Tensor:
        """A column (or one of `ROW_FIELDS`) of the rows at the action tokens, float32 [M]."""
        return self.line(rows, column)[self.actions]

    def line(self, rows: Sequence[TokenRow], column: str) -> Tensor:
        """A column (or one of `ROW_FIELDS`) of the rows laid end to end, float32 [N]."""
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
        """Cuts a line [N] into one float32 [T] array per row."""
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
    ids = torch.from_numpy(np.concatenate([row.input_ids for row in rows])).long()
    positions = []
    shown: list[ProcessedImage] = []
    for row in rows:
        row_images = [images[digest] for digest in row.images]
        place, _ = processor.positions(row.input_ids, [image.grid for image in row_images], 0)
        positions.append(place)
        shown += row_images
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))[:, None]
    inputs: dict[str, Any] = {
        "input_ids": ids[None].to(device),
        "position_ids": (position_ids if processor.uses_mrope else position_ids[0]).to(device),
        "attention_mask": None,
        "use_cache": False,
        "segments": Segments.of(lengths, device),
        **image_inputs(shown, processor, device, dtype),
    }
    mask = torch.from_numpy(np.concatenate([action_mask(row) for row in rows]))
    actions = mask.nonzero()[:, 0]
    row_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
    return PackedRows(
        inputs=inputs,
        lengths=lengths,
        actions=actions.to(device),
        targets=ids[actions].to(device),
        row_of=row_of[actions].to(device),
    )


def micro_batches(rows: Sequence[TokenRow], max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows in groups of at most `max_tokens` tokens, longest first.

    Rows of similar length fall into one group: attention pads to the longest of a group. A row
    longer than `max_tokens` is a group of its own.
    """
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].input_ids))
    group: list[int] = []
    tokens = 0
    for i in order:
        length = len(rows[i].input_ids)
        if group and tokens + length > max_tokens:
            yield group
            group, tokens = [], 0
        group.append(i)
        tokens += length
    if group:
        yield group
