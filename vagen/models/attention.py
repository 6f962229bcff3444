"""Attention over packed rows and over a cache of conversations, for any `transformers` decoder.

`transformers` passes the keyword arguments of a model call to the attention function registered
here. These are ours:

- `segments`: the batch is one line of rows laid end to end (no padding in the linear layers), with
causal attention within each row. Neighbours may share a prefix, which stands once in the line
before them; each of them attends to it.
- a 4-D additive mask together with a `SlotCache`: every row of the batch is a conversation with a
cache of its own length. `prefix`: number of equal initial tokens of all rows; a decode step then
reads their keys and values once instead of per conversation. `windowed`: the mask for layers with a
sliding window.
- `blocks`, int64 [N]: number of the image of each token, 0 for text, for families whose images are
attended to in both directions: a token of an image also sees those after it in the same image.
- `seen`: a list that receives the window of each layer that was reached.

A layer with a sliding window of W attends to the last W tokens, itself among them; `transformers`
passes W to the attention of each such layer.

Shape legend: N tokens of a packed line, S tokens of the shared
prefix, P equal initial tokens, B rows, H heads, G query heads per key head, L cached tokens, n new
tokens, D head size.
"""

import vagen.models.lean_transformers  # noqa: F401

# isort: split
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vagen.models import ModelError

ATTENTION = "packed"
"""Name of the function in the registry of `transformers`."""

UNSUPPORTED = {"softcap": "caps attention scores", "s_aux": "has attention sinks"}
"""Arguments of `transformers` for attention that is not computed here, and what they mean."""

SIMILAR = 0.85
"""A group's rows have at least this share of its longest row's length, which bounds the padding."""


