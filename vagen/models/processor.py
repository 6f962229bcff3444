"""Converts messages to model inputs: tokenizer, image processor and rotary positions."""

import hashlib
import json
import re
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from PIL import Image

from vagen.models import ModelError, first_line
from vagen.models.families import Family, Grid, Reading, family_of
from vagen.models.sources import directory_of, end_of_turn

if TYPE_CHECKING:
    import torch

IMAGE_CACHE_BYTES = 1 << 28
"""Number of cached preprocessed images."""

QUIETLY = {
    "_raise_exceptions_for_gated_repo": False,
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
}
"""Options of `cached_file` for a file that need not exist."""
PROBE = [
    {"role": "system", "content": "."},
    {"role": "user", "content": "."},
    {"role": "assistant", "content": "."},
    {"role": "user", "content": "."},
]
"""A conversation with every kind of header."""


@dataclass(frozen=True, slots=True)
class ImageShape:
    """What the size of an image decides."""

    grid: Grid
    text: str
    """Stands in the conversation in place of the image's placeholder."""
    tokens: int
    """Image tokens in it, one for each feature."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ProcessedImage:
    """A preprocessed image for the vision tower."""

    pixel_values: NDArray[np.float32]
    """See `families.Reading.pixels`."""
    grid: Grid
    tokens: int
    """Image tokens, one for each feature."""


@dataclass(frozen=True, slots=True)
class ImageIds:
    """How images stand in a row of tokens."""

    patch: int | None = None
    """Id of an image token; None for a model without vision."""
    last: int | None = None
    """Id before the last run of image tokens of an image; None if an image is one run."""

    def are_patches(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of `ids` are image tokens."""
        return np.equal(ids, -1 if self.patch is None else self.patch)

    def begins(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of `ids` are the first image token of an image."""
        patches = self.are_patches(ids)
        begins = patches & ~np.concatenate([[False], patches[:-1]])
        if self.last is not None:
            runs = np.flatnonzero(begins)
            ends = ids[runs - 1] == self.last
            begins[runs[1:][~ends[:-1]]] = False  # a further tile of the image before
        return begins

    def counts(self, ids: NDArray[np.int32]) -> list[int]:
        """Image tokens of each image; those of adjacent images without a separator are together."""
        return np.bincount(self.numbered(ids))[1:].tolist()

    def numbered(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The number of the image of each of `ids`, from 1; 0 for text."""
        return self.begins(ids).cumsum() * self.are_patches(ids)


@dataclass(eq=False)
class Processor:
    """Text and image processing of a model directory, without its weights."""

    tokenizer: Any
    image_processor: Any | None
    family: Family
    header_ids: tuple[int, ...] = ()
    """Special tokens that the chat template writes around messages: see `header_ids_of`."""
    logits: int = 0
    """Rows of the model's output layer, often more than the tokenizer has tokens; 0 if unknown."""
    eos_id: int = field(init=False)
    """Id of the token that ends a turn."""
    pad_id: int = field(init=False)
    """Id used for padding."""
    _images: "OrderedDict[tuple[bytes, tuple[int, int]], ProcessedImage]" = field(
        default_factory=OrderedDict, repr=False
    )
    _image_bytes: int = field(default=0, repr=False)
    _shapes: dict[tuple[int, int], ImageShape] = field(default_factory=dict, repr=False)
    _banned: "dict[torch.device, torch.Tensor]" = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.eos_id = self.tokenizer.eos_token_id
        pad = self.tokenizer.pad_token_id
        self.pad_id = self.eos_id if pad is None else pad

    @property
    def has_vision(self) -> bool:
        """Whether the model reads images."""
        return self.image_processor is not None

    @property
    def placeholder(self) -> str:
        """Text that the chat template writes for an image."""
        return self.family.placeholder

    @property
    def image_token_id(self) -> int | None:
        """Id of the token of each feature of an image; None for a model without vision."""
        return self.family.image_token_id

    @property
    def uses_mrope(self) -> bool:
        """Whether positions have three axes."""
        return self.family.patch_grids

    @cached_property
    def image_ids(self) -> ImageIds:
        """How images stand in rows."""
        last = self.family.last
        found = None if last is None else self.tokenizer.convert_tokens_to_ids(last)
        return ImageIds(self.image_token_id, found)

    @cached_property
    def banned_ids(self) -> list[int]:
        """Ids that may never be sampled: image, video and header tokens, and ids of no token."""
        added = self.tokenizer.get_added_vocab().items()
        banned = {i for token, i in added if re.fullmatch(self.family.marks, token)}
        banned.update(self.header_ids)
        if self.image_token_id is not None:
            banned.add(self.image_token_id)
        if self.logits:
            banned.update(range(len(self.tokenizer), self.logits))
        return sorted(banned)

    def banned_on(self, device: "torch.device") -> "torch.Tensor":
        """`banned_ids` as an int64 tensor on a device, made once per device."""
        import torch

        if device not in self._banned:
            with torch.inference_mode(False):  # a training saves it for its backward pass
                self._banned[device] = torch.tensor(self.banned_ids, device=device)
        return self._banned[device]

    def shape_of(self, size: tuple[int, int]) -> ImageShape:
        """What the model makes of an image of a size in pixels (width, height).

        Raises:
            ModelError: The model does not read images.
        """
        if size not in self._shapes:
            read = self._read(Image.new("RGB", size))
            self._shapes[size] = ImageShape(read.grid, read.text, self._tokens(read))
        return self._shapes[size]

    def image_text(self, size: tuple[int, int]) -> str:
        """Text that replaces the placeholder of an image of a size (width, height)."""
        return self.shape_of(size).text

    def fitted(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The frame, scaled down as by the image processor if that would scale it down.

        The processor creates the same patches from either.

        Args:
            frame: uint8 [height, width, 3].
        """
        rules = self.image_processor
        if rules is None or not self.family.patch_grids or not rules.do_resize:
            return frame
        height, width = frame.shape[:2]
        size = self.read_size((width, height))
        if size[0] * size[1] >= width * height:
            return frame
        return np.asarray(Image.fromarray(frame).resize(size, rules.resample))

    def read_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Pixels (width, height) to which an image of a size is scaled; tiles below each other.

        Raises:
            ModelError: The model does not read images.
        """
        tiles, rows, columns = self.shape_of(size).grid
        side = self.family.patch_size
        return columns * side, tiles * rows * side

    def process_image(self, image: Any) -> ProcessedImage:
        """Patches and grid of a PIL image (RGB); cached for recent images.

        Raises:
            ModelError: The model does not read images.
        """
        key = (hashlib.sha1(image.tobytes(), usedforsecurity=False).digest(), image.size)
        if key in self._images:
            self._images.move_to_end(key)
            return self._images[key]
        read = self._read(image)
        pixels = np.asarray(read.pixels, dtype=np.float32)
        processed = self._images[key] = ProcessedImage(pixels, read.grid, self._tokens(read))
        self._image_bytes += processed.pixel_values.nbytes
        while self._image_bytes > IMAGE_CACHE_BYTES:
            self._image_bytes -= self._images.popitem(last=False)[1].pixel_values.nbytes
        return processed

    def _read(self, image: Image.Image) -> Reading:
        if self.image_processor is None:
            raise ModelError(
                f"a {self.family.model_type} model cannot read images: use render_mode=text, or a "
                "vision-language model"
            )
        return self.family.read(self.image_processor, image)

    def _tokens(self, read: Reading) -> int:
        return read.text.count(self.family.image)

    def positions(
        self, ids: NDArray[np.int32], grids: list[Grid], start: int
    ) -> tuple[NDArray[np.int64], int]:
        """Rotary positions of `ids` that continue a context which ends before position `start`.

        Text advances by one on every axis; an image block counts rows and columns from its first
        position and is followed by its larger side (Qwen2-VL, section 2.1, M-RoPE).

        Args:
            ids: int32 [T]; contains only complete blocks of image tokens.
            grids: Patch grid of each image in `ids`, in order.
            start: First unused position.

        Returns:
            int64 [3, T] (time, height, width), and the first unused position after `ids`.
        """
        length = len(ids)
        if not self.uses_mrope or not grids:
            line = np.arange(start, start + length, dtype=np.int64)
            return np.broadcast_to(line, (3, length)).copy(), start + length
        out = np.empty((3, length), dtype=np.int64)
        is_image = ids == self.image_token_id
        cursor, position, merge = 0, start, self.family.merge_size
        for t, h, w in grids:
            offset = np.flatnonzero(is_image[cursor:])
            first = cursor + int(offset[0])
            text = first - cursor
            out[:, cursor:first] = np.arange(position, position + text)
            position += text
            rows, columns = h // merge, w // merge
            count = t * rows * columns
            block = np.indices((t, rows, columns)).reshape(3, -1)
            out[:, first : first + count] = block + position
            cursor = first + count
            position += max(rows, columns)
        rest = length - cursor
        out[:, cursor:] = np.arange(position, position + rest)
        return out, position + rest


def load_config(path: str | Path) -> Any:
    """The configuration of a model directory, hub id or packed model, as `transformers` reads it.

    Raises:
        ModelError: It does not exist.
    """
    import vagen.models.lean_transformers  # noqa: F401

    # isort: split
    from transformers import AutoConfig

    directory = directory_of(path)
    try:
        return AutoConfig.from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: no model configuration could be loaded ({first_line(error)})"
        ) from error


def load_tokenizer(path: str | Path, config: Any = None) -> Any:
    """The tokenizer of a model directory or hub id.

    Args:
        path: Local directory or hub id.
        config: Configuration of the model, if already loaded.

    Raises:
        ModelError: It does not exist, or has no vocabulary, chat template or end-of-turn token.
    """
    import vagen.models.lean_transformers  # noqa: F401

    # isort: split
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    directory = directory_of(path)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, config=config)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: no tokenizer could be loaded ({first_line(error)})") from error
    if not tokenizer.encode("text", add_special_tokens=False):  # made without its files
        raise ModelError(
            f"{path}: the tokenizer has no vocabulary; copy tokenizer.json and "
            "tokenizer_config.json next to the weights"
        )
    # A processor's own template, which writes images; one of the tokenizer may not.
    own = cached_file(directory, "chat_template.json", **QUIETLY)
    if own is not None:
        tokenizer.chat_template = json.loads(Path(own).read_text())["chat_template"]
    if tokenizer.chat_template is None:
        raise ModelError(f"{path}: the tokenizer has no chat template; use an instruct model")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{path}: the tokenizer has no end-of-turn token (eos_token)")
    with suppress(TemplateError):  # `header_ids_of` says what it cannot render
        if (end := end_of_turn(tokenizer)) not in (None, tokenizer.eos_token):
            tokenizer.eos_token = end
    return tokenizer


