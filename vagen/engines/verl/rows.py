"""Sends rows of tokens to the ranks, as verl's jagged batches.

Each row is stored once in Ray's object store, and calls refer to it: a batch is read several times,
for log-probabilities, reference, values, and in every step of every network. Its constant part
(tokens, positions, images) is in the store, shared by the ranks of a node; what differs by call
(masks, columns, options) is sent with the call.

Rows with the same prompt go to one rank and one micro batch as far as possible: networks compute
what rows share at the start once (`networks.Learner`, `vagen.engines.local.packing`).

Entry t of a jagged field belongs to token t. A network's output at a token is about the next one,
so log-probabilities and values come back shifted, see `before_tokens`.

Shape legend: R rows, T tokens of a row.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from PIL import Image
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from torch import Tensor
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
from verl.workers.engine.utils import prepare_micro_batches as split_padded

from vagen.engines.base import Images
from vagen.engines.local.packing import RowPrefix, micro_batches, whole_row
from vagen.engines.objectives import column_of
from vagen.models.processor import Processor
from vagen.rollout.types import TokenRow

ACTIONS = "loss_mask"
"""Field that is True on the tokens of the policy loss; verl counts its tokens."""
ROWS = "vagen_rows"
"""Field with the `StaticColumns` of each row, without its positions."""


class StaticColumns(TypedDict):
    """The parts of a row that are the same in all calls."""

    whole: RowPrefix
    """All of the row: its ids and what it may share with others."""
    position_ids: NDArray[np.int64]
    """[T], or [4, T]: text, then time, height, width."""
    frames: list[Any] | None
    """PNG bytes of its frames in order, or their features if the vision tower is frozen
    (`networks.Learner.features`); None for a model without vision."""


def entry_of(
    row: TokenRow, images: Images, processor: Processor, features: Mapping[str, Any] | None = None
) -> tuple[StaticColumns, list[int]]:
    """A row as the ranks store it, and the number of patches of each frame.

    Args:
        row: Any row.
        images: PNG bytes by digest, with all images of the row.
        processor: Processor of the model, which computes positions.
        features: Replacements of the images, by digest.
    """
    positions, grids = _positions(row, images, processor)
    shown: Mapping[str, Any] = images if features is None else features
    entry: StaticColumns = {
        "whole": whole_row(row, processor.image_ids),
        "position_ids": positions,
        "frames": [shown[digest] for digest in row.images] if processor.has_vision else None,
    }
    return entry, [int(np.prod(grid)) for grid in grids] if features is None else []


def assemble(
    entries: Sequence[StaticColumns],
    actions: Sequence[NDArray[np.bool_]],
    columns: Mapping[str, Sequence[NDArray[np.float32]]],
    **options: object,
) -> TensorDict:
    """A batch for verl's workers.

    Args:
        entries: At least one row.
        actions: [T] of each row: tokens of the policy loss.
        columns: [T] of each row, by name.
        options: Values for the whole batch, such as `temperature`.

    Returns:
        int64 `input_ids` [R, T], int64 `position_ids` [R, T] or [R, 4, T], bool `ACTIONS` [R, T],
        `ROWS`, and the columns [R, T] as `column/<name>`, float32; all jagged in T.
    """
    # Copied, because arrays from Ray's object store are read-only.
    fields: dict[str, Tensor | NonTensorStack] = {
        "input_ids": jagged([torch.tensor(entry["whole"].ids).long() for entry in entries]),
        "position_ids": jagged([torch.tensor(entry["position_ids"]) for entry in entries]),
        ACTIONS: jagged([torch.tensor(mask) for mask in actions]),
        ROWS: NonTensorStack(
            *(NonTensorData({k: e[k] for k in ("whole", "frames")}) for e in entries)
        ),
    }
    for name, values in columns.items():
        fields[f"column/{name}"] = jagged([torch.tensor(value) for value in values])
    return tensordict_utils.get_tensordict(fields, non_tensor_dict=options)


def to_batch(
    rows: Sequence[TokenRow],
    images: Images,
    processor: Processor,
    *,
    action_mask: Callable[[TokenRow], NDArray[np.bool_]],
    columns: Iterable[str] = (),
    features: Mapping[str, Any] | None = None,
    **options: object,
) -> TensorDict:
    """`assemble` of local rows; `columns` are see `column_of`."""
    return assemble(
        [entry_of(row, images, processor, features)[0] for row in rows],
        [action_mask(row) for row in rows],
        {name: [column_of(row, name) for row in rows] for name in columns},
        **options,
    )


def jagged(parts: list[Tensor]) -> Tensor:
    """Tensors [..., T] as one nested tensor, jagged in T even if all T are equal."""
    return tensordict_utils.nested_tensor_from_tensor_list(parts, ragged_idx=parts[0].dim())


def at_tokens(outputs: Tensor) -> list[NDArray[np.float32]]:
    """Outputs at each token, float32 [T] per row, from a jagged tensor [R, T]."""
    return [part.float().numpy() for part in outputs.unbind()]


def before_tokens(outputs: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Outputs before each token, shifted by one from a jagged tensor [R, T]; 0 for the first."""
    return [np.concatenate([[np.float32(0)], part[:-1]]) for part in outputs]


