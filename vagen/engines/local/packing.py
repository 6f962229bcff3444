"""Packs rows of different lengths end to end, so that linear layers compute no padding.

Only needed tokens are computed. Tokens after the last requested one are left out, such as the
observation that ended an episode. A common prefix appears once in the line, and gradients of all
rows flow through it: the prompts of a group's episodes with their frames, or the text at the start
of all episodes of an environment.

Shape legend: R rows, T tokens of a row, N tokens of all rows, L tokens of the line, M requested
tokens (action tokens: those the policy loss reads).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vagen.engines.objectives import column_of
from vagen.envs.images import decode_png
from vagen.models.attention import RowGroup, segments_of
from vagen.models.processor import ImageIds, ProcessedImage, Processor
from vagen.models.vision import image_inputs
from vagen.rollout.types import TokenRow

MIN_SHARED_SAVING = 0.1
"""Prefixes are shared if that saves this share of all tokens; sharing needs an attention mask."""
TokenMask = Callable[[TokenRow], NDArray[np.bool_]]
"""bool [T] of a row: tokens to predict from the state before them; never the first."""


@dataclass(frozen=True, slots=True)
class RowPrefix:
    """The part of a row that a model has to read."""

    ids: NDArray[np.int32]
    images: Sequence[str]
    """Digests of its frames."""
    prompt: int = 0
    """Tokens before the first sampled one; 0 if the tokens do not show where frames begin."""
    frames: int = 0
    """Frames in the prompt."""

    @property
    def opening(self) -> tuple[bytes, tuple[str, ...]]:
        """A key that is equal for equal prompts."""
        return self.ids[: self.prompt].tobytes(), tuple(self.images[: self.frames])

    def until(self, selected: NDArray[np.bool_], image_ids: ImageIds) -> "RowPrefix":
        """The part up to the last selected token; all of it if there is none."""
        begins = image_ids.begins(self.ids)
        if not selected.any() or begins.sum() != len(self.images):
            return self
        end = int(np.flatnonzero(selected)[-1]) + 1
        frame = begins.cumsum()
        split = image_ids.are_patches(self.ids[end:]) & (frame[end:] == frame[end - 1])
        if split.any():  # never split a frame
            end += int(np.flatnonzero(split)[-1]) + 1
        prompt = min(self.prompt, end - 1)
        images = self.images[: begins[:end].sum()]
        return RowPrefix(self.ids[:end], images, prompt, int(begins[:prompt].sum()))


def whole_row(row: TokenRow, image_ids: ImageIds) -> RowPrefix:
    """All of a row."""
    begins = image_ids.begins(row.input_ids)
    if begins.sum() != len(row.images):  # adjacent frames without a separator
        return RowPrefix(row.input_ids, row.images)
    prompt = min(int(row.loss_mask.argmax()), len(row.input_ids) - 1)
    return RowPrefix(row.input_ids, row.images, prompt, int(begins[:prompt].sum()))


def stretch_of(row: TokenRow, mask: TokenMask | None, image_ids: ImageIds) -> RowPrefix:
    """The part of a row that has to be read, at least one token more than its prompt.

    Args:
        row: Any row.
        mask: Selects the tokens to predict; None requests an output after every token.
        image_ids: How frames stand in rows.
    """
    whole = whole_row(row, image_ids)
    return whole if mask is None else whole.until(mask(row), image_ids)


class ImageCache:
    """Preprocessed images by the digest of their PNG.

    Every pass over a batch needs the same frames; each is decoded once while the cache keeps it.
    """

    def __init__(self, processor: Processor):
        """Starts empty, for the model of `processor`."""
        self.processor = processor
        self._known: WeakValueDictionary[str, ProcessedImage] = WeakValueDictionary()

    def shown_by(
        self, rows: Sequence[TokenRow], images: dict[str, bytes]
    ) -> dict[str, ProcessedImage]:
        """All images of the rows, preprocessed.

        Args:
            rows: Rows whose `images` are SHA-256 digests.
            images: PNG bytes by SHA-256.
        """
        wanted = {digest for row in rows for digest in row.images}
        shown = {}
        for digest in wanted:
            processed = self._known.get(digest)
            if processed is None:
                frame = Image.fromarray(decode_png(images[digest]))
                processed = self._known[digest] = self.processor.process_image(frame)
            shown[digest] = processed
        return shown


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Model inputs of some rows, and the places of their action tokens."""

    inputs: dict[str, Any]
    """Keyword arguments of the backbone."""
    lengths: list[int]
    """Tokens T of each row."""
    places: Tensor | None
    """int64 [N]: position in the line of each token of the rows; for tokens that are left out, the
    last position that is not. None if rows and line are the same."""
    actions: Tensor
    """int64 [M]: position of each action token among the tokens of all rows."""
    predictors: Tensor
    """int64 [M]: position in the line of the token before it, whose hidden state predicts it."""
    targets: Tensor
    """int64 [M]: ids of the action tokens."""
    row_of: Tensor
    """int64 [M]: index of each action token's row in this batch."""

    def spread(self, line: Tensor) -> Tensor:
        """Expands outputs at the line's tokens [L, ...] to the tokens of all rows [N, ...]."""
        return line if self.places is None else line.index_select(0, self.places)

    def gather(self, rows: Sequence[TokenRow], column: str) -> Tensor:
        """A column (see `column_of`) of the rows at the action tokens, float32 [M]."""
        return self.line(rows, column)[self.actions]

    def line(self, rows: Sequence[TokenRow], column: str) -> Tensor:
        """A column (see `column_of`) at the tokens of all rows, float32 [N]."""
        line = np.concatenate([column_of(row, column) for row in rows])
        return torch.from_numpy(line).to(self.actions.device)

    def scatter(self, values: Tensor) -> list[np.ndarray]:
        """Inverse of `gather`: one float32 [T] array per row, 0 at other tokens."""
        line = torch.zeros(sum(self.lengths), dtype=torch.float32)
        line[self.actions.cpu()] = values.detach().float().cpu()
        return self.split(line)

    def split(self, line: Tensor) -> list[np.ndarray]:
        """Splits values at the tokens of all rows [N] into one float32 [T] array per row."""
        return [part.numpy() for part in line.detach().float().cpu().split(self.lengths)]


