"""Levels: content hashes, and splits that are disjoint by construction.

A level belongs to exactly one split, decided by a hash of its content alone. Whatever seeds are
used, no level can be in two splits.
"""

import hashlib
from typing import Literal, Protocol, get_args

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

MAX_CANDIDATES = 20_000
"""Candidates drawn for one level before its options are said to be impossible."""


class LevelError(ValueError):
    """No such level: options that nothing satisfies, an exhausted split, an unsolvable file."""


class Level(Protocol):
    """What every environment's level offers."""

    @property
    def level_hash(self) -> str:
        """SHA-256 of the level's content, hexadecimal."""
        ...


def content_hash(content: str) -> str:
    """SHA-256 of a level's canonical text, hexadecimal."""
    return hashlib.sha256(content.encode()).hexdigest()


def split_of(digest: str) -> Split:
    """The split of a content hash: a tenth test, a tenth val, the rest train."""
    bucket = int(digest[:8], 16) % 10
    return "test" if bucket == 0 else "val" if bucket == 1 else "train"


def check_split(split: str) -> Split:
    """Returns `split`.

    Raises:
        LevelError: if it is none of `SPLITS`.
    """
    for known in SPLITS:
        if split == known:
            return known
    raise LevelError(f"unknown split {split!r}: one of {', '.join(SPLITS)}")