def header_ids_of(tokenizer: Any, path: str | Path) -> tuple[int, ...]:
    """Special tokens that the chat template writes around messages, without the end of a turn.

    A policy that samples one of them (`<|im_start|>`, `<|start_header_id|>`, `[INST]`, ...) would
    start a message.

    Args:
        tokenizer: A tokenizer with a chat template.
        path: Its source, for error messages.

    Raises:
        ModelError: The template cannot render a conversation with a system prompt.
    """
    try:
        text = tokenizer.apply_chat_template(PROBE, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ModelError(
            f"{path}: the chat template renders no conversation with a system prompt "
            f"({first_line(error)}); use a model or a template that does"
        ) from error
    added = tokenizer.added_tokens_decoder.items()
    special = {i for i, token in added if token.special} | set(tokenizer.all_special_ids)
    written = set(tokenizer.encode(text, add_special_tokens=False))
    return tuple(sorted((special & written) - {tokenizer.eos_token_id}))


def load_processor(path: str | Path, config: Any = None) -> Processor:
    """Tokenizer, image processor and position scheme of a model directory or hub id.

    Args:
        path: Local directory or hub id.
        config: Configuration of the model, if already loaded.

    Raises:
        ModelError: The directory is incomplete.
    """
    config = config or load_config(path)
    _check_attention(config, path)
    tokenizer = load_tokenizer(path, config)
    family = family_of(config, path)
    has_vision = family.reader is not None
    if has_vision and tokenizer.convert_tokens_to_ids(family.image) != family.image_token_id:
        raise ModelError(
            f"{path}: config.json and tokenizer disagree on the image token: image_token_id = "
            f"{family.image_token_id} is not {family.image}"
        )
    return Processor(
        tokenizer=tokenizer,
        image_processor=family.load_reader(directory_of(path)) if has_vision else None,
        family=family,
        header_ids=header_ids_of(tokenizer, path),
        logits=getattr(config.get_text_config(), "vocab_size", 0),
    )


def _check_attention(config: Any, path: str | Path) -> None:
    """Rejects decoders with layers that `vagen.models.attention` does not compute.

    It computes causal attention, with sliding windows or without, over packed rows and its cache.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if getattr(text, "use_bidirectional_attention", None) is True:
        kinds.add("attention to later tokens")
    if others := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ModelError(
            f"{path}: {config.model_type} has layers with {', '.join(others)}; only full and "
            "sliding attention are supported, as Qwen3-VL, Qwen3 and Gemma 3 have them"
        )
