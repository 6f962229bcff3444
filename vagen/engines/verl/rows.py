"""Rows of tokens as verl's jagged batches, and back.

A position of a jagged field belongs to a token of the row. What a network says at a token is of
the next one: log-probabilities and values come back shifted, see `before_tokens`.

Shape legend: R rows, T tokens of a row.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from torch import Tensor
from verl.utils import tensordict_utils
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from vagen.engines.base import Images
from vagen.engines.local.packing import ROW_FIELDS
from vagen.models.processor import Processor
from vagen.rollout.types import TokenRow

ACTIONS = "loss_mask"
"""Field with True on the tokens that the policy loss reads; verl counts its tokens."""
FRAMES = "multi_modal_inputs"
"""Field with `{"png": [bytes, ...]}` of each row, the frames of its image blocks in order."""


def to_batch(
    rows: Sequence[TokenRow],
    images: Images,
    processor: Processor,
    *,
    action_mask: Callable[[TokenRow], NDArray[np.bool_]],
    columns: Iterable[str] = (),
    **options: object,
) -> TensorDict:
    """A batch for verl's workers.

    Args:
        rows: At least one.
        images: PNG bytes by digest; every image of the rows is there.
        processor: Of the model that will read them: it knows positions.
        action_mask: bool [T] of a row.
        columns: Columns (or `ROW_FIELDS`) to send along, as `column/<name>`, float32.
        options: What holds for the batch as a whole, such as `temperature`.

    Returns:
        int64 `input_ids` [R, T], int64 `position_ids` [R, T] or [R, 4, T] (text, then time, height,
        width), bool `ACTIONS` [R, T], `FRAMES`, and the columns [R, T]; all jagged in T.
    """
    fields: dict[str, Tensor | NonTensorStack] = {
        "input_ids": jagged([torch.from_numpy(row.input_ids).long() for row in rows]),
        "position_ids": jagged([_positions(row, images, processor) for row in rows]),
        ACTIONS: jagged([torch.from_numpy(action_mask(row)) for row in rows]),
    }
    if processor.has_vision:
        shown = [{"png": [images[digest] for digest in row.images]} for row in rows]
        fields[FRAMES] = NonTensorStack(*(NonTensorData(entry) for entry in shown))
    for name in columns:
        fields[f"column/{name}"] = jagged([torch.from_numpy(_column(row, name)) for row in rows])
    return tensordict_utils.get_tensordict(fields, non_tensor_dict=options)


def jagged(parts: list[Tensor]) -> Tensor:
    """Tensors [..., T] as one nested tensor, jagged in T also where every T happens to be equal."""
    return tensordict_utils.nested_tensor_from_tensor_list(parts, ragged_idx=parts[0].dim())


def at_tokens(outputs: Tensor) -> list[NDArray[np.float32]]:
    """What a network said at each token, float32 [T] per row, from a jagged tensor [R, T]."""
    return [part.float().numpy() for part in outputs.unbind()]


def before_tokens(outputs: Tensor) -> list[NDArray[np.float32]]:
    """What it said before each token: its output at the one before; 0 for the first."""
    return [np.concatenate([[np.float32(0)], part[:-1]]) for part in at_tokens(outputs)]


def padded(rows: Sequence[TokenRow], ranks: int) -> list[TokenRow]:
    """The rows, with copies of the shortest behind them so that every rank gets as many.

    A copy holds no action, no reward and no target: it takes part in no loss and no mean.
    """
    shortest = min(rows, key=lambda row: len(row.input_ids))
    silent = replace(
        shortest,
        loss_mask=np.zeros_like(shortest.loss_mask),
        columns={name: np.zeros_like(values) for name, values in shortest.columns.items()},
    )
    return [*rows, *[silent] * (-len(rows) % ranks)]


def balanced(rows: Sequence[TokenRow], ranks: int) -> list[int]:
    """An order of the rows in which equal shares, one per rank, hold about as many tokens."""
    if ranks == 1:
        return list(range(len(rows)))
    lengths = [len(row.input_ids) for row in rows]
    parts = get_seqlen_balanced_partitions(lengths, k_partitions=ranks, equal_size=True)
    return [place for part in parts for place in part]


def _column(row: TokenRow, name: str) -> NDArray[np.float32]:
    values = getattr(row, name) if name in ROW_FIELDS else row.columns[name]
    return np.asarray(values, dtype=np.float32)


def _positions(row: TokenRow, images: Images, processor: Processor) -> Tensor:
    line = np.arange(len(row.input_ids), dtype=np.int64)
    if not processor.uses_mrope:
        return torch.from_numpy(line)
    # Only its size is read, unless it is the first of this size.
    frames = [Image.open(io.BytesIO(images[digest]), formats=("PNG",)) for digest in row.images]
    axes, _ = processor.positions(row.input_ids, [processor.image_grid(f) for f in frames], 0)
    return torch.from_numpy(np.concatenate([line[None], axes]))
