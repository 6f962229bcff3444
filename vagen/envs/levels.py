"""Content hashes of levels, and splits that are disjoint by construction.

A hash of its content decides the split of a level. So no level can be in two splits, whatever the
seeds.
"""

import hashlib
from random import Random
from typing import Literal, Protocol, get_args

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

MAX_CANDIDATES = 20_000
"""Number of candidates per level before its options count as impossible."""


class LevelError(ValueError):
    """There is no such level: impossible options, an exhausted split, an unsolvable file."""


class Level(Protocol):
    """The interface of every environment's level."""

    @property
    def level_hash(self) -> str:
        """SHA-256 of the level's content, hexadecimal."""
        ...


def content_hash(content: str) -> str:
    """SHA-256 of a level's canonical text, hexadecimal."""
    return hashlib.sha256(content.encode()).hexdigest()


def draw_index(rng: Random, count: int) -> int:
    """A uniform index below `count`, from `random()` only: equal in every Python version."""
    return int(rng.random() * count)


def split_of(digest: str) -> Split:
    """The split of a content hash: one tenth test, one tenth val, the rest train."""
    bucket = int(digest[:8], 16) % 10
    return "test" if bucket == 0 else "val" if bucket == 1 else "train"


def check_split(split: str) -> Split:
    """Returns `split` if valid.

    Raises:
        LevelError: It is not in `SPLITS`.
    """
    for known in SPLITS:
        if split == known:
            return known
    raise LevelError(f"unknown split {split!r}: one of {', '.join(SPLITS)}")