def padded(rows: Sequence[TokenRow], ranks: int) -> list[TokenRow]:
    """The rows, padded with copies of the shortest to a multiple of the ranks.

    Copies have no action, reward or target, so they do not affect any loss or mean.
    """
    shortest = min(rows, key=lambda row: len(row.input_ids))
    silent = replace(
        shortest,
        loss_mask=np.zeros_like(shortest.loss_mask),
        columns={name: np.zeros_like(values) for name, values in shortest.columns.items()},
    )
    return [*rows, *[silent] * (-len(rows) % ranks)]


def balanced(rows: Sequence[RowPrefix], ranks: int) -> list[int]:
    """An order of the rows in which equal shares, one per rank, have similar numbers of tokens.

    Rows with the same prompt go to one rank, which computes the prompt once, as far as the equal
    numbers of rows allow.
    """
    if ranks == 1:
        return list(range(len(rows)))
    families: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        families.setdefault(row.opening if row.prompt else i, []).append(i)
    lengths = [len(row.ids) for row in rows]
    if len(families) == len(rows):
        parts = get_seqlen_balanced_partitions(lengths, k_partitions=ranks, equal_size=True)
        return [place for part in parts for place in part]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    size = len(rows) // ranks

    def tokens(members: Sequence[int]) -> int:
        shared = rows[members[0]].prompt
        return shared + sum(lengths[i] - shared for i in members)

    for members in sorted(families.values(), key=tokens, reverse=True):
        while members:
            room = [rank for rank in range(ranks) if len(shares[rank]) < size]
            fits = [rank for rank in room if size - len(shares[rank]) >= len(members)]
            if fits:
                rank = min(fits, key=lambda rank: loads[rank])
            else:
                rank = min(room, key=lambda rank: len(shares[rank]))
            free = size - len(shares[rank])
            here, members = members[:free], members[free:]
            shares[rank] += here
            loads[rank] += tokens(here)
    return [place for share in shares for place in share]


def prepare_micro_batches(
    data: TensorDict, dp_group: Any = None, **options: Any
) -> tuple[list[TensorDict], list[list[int]]]:
    """Replaces verl's function: rows with the same prompt are neighbours, and it counts once.

    That is for packed rows. As prefixes are shared only where it saves a tenth of a line, a micro
    batch can exceed the limit by as much.

    Returns:
        Equally many micro batches on every rank, and the indices of their rows.
    """
    if not data["use_remove_padding"]:
        return split_padded(data, dp_group, **options)
    rows = [row["whole"] for row in rows_of(data)]
    groups = list(micro_batches(rows, data["max_token_len_per_gpu"]))
    count = torch.tensor(len(groups), device=get_device_name())
    torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MAX, group=dp_group)
    while len(groups) < int(count):
        longest = max(groups, key=len)
        place, half = groups.index(longest), len(longest) // 2
        groups[place : place + 1] = [longest[:half], longest[half:]]
    return [tensordict_utils.index_select_tensor_dict(data, group) for group in groups], groups


def rows_of(data: TensorDict) -> list[Any]:
    """The field `ROWS` of a batch."""
    return [getattr(row, "data", row) for row in data[ROWS]]


