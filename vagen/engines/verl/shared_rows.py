"""Rows on their way to the ranks: each is put into Ray's object store once, calls only name it.

A batch is read several times: for log-probabilities, reference, values, and by every step of every
network. What does not change (tokens, positions, pictures) is in the store, where the ranks of a
node share one copy of it; what a call adds (masks, columns, options) goes with the call.

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
    """What one rank gets of a call."""

    rows: list[Any]
    """Where the rows are: Ray's references to a `StaticColumns` each."""
    actions: list[NDArray[np.bool_]]
    """[T] of each row: the tokens that the policy loss reads."""
    columns: dict[str, list[NDArray[np.float32]]]
    """[T] of each row, by name."""
    options: dict[str, Any]
    """What holds for all of it."""

    def batch(self) -> TensorDict:
        """The rows, fetched, as verl's batch."""
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
    """Patches of each of its pictures that the vision tower will read."""


@dataclass
class SharedRows:
    """Puts rows into the store and names them to the ranks.

    Rows are known by what is in them: a batch that is read again from disk is not sent again. A
    call with a row that is not there begins another batch, and what it does not name is dropped.
    """

    processor: Processor
    action_mask: Callable[[TokenRow], NDArray[np.bool_]]
    put: Callable[[StaticColumns], Any] = ray.put
    see: Callable[[list[bytes]], list[Any]] | None = None
    """Where the features of pictures are that rows get in place of these; None of networks whose
    vision tower learns."""
    _held: dict[bytes, StoredRow] = field(default_factory=dict)
    _seen: dict[str, Any] = field(default_factory=dict)
    """By a picture's digest, where its features are."""

    def shares(
        self,
        rows: Sequence[TokenRow],
        images: Images,
        ranks: int,
        columns: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        batch: Sequence[TokenRow] = (),
    ) -> tuple[list[Share], list[int]]:
        """What each rank gets of the rows, in equal numbers and about equal numbers of tokens.

        Args:
            rows: At least one; copies that count nowhere fill them up.
            images: PNG bytes by digest.
            ranks: Number of shares.
            columns: Names of what the loss reads.
            options: What holds for all rows.
            batch: More rows of the same batch: what is there of them stays.

        Returns:
            The shares, and which row is at each place of all shares laid end to end; numbers from
            `len(rows)` on are copies.
        """
        full = padded(rows, ranks)
        order = balanced(full, ranks)
        held = self._hold(full, images, batch)
        # verl's counter of floating-point operations takes them over all ranks.
        common = {
            **(options or {}),
            "global_token_num": [len(row.input_ids) for row in full],
            "images_seqlens": [count for entry in held for count in entry.patches],
        }
        size = len(full) // ranks
        shares = []
        for rank in range(ranks):
            chosen = order[rank * size : (rank + 1) * size]
            shares.append(
                Share(
                    rows=[held[i].place for i in chosen],
                    actions=[self.action_mask(full[i]) for i in chosen],
                    columns={name: [column(full[i], name) for i in chosen] for name in columns},
                    options=common,
                )
            )
        return shares, order

    def _hold(
        self, rows: Sequence[TokenRow], images: Images, batch: Sequence[TokenRow]
    ) -> list[StoredRow]:
        keys = [digest_of(row) for row in rows]
        if not self._held.keys() >= set(keys):
            stay = [*keys, *map(digest_of, batch)]
            self._held = {key: self._held[key] for key in stay if key in self._held}
            if self.see is not None:
                self._look([*rows, *batch], images, self.see)
        features = None if self.see is None else self._seen
        for key, row in zip(keys, rows, strict=True):
            if key not in self._held:
                entry, patches = entry_of(row, images, self.processor, features)
                self._held[key] = StoredRow(self.put(entry), patches)
        return [self._held[key] for key in keys]

    def _look(
        self, rows: Sequence[TokenRow], images: Images, see: Callable[[list[bytes]], list[Any]]
    ) -> None:
        """Has the pictures of a batch seen that are new, and drops those of the one before."""
        shown = dict.fromkeys(digest for row in rows for digest in row.images)
        self._seen = {digest: self._seen[digest] for digest in shown if digest in self._seen}
        new = [digest for digest in shown if digest not in self._seen]
        if new:
            found = see([images[digest] for digest in new])
            self._seen.update(zip(new, found, strict=True))


def digest_of(row: TokenRow) -> bytes:
    """Of what does not change: the tokens and the pictures' digests. 16 bytes."""
    content = hashlib.blake2b(np.ascontiguousarray(row.input_ids).tobytes(), digest_size=16)
    content.update("|".join(row.images).encode())
    return content.digest()