def window_of(text_config: Any) -> int | None:
    """Tokens that a layer with a sliding window attends to; None if no layer has one."""
    kinds = getattr(text_config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(text_config, "sliding_window", None)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Neighbouring rows of a packed line, of similar length."""

    tokens: int
    rows: int
    longest: int
    index: Tensor | None
    """int64 [tokens]: index of each token in the padded [rows * longest] layout; None if all rows
    have the same length, so that there is no padding."""
    mask: Tensor | None
    """[longest, S + longest]: which tokens of the shared prefix (the last earlier group without a
    mask) and of its own row each token attends to; None without a shared prefix. On a GPU a
    `CausalBias`, which flash attention computes without a mask in memory; elsewhere bool."""


def segments_of(
    lengths: Sequence[int], device: torch.device, shared: int = 0
) -> tuple[RowGroup, ...]:
    """The value of `segments` for rows laid end to end.

    Args:
        lengths: Tokens of each row without the shared prefix, at least one; best if sorted.
        device: Device of the line.
        shared: Tokens S of a prefix that all rows share, a separate group before them.
    """
    groups = [RowGroup(shared, 1, shared, None, None)] if shared else []
    begin = 0
    while begin < len(lengths):
        end = begin + 1
        shortest = longest = lengths[begin]
        while end < len(lengths):
            low, high = min(shortest, lengths[end]), max(longest, lengths[end])
            if shared + low < SIMILAR * (shared + high):
                break
            shortest, longest, end = low, high, end + 1
        part = lengths[begin:end]
        index = mask = None
        if shortest < longest:
            steps = [torch.arange(length) + i * longest for i, length in enumerate(part)]
            index = torch.cat(steps).to(device)
        if shared:
            if device.type == "cuda":
                mask = causal_lower_right(longest, shared + longest)
            else:
                mask = torch.ones(longest, shared + longest, dtype=torch.bool).tril(shared)
        groups.append(RowGroup(sum(part), len(part), longest, index, mask))
        begin = end
    return tuple(groups)


class SlotCache(Cache):
    """Keys and values of many conversations, each in a slot of its own length.

    The storage is [layers, 2, slots, key heads, length, D]: everything that one head attends to is
    contiguous. A forward pass works on a contiguous range of slots, chosen with `focus`.
    """

    def __init__(self, config: Any, slots: int, length: int, device: torch.device, dtype: Any):
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        # Zeros, not uninitialised memory: attention multiplies entries beyond a row's end by 0.
        self.storage = torch.zeros(
            config.num_hidden_layers, 2, slots, heads, length, head_dim, device=device, dtype=dtype
        )
        self.window = window_of(config)
        self.group = config.num_attention_heads // heads
        """Query heads per key head."""
        self._heads = torch.arange(heads, device=device)[:, None]
        self._first = self._last = self._reach = 0
        self._places = torch.empty(0, dtype=torch.long, device=device)

    @property
    def length(self) -> int:
        """Tokens a slot can hold."""
        return self.storage.shape[4]

    def grow(self, length: int) -> None:
        """Extends every slot to at least `length` tokens."""
        if length > self.length:
            shape = list(self.storage.shape)
            shape[4] = max(length, 2 * self.length)
            larger = self.storage.new_zeros(shape)
            larger[..., : self.length, :] = self.storage
            self.storage = larger

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchanges two slots with at most `length` tokens each."""
        if a != b:
            at_a = self.storage[:, :, a, :, :length]
            at_b = self.storage[:, :, b, :, :length]
            kept = at_a.clone()
            at_a.copy_(at_b)
            at_b.copy_(kept)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of a slot to another."""
        if source != target:
            self.storage[:, :, target, :, :length] = self.storage[:, :, source, :, :length]

    def read(self, slot: int, length: int) -> Tensor:
        """A copy of a slot's first `length` tokens, [layers, 2, key heads, length, D]."""
        return self.storage[:, :, slot, :, :length].clone()

    def write(self, slot: int, keys_values: Tensor) -> None:
        """Writes the result of `read` to the start of a slot."""
        self.storage[:, :, slot, :, : keys_values.shape[-2]] = keys_values

    def focus(self, first: int, last: int, start: Tensor, new: int, reach: int) -> None:
        """Chooses slots [first, last) for the next `new` tokens.

        Args:
            first: First slot.
            last: Slot after the last.
            start: int64 [last - first]: number of tokens in each slot.
            new: Number of new tokens, padding included.
            reach: Largest number of tokens in a slot afterwards.
        """
        self._first, self._last, self._reach = first, last, reach
        device = self.storage.device
        rows = torch.arange(first, last, device=device)[:, None, None]
        places = start[:, None] + torch.arange(new, device=device)
        heads = rows * len(self._heads) + self._heads
        self._places = (heads * self.length + places[:, None]).flatten()

    def masks(
        self, start: Tensor, new: int, reach: int, blocks: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Additive masks [B, 1, G * n, L] of new tokens over the focused slots.

        Args:
            start: int64 [B]: number of tokens in each slot.
            new: New tokens n, padding included.
            reach: Columns L.
            blocks: int64 [B, n]: see the module docstring.

        Returns:
            `attention_mask`, and `windowed` for a decoder with sliding windows.
        """
        device = self.storage.device
        query = start[:, None] + torch.arange(new, device=device)
        columns = torch.arange(reach, device=device)
        hidden = columns > query[..., None]
        masks = {"attention_mask": hidden}
        if self.window is not None:
            masks["windowed"] = hidden | (columns <= query[..., None] - self.window)
        if blocks is not None:
            places = query[:, None].expand(-1, new, -1)
            apart = ~_same_block(blocks)
            for name, mask in masks.items():
                masks[name] = mask.scatter(2, places, mask.gather(2, places) & apart)
        return {name: self._additive(mask, new) for name, mask in masks.items()}

    def _additive(self, hidden: Tensor, new: int) -> Tensor:
        device = self.storage.device
        mask = torch.zeros(hidden.shape, device=device, dtype=self.storage.dtype)
        mask.masked_fill_(hidden, -torch.inf)
        if new == 1:
            return mask[:, None].expand(-1, -1, self.group, -1)
        return mask.repeat(1, self.group, 1)[:, None]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any):
        """Stores new keys and values [B, H, n, D]; returns those of the focus, [B, H, reach, D]."""
        keys, values = self.storage[layer_idx]
        for cached, states in ((keys, key_states), (values, value_states)):
            cached.flatten(0, 2).index_copy_(0, self._places, states.flatten(0, 2))
        window = (slice(self._first, self._last), slice(None), slice(0, self._reach))
        return keys[window], values[window]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens cached in the longest slot of the focus."""
        return self._reach


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    segments: tuple[RowGroup, ...] | None = None,
    prefix: int = 0,
    sliding_window: int | None = None,
    windowed: Tensor | None = None,
    blocks: Tensor | None = None,
    seen: list[int | None] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function registered as `ATTENTION`; see the module docstring.

    Raises:
        ModelError: The model asks for attention that is not computed here.
    """
    for name, meaning in UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise ModelError(f"{type(module).__name__} {meaning} ({name}), which is not supported")
    if seen is not None:
        seen.append(sliding_window)
    if segments is not None:
        parts = (scaling, dropout, segments, sliding_window, blocks)
        return _over_segments(query, key, value, *parts), None
    if sliding_window is not None and windowed is not None:
        attention_mask = windowed
    if attention_mask is not None and attention_mask.ndim == 4:
        # In bfloat16 torch's own kernel, which keeps scores in float32.
        if prefix and query.shape[2] == 1 and query.dtype == torch.float32:
            return _over_cache_prefix(query, key, value, attention_mask, scaling, prefix), None
        return _over_cache(query, key, value, attention_mask, scaling), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal
    )


def _over_segments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    dropout: float,
    segments: tuple[RowGroup, ...],
    window: int | None,
    blocks: Tensor | None,
) -> Tensor:
    """Causal attention inside each row; query [1, H, N, D] to output [1, N, H, D]."""
    tokens = [group.tokens for group in segments]
    block_line = [None] * len(tokens) if blocks is None else blocks.split(tokens)
    lines = [x[0].transpose(0, 1).split(tokens) for x in (query, key, value)]
    out, beginning = [], []
    for group, own_blocks, *stretches in zip(segments, block_line, *lines, strict=True):
        parts = [_pad(stretch, group) for stretch in stretches]
        mask = group.mask
        if mask is None:
            beginning = parts[1:]
        else:
            parts[1:] = [
                torch.cat([before.expand(group.rows, -1, -1, -1), part], dim=2)
                for before, part in zip(beginning, parts[1:], strict=True)
            ]
        reach = parts[1].shape[2]
        if own_blocks is not None or (window is not None and window < reach):
            mask = _visible(group.longest, reach, window, query.device)
            if own_blocks is not None:
                same = _same_block(_pad(own_blocks[:, None, None], group)[..., 0])
                mask = mask | pad(same, (reach - group.longest, 0))
        padded = scaled_dot_product_attention(
            *parts,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        line = padded.transpose(1, 2).reshape(group.rows * group.longest, *query.shape[1::2])
        out.append(line if group.index is None else line.index_select(0, group.index))
    return torch.cat(out)[None]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a training saves the mask for its backward pass
def _visible(new: int, reach: int, window: int | None, device: torch.device) -> Tensor:
    """bool [new, reach]: which of all tokens the last `new` ones attend to."""
    visible = torch.ones(new, reach, dtype=torch.bool, device=device).tril(reach - new)
    return visible if window is None else visible.triu(reach - new - window + 1)


def _same_block(blocks: Tensor) -> Tensor:
    """bool [..., n, n]: whether two of n tokens are of one image."""
    return (blocks[..., :, None] == blocks[..., None, :]) & (blocks > 0)[..., None]


def _pad(line: Tensor, group: RowGroup) -> Tensor:
    """A group's part of the line, [tokens, H, D], to [rows, H, longest, D]."""
    if group.index is not None:
        padded = line.new_zeros(group.rows * group.longest, *line.shape[1:])
        line = padded.index_copy(0, group.index, line)
    return line.view(group.rows, group.longest, *line.shape[1:]).transpose(1, 2)


def _over_cache(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attention over cached keys without copying them per query head.

    Query heads of one key head become further queries: query [B, H, n, D], key [B, H / G, L, D],
    mask [B, 1, G * n, L] (`SlotCache.mask`) to output [B, n, H, D].
    """
    batch, heads, new, size = query.shape
    folded = query.reshape(batch, key.shape[1], -1, size)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, new, size).transpose(1, 2)


def _over_cache_prefix(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, prefix: int
) -> Tensor:
    """Like `_over_cache` for one new token, where the first P cached tokens of all rows are equal.

    Reading keys and values dominates a decode step.
    """
    batch, heads, _, size = query.shape
    folded = query.reshape(batch, key.shape[1], -1, size)
    together = folded.transpose(0, 1).flatten(1, 2)  # [H / G, B * G, D]
    shape = (key.shape[1], batch, -1, prefix)
    common = (together @ key[0, :, :prefix].transpose(-1, -2)).view(shape).transpose(0, 1)
    own = folded @ key[:, :, prefix:].transpose(-1, -2)
    scores = torch.cat([common, own], dim=-1).mul_(scaling or size**-0.5).add_(mask)
    weights = scores.softmax(-1)
    out = weights[..., prefix:] @ value[:, :, prefix:]
    common = weights[..., :prefix].transpose(0, 1).flatten(1, 2) @ value[0, :, :prefix]
    out += common.view(key.shape[1], batch, -1, size).transpose(0, 1)
    return out.reshape(batch, heads, 1, size).transpose(1, 2)


AttentionInterface.register(ATTENTION, packed_attention)
