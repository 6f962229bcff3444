"""Rows of different lengths laid end to end, so that no linear layer computes padding.

The model reads no more than it has to. What stands behind the last token that is asked about, such
as the observation that ended an episode, is left out. What rows begin with stands once in the line,
and gradients of all rows flow back through it: the prompts of a group's episodes, frames included,
or the text that all episodes of an environment begin with.

Shape legend: R rows, T tokens of a row, N tokens of all rows, L tokens of the line, M tokens that
are asked about (action tokens: those the policy loss reads).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vagen.engines.local.prefixes import common_length
from vagen.models.attention import segments_of
from vagen.models.processor import ProcessedImage, Processor
from vagen.models.vision import image_inputs
from vagen.rollout.types import TokenRow

ROW_FIELDS = ("loss_mask", "rollout_logprobs", "turn_index")
"""Fields of a row that can be read like columns."""


SHARED_LEAST = 0.1
"""Beginnings are shared if this share of all tokens is saved: attention has to be masked for it."""
TokenMask = Callable[[TokenRow], NDArray[np.bool_]]
"""bool [T] of a row: the tokens about which the state before them is asked; never the first."""


@dataclass(frozen=True, slots=True)
class RowPrefix:
    """What a model has to read of a row."""

    ids: NDArray[np.int32]
    images: Sequence[str]
    """Digests of the frames in it."""
    prompt: int = 0
    """Tokens before the first sampled one; 0 if frames cannot be told apart."""
    frames: int = 0
    """Frames in the prompt."""

    @property
    def opening(self) -> tuple[bytes, tuple[str, ...]]:
        """Equal for equal prompts."""
        return self.ids[: self.prompt].tobytes(), tuple(self.images[: self.frames])


def stretch_of(row: TokenRow, ask: TokenMask | None, image_token_id: int | None) -> RowPrefix:
    """What has to be read of a row, at least a token more than its prompt.

    Args:
        row: Any.
        ask: None asks about the state after every token.
        image_token_id: Stands for a piece of a frame.
    """
    is_image = np.equal(row.input_ids, -1 if image_token_id is None else image_token_id)
    begins = is_image & ~np.concatenate([[False], is_image[:-1]])
    if begins.sum() != len(row.images):  # nothing stands between two of them
        return RowPrefix(row.input_ids, row.images)
    end = len(row.input_ids)
    if ask is not None and (asked := ask(row)).any():
        end = int(np.flatnonzero(asked)[-1]) + 1
    while end < len(is_image) and is_image[end - 1 : end + 1].all():  # a frame is read whole
        end += 1
    prompt = min(int(row.loss_mask.argmax()), end - 1)
    images = row.images[: begins[:end].sum()]
    return RowPrefix(row.input_ids[:end], images, prompt, int(begins[:prompt].sum()))


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Model inputs of some rows, and where their sampled tokens are."""

    inputs: dict[str, Any]
    """Keyword arguments of the backbone."""
    lengths: list[int]
    """Tokens T of each row."""
    places: Tensor | None
    """int64 [N]: place in the line of each token of the rows (of one that is left out, that of the
    last that is not); None if they are the line."""
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
    ask: TokenMask | None,
) -> PackedRows:
    """Lays rows end to end.

    Args:
        rows: At least one.
        images: Processed images by digest; every image of the rows is there.
        processor: Of the model that will read them.
        device: Of the model.
        dtype: Of the pixel values.
        ask: Gives the action tokens. None asks about the state after every token.
    """
    stretches = [stretch_of(row, ask, processor.image_token_id) for row in rows]
    lengths = [len(row.input_ids) for row in rows]
    ids, positions, segments, places = [], [], [], []
    shown: list[ProcessedImage] = []
    end = 0
    rest = iter(zip(stretches, lengths, strict=True))
    for count, shared in families_of(stretches, processor.image_token_id):
        members = list(islice(rest, count))
        segments += segments_of([len(one.ids) - shared for one, _ in members], device, shared)
        beginning = torch.arange(end, end + shared)
        end += shared
        laid = frames = 0
        for stretch, length in members:
            row_images = [images[digest] for digest in stretch.images]
            place, _ = processor.positions(stretch.ids, [image.grid for image in row_images], 0)
            ids.append(stretch.ids[laid:])
            positions.append(place[:, laid:])
            shown += row_images[frames:]
            begun, end = end, end + len(stretch.ids) - shared
            places += [beginning, torch.arange(begun, begun + length - shared).clamp(max=end - 1)]
            laid, frames = shared, stretch.frames if shared == stretch.prompt else 0
    line = torch.from_numpy(np.concatenate(ids)).long()
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))[:, None]
    inputs: dict[str, Any] = {
        "input_ids": line[None].to(device),
        "position_ids": (position_ids if processor.uses_mrope else position_ids[0]).to(device),
        "attention_mask": None,
        "use_cache": False,
        "segments": tuple(segments),
        **image_inputs(shown, processor, device, dtype),
    }
    place = torch.cat(places)
    asked = [ask(row) if ask else np.zeros(len(row.input_ids), np.bool_) for row in rows]
    actions = torch.from_numpy(np.concatenate(asked)).nonzero()[:, 0]
    row_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
    return PackedRows(
        inputs=inputs,
        lengths=lengths,
        places=place.to(device) if len(place) != len(line) else None,
        actions=actions.to(device),
        predictors=place[actions - 1].to(device),
        targets=line[place[actions]].to(device),
        row_of=row_of[actions].to(device),
    )


