"""Levels: content hashes, splits that are disjoint by construction, and distinct level lists.

A level belongs to exactly one split, decided by a hash of its content alone. Whatever seeds are
used, no level can be in two splits.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

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


@dataclass(frozen=True, slots=True)
class LevelRef:
    """A level by the seed that makes it."""

    seed: int
    level_hash: str


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


def distinct_levels(
    env_name: str, env_config: dict[str, Any], split: str, count: int
) -> list[LevelRef]:
    """The first `count` seeds whose levels differ from one another.

    The list for a smaller count is a prefix of the list for a larger one.

    Raises:
        LevelError: if the split has fewer levels; the message says how many were found.
    """
    from vagen.envs.registry import get_environment, parse_env_config

    env_class = get_environment(env_name).load()
    config = parse_env_config(env_name, env_config)
    split = check_split(split)
    refs: list[LevelRef] = []
    seen: set[str] = set()
    fruitless = 0
    seed = 0
    while len(refs) < count:
        digest = env_class.sample_level(config, seed, split).level_hash
        fruitless += 1
        if digest not in seen:
            seen.add(digest)
            refs.append(LevelRef(seed, digest))
            fruitless = 0
        elif fruitless > 1_000 + 5 * len(refs):
            raise LevelError(
                f"{env_name} {split}: {count} distinct levels wanted, but only {len(refs)} were "
                f"found in {seed + 1} seeds; ask for fewer, or allow more levels by its options "
                f"(size, distance or length bounds, number of boxes, level file)"
            )
        seed += 1
    return refs
