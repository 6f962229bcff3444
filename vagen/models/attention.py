"""Attention over packed rows and over a cache of conversations, for any `transformers` decoder.

`transformers` calls the attention function registered here with whatever keyword arguments its
model was called with. Two are ours:

- `segments`: the batch is one long line of rows laid end to end (no padding in the linear layers);
  attention is computed row by row, causally.
- a 4-D additive mask together with a `SlotCache`: every row of the batch is a conversation with a
  cache of its own length.

Shape legend: N tokens of a packed line, B rows, H heads, G query heads per key head, L cached
tokens, n new tokens, D head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "vagen_packed"
"""Name under which the function is registered with `transformers`."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the rows of a packed line start and end."""

    rows: int
    longest: int
    index: Tensor
    """int64 [N]: place of each token in the padded [rows * longest] layout."""

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Segments":
        """Rows of these lengths, laid end to end."""
        longest = max(lengths)
        index = torch.cat(
            [torch.arange(length) + i * longest for i, length in enumerate(lengths)]
        ).to(device)
        return cls(len(lengths), longest, index)


class SlotCache(Cache):
    """Keys and values of many conversations, each in a slot of its own length.

    The storage is [layers, 2, slots, length, key heads, D]. A forward pass works on a contiguous
    range of slots, chosen with `focus`.
    """

    def __init__(self, config: Any, slots: int, length: int, device: torch.device, dtype: Any):
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.storage = torch.zeros(
            config.num_hidden_layers, 2, slots, length, heads, head_dim, device=device, dtype=dtype
        )
        self._first = self._last = self._reach = 0
        self._places: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Tokens a slot can hold."""
        return self.storage.shape[3]

    def grow(self, length: int) -> None:
        """Makes room for `length` tokens per slot."""
        if length > self.length:
            shape = list(self.storage.shape)
            shape[3] = max(length, 2 * self.length)
            larger = self.storage.new_zeros(shape)
            larger[:, :, :, : self.length] = self.storage
            self.storage = larger

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchanges two slots of which the longer holds `length` tokens."""
        if a != b:
            pair = self.storage[:, :, [a, b], :length]
            self.storage[:, :, [b, a], :length] = pair

    def focus(self, first: int, last: int, start: Tensor, new: int, reach: int) -> None:
        """Chooses slots [first, last) and where their `new` next tokens go.

        Args:
            first: First slot.
            last: Slot after the last.
            start: int64 [last - first]: tokens each slot holds already.
            new: Tokens to come, padding included.
            reach: Largest number of tokens a slot will hold afterwards.
        """
        self._first, self._last, self._reach = first, last, reach
        rows = torch.arange(first, last, device=self.storage.device)[:, None]
        self._places = (rows, start[:, None] + torch.arange(new, device=self.storage.device))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any):
        """Stores new keys and values [B, H, n, D]; returns all of the focus, [B, H, reach, D]."""
        assert self._places is not None
        keys, values = self.storage[layer_idx]
        keys[self._places] = key_states.transpose(1, 2)
        values[self._places] = value_states.transpose(1, 2)
        window = (slice(self._first, self._last), slice(0, self._reach))
        return keys[window].transpose(1, 2), values[window].transpose(1, 2)

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
    segments: Segments | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function registered as `ATTENTION`; see the module's docstring."""
    if is_causal is False:  # the vision tower, one image at a time
        return sdpa_attention_forward(
            module, query, key, value, None, dropout, scaling, is_causal=False
        )
    if segments is not None:
        return _over_segments(query, key, value, scaling, dropout, segments), None
    if attention_mask is not None and attention_mask.ndim == 4:
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
    segments: Segments,
) -> Tensor:
    """Causal attention inside each row; query [1, H, N, D] to output [1, N, H, D]."""

    def pad(x: Tensor) -> Tensor:
        line = x[0].transpose(0, 1)
        padded = line.new_zeros(segments.rows * segments.longest, *line.shape[1:])
        padded = padded.index_copy(0, segments.index, line)
        return padded.view(segments.rows, segments.longest, *line.shape[1:]).transpose(1, 2)

    out = scaled_dot_product_attention(
        pad(query),
        pad(key),
        pad(value),
        dropout_p=dropout,
        is_causal=True,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    line = out.transpose(1, 2).reshape(segments.rows * segments.longest, *query.shape[1::2])
    return line.index_select(0, segments.index)[None]


def _over_cache(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attention over cached keys without copying them per query head.

    The query heads of one key head are laid side by side as further queries: query [B, H, n, D],
    key [B, H / G, L, D], mask [B, 1, n, L] to output [B, n, H, D].
    """
    batch, heads, new, size = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    folded = query.reshape(batch, key_heads, group * new, size)
    if group > 1:
        mask = mask.expand(batch, group, new, mask.shape[-1]).reshape(batch, 1, group * new, -1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, new, size).transpose(1, 2)


AttentionInterface.register(ATTENTION, packed_attention)