def pack(
    rows: Sequence[TokenRow],
    images: dict[str, ProcessedImage],
    processor: Processor,
    device: torch.device,
    dtype: torch.dtype,
    mask: TokenMask | None,
) -> PackedRows:
    """Lays rows end to end.

    Args:
        rows: At least one.
        images: Preprocessed images by digest, with all images of the rows.
        processor: Processor of the model.
        device: The model's device.
        dtype: Type of the pixel values.
        mask: Selects the action tokens. None requests an output after every token.
    """
    stretches = [stretch_of(row, mask, processor.image_ids) for row in rows]
    lengths = [len(row.input_ids) for row in rows]
    layout = layout_of(stretches, lengths, processor.image_ids, device)
    ids, positions = [], []
    shown: list[ProcessedImage] = []
    for stretch, (skipped, frames) in zip(stretches, layout.skipped, strict=True):
        row_images = [images[digest] for digest in stretch.images]
        place, _ = processor.positions(stretch.ids, [image.grid for image in row_images], 0)
        ids.append(stretch.ids[skipped:])
        positions.append(place[:, skipped:])
        shown += row_images[frames:]
    line = torch.from_numpy(np.concatenate(ids)).long()
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))[:, None]
    inputs: dict[str, Any] = {
        "input_ids": line[None].to(device),
        "position_ids": (position_ids if processor.uses_mrope else position_ids[0]).to(device),
        "attention_mask": None,
        "use_cache": False,
        "segments": layout.segments,
        **image_inputs(shown, processor, device, dtype),
    }
    if shown and processor.family.bidirectional:
        numbers = processor.image_ids.numbered(line.numpy())
        inputs["blocks"] = torch.from_numpy(numbers).to(device)
    place = layout.places
    selected = [mask(row) if mask else np.zeros(len(row.input_ids), np.bool_) for row in rows]
    actions = torch.from_numpy(np.concatenate(selected)).nonzero()[:, 0]
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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of rows that share prefixes stand in a line."""

    segments: tuple[RowGroup, ...]
    """For attention, see `segments_of`."""
    places: Tensor
    """int64 [N]: see `PackedRows.places`."""
    skipped: list[tuple[int, int]]
    """Tokens and frames at the start of each row that an earlier row brings into the line."""


def layout_of(
    stretches: Sequence[RowPrefix],
    lengths: Sequence[int],
    image_ids: ImageIds,
    device: torch.device,
) -> Layout:
    """Lays the stretches of rows end to end.

    Args:
        stretches: At least one; those with the same prompt are neighbours.
        lengths: Tokens T of each row.
        image_ids: How frames stand in rows.
        device: Device of the segments.
    """
    segments, places, skipped = [], [], []
    end = 0
    rest = iter(zip(stretches, lengths, strict=True))
    for count, shared in families_of(stretches, image_ids):
        members = list(islice(rest, count))
        segments += segments_of([len(one.ids) - shared for one, _ in members], device, shared)
        beginning = torch.arange(end, end + shared)
        end += shared
        skip = (0, 0)
        for stretch, length in members:
            skipped.append(skip)
            begin, end = end, end + len(stretch.ids) - shared
            places += [beginning, torch.arange(begin, begin + length - shared).clamp(max=end - 1)]
            skip = (shared, stretch.frames if shared == stretch.prompt else 0)
    return Layout(tuple(segments), torch.cat(places), skipped)


def families_of(stretches: Sequence[RowPrefix], image_ids: ImageIds) -> list[tuple[int, int]]:
    """Groups of neighbours with a common prefix: number of rows, and tokens of the prefix.

    Shares either the whole prompts of neighbours or the text at the start of all, whichever saves
    more, if it saves enough. At least one token of each row stays outside the prefix.
    """
    openings = [stretch.opening for stretch in stretches]
    counts = Counter(openings)
    by_prompt = []
    for several, members in groupby(stretches, lambda s: counts[s.opening] > 1 and s.opening):
        neighbours = list(members)
        by_prompt.append((len(neighbours), neighbours[0].prompt if several else 0))
    common = common_length([text_before_images(s.ids[:-1], image_ids) for s in stretches])
    families = max([(len(stretches), common)], by_prompt, key=_saved)
    least = MIN_SHARED_SAVING * sum(len(stretch.ids) for stretch in stretches)
    return families if _saved(families) > least else [(len(stretches), 0)]


def _saved(families: Sequence[tuple[int, int]]) -> int:
    return sum((count - 1) * shared for count, shared in families)


def text_before_images(ids: NDArray[np.int32], image_ids: ImageIds) -> NDArray[np.int32]:
    """The ids before the first image, on which the tokens after it depend."""
    images = np.flatnonzero(image_ids.are_patches(ids))
    return ids[: images[0]] if len(images) else ids


def common_length(beginnings: Sequence[NDArray[np.int32]]) -> int:
    """Length of the longest common prefix of at least one sequence."""
    shortest = min(len(ids) for ids in beginnings)
    same = np.stack([ids[:shortest] for ids in beginnings])
    differs = (same != same[0]).any(0)
    return int(differs.argmax()) if differs.any() else shortest


def micro_batches(
    stretches: Sequence[RowPrefix], max_tokens: int, parts: Callable[[int], int] = lambda _: 1
) -> Iterator[list[int]]:
    """Indices of stretches in groups of at most `max_tokens` tokens, longest first.

    Rows with the same prompt are neighbours, and the prompt counts once. A group has similar
    lengths, since attention pads to its longest. A stretch longer than `max_tokens` is a group of
    its own.

    Args:
        stretches: Stretches of any lengths.
        max_tokens: Limit of a group.
        parts: Desired number of groups of equal size if fewer would suffice.
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