def families_of(
    stretches: Sequence[RowPrefix], image_token_id: int | None
) -> list[tuple[int, int]]:
    """Neighbours that begin alike: their number, and the tokens of that beginning.

    Either the whole prompts of neighbours are shared, or the text that all begin with: whichever
    saves more, if it is worth it. A beginning leaves a token to each.
    """
    openings = [stretch.opening for stretch in stretches]
    counts = Counter(openings)
    by_prompt = []
    for several, members in groupby(stretches, lambda s: counts[s.opening] > 1 and s.opening):
        neighbours = list(members)
        by_prompt.append((len(neighbours), neighbours[0].prompt if several else 0))
    families = max(
        [(len(stretches), _common_text(stretches, image_token_id))], by_prompt, key=_saved
    )
    least = SHARED_LEAST * sum(len(stretch.ids) for stretch in stretches)
    return families if _saved(families) > least else [(len(stretches), 0)]


def _saved(families: Sequence[tuple[int, int]]) -> int:
    return sum((count - 1) * shared for count, shared in families)


def _common_text(stretches: Sequence[RowPrefix], image_token_id: int | None) -> int:
    """Number of tokens of text that all begin with: on an image depends what follows it."""
    beginnings = []
    for stretch in stretches:
        ids = stretch.ids[:-1]
        images = np.flatnonzero(ids == image_token_id)
        beginnings.append(ids[: images[0]] if len(images) else ids)
    return common_length(beginnings)


def micro_batches(
    stretches: Sequence[RowPrefix], max_tokens: int, parts: Callable[[int], int] = lambda _: 1
) -> Iterator[list[int]]:
    """Indices of stretches in groups of at most `max_tokens` tokens, longest first.

    Those with one prompt are neighbours, and it counts once. Similar lengths fall into one group:
    attention pads to the longest of a group. A stretch longer than `max_tokens` is a group of its
    own.

    Args:
        stretches: Of any lengths.
        max_tokens: Of a group.
        parts: Of the tokens of all: how many groups, of as equal a size as may be, are wanted where
            fewer would do.
    """
    lengths = [len(stretch.ids) for stretch in stretches]
    first: list[int] = list(range(len(lengths)))
    longest: dict[tuple[bytes, tuple[str, ...]], int] = {}
    for i in sorted(first, key=lambda i: -lengths[i]):
        if stretches[i].prompt:
            first[i] = longest.setdefault(stretches[i].opening, i)
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[first[i]], first[i], -lengths[i]))
    sizes = [lengths[i] - (stretches[i].prompt if first[i] != i else 0) for i in order]
    share = sum(sizes) / parts(sum(sizes))
    group: list[int] = []
    groups = tokens = done = 0
    for i, size in zip(order, sizes, strict=True):
        enough = done + size / 2 > share * (groups + 1)
        if group and (enough or tokens + size > max_tokens):
            yield group
            group, groups, tokens = [], groups + 1, 0
        tokens += size if group else lengths[i]
        group.append(i)
        done += size
    if group:
        yield group