def _positions(
    row: TokenRow, images: Images, processor: Processor
) -> tuple[NDArray[np.int64], list[Any]]:
    """Position ids, and the grids of the row's frames."""
    line = np.arange(len(row.input_ids), dtype=np.int64)
    if not processor.uses_mrope:
        return line, []
    # The pixels are read only for the first frame of each size.
    frames = [Image.open(io.BytesIO(images[digest]), formats=("PNG",)) for digest in row.images]
    grids = [processor.shape_of(frame.size).grid for frame in frames]
    axes, _ = processor.positions(row.input_ids, grids, 0)
    return np.concatenate([line[None], axes]), grids


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a call."""

    rows: list[Any]
    """Ray references to a `StaticColumns` each."""
    actions: list[NDArray[np.bool_]]
    """[T] of each row: tokens of the policy loss."""
    columns: dict[str, list[NDArray[np.float32]]]
    """[T] of each row, by name."""
    options: dict[str, Any]
    """Values for all rows."""

    def batch(self) -> TensorDict:
        """Fetches the rows and builds verl's batch."""
        entries: list[StaticColumns] = ray.get(self.rows)
        for entry in entries:
            if entry["frames"] and isinstance(entry["frames"][0], ray.ObjectRef):
                entry["frames"] = ray.get(entry["frames"])
        return assemble(entries, self.actions, self.columns, **self.options)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row in the store."""

    place: Any
    patches: list[int]
    """Patches of each of its images in the vision tower."""


@dataclass
class SharedRows:
    """Puts rows into the store and creates the ranks' shares.

    Rows are identified by content, so a batch that is reloaded from disk is not sent again. A call
    with an unknown row starts a new batch and drops rows that the call does not contain.
    """

    processor: Processor
    action_mask: Callable[[TokenRow], NDArray[np.bool_]]
    put: Callable[[StaticColumns], Any] = ray.put
    encode: Callable[[list[bytes]], list[Any]] | None = None
    """Returns references to features of images, used in place of the images; None if the vision
    tower is trained."""
    _stored: dict[bytes, StoredRow] = field(default_factory=dict)
    _features: dict[str, Any] = field(default_factory=dict)
    """References to features, by digest of the image."""

    def shares(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        ranks: int,
        columns: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        batch: Sequence[TokenRow] = (),
    ) -> tuple[list[Share], list[int]]:
        """Divides rows among ranks, in equal numbers with similar numbers of tokens.

        Args:
            rows: At least one; padded with copies that do not count.
            images: PNG bytes by digest.
            ranks: Number of shares.
            columns: Names of the columns that the loss reads.
            options: Values for all rows.
            batch: Further rows of the same batch, which stay in the store.

        Returns:
            The shares, and the index of the row at each place of the concatenated shares; indices
            from `len(rows)` on are copies.
        """
        full = padded(rows, ranks)
        image = self.processor.image_ids
        order = balanced([whole_row(row, image) for row in full], ranks)
        stored = self._store(full, images, batch)
        # verl's counter of floating-point operations needs them for all ranks.
        common = {
            **(options or {}),
            "global_token_num": [len(row.input_ids) for row in full],
            "images_seqlens": [count for entry in stored for count in entry.patches],
        }
        size = len(full) // ranks
        shares = []
        for rank in range(ranks):
            chosen = order[rank * size : (rank + 1) * size]
            shares.append(
                Share(
                    rows=[stored[i].place for i in chosen],
                    actions=[self.action_mask(full[i]) for i in chosen],
                    columns={name: [column_of(full[i], name) for i in chosen] for name in columns},
                    options=common,
                )
            )
        return shares, order

    def _store(
        self, rows: Sequence[TokenRow], images: Images, batch: Sequence[TokenRow]
    ) -> list[StoredRow]:
        keys = [digest_of(row) for row in rows]
        if not self._stored.keys() >= set(keys):
            stay = [*keys, *map(digest_of, batch)]
            self._stored = {key: self._stored[key] for key in stay if key in self._stored}
            if self.encode is not None:
                self._update_features([*rows, *batch], images, self.encode)
        features = None if self.encode is None else self._features
        for key, row in zip(keys, rows, strict=True):
            if key not in self._stored:
                entry, patches = entry_of(row, images, self.processor, features)
                self._stored[key] = StoredRow(self.put(entry), patches)
        return [self._stored[key] for key in keys]

    def _update_features(
        self, rows: Sequence[TokenRow], images: Images, encode: Callable[[list[bytes]], list[Any]]
    ) -> None:
        """Computes features of the batch's new images and drops those of the previous batch."""
        shown = dict.fromkeys(digest for row in rows for digest in row.images)
        self._features = {key: self._features[key] for key in shown if key in self._features}
        new = [digest for digest in shown if digest not in self._features]
        if new:
            found = encode([images[digest] for digest in new])
            self._features.update(zip(new, found, strict=True))


def digest_of(row: TokenRow) -> bytes:
    """Digest, 16 bytes, of the constant part: tokens and image digests."""
    content = hashlib.blake2b(np.ascontiguousarray(row.input_ids).tobytes(), digest_size=16)
    content.update("|".join(row.images).encode())
    return content.digest()
