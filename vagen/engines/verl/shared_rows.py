"""Sends rows to the ranks: each is stored once in Ray's object store, and calls refer to it.

A batch is read several times: for log-probabilities, reference, values, and in every step of every
network. Its constant part (tokens, positions, images) is in the store, shared by the ranks of a
node; what differs by call (masks, columns, options) is sent with the call.

Shape legend: T tokens of a row.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from tensordict import TensorDict

from vagen.engines.base import Images
from vagen.engines.verl.rows import StaticColumns, assemble, balanced, column, entry_of, padded
from vagen.models.processor import Processor
from vagen.rollout.types import TokenRow


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
        order = balanced(full, ranks)
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
                    columns={name: [column(full[i], name) for i in chosen] for name in columns},
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
