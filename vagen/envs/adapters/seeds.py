"""Levels of environments whose levels are known by their seeds alone."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from vagen.envs.levels import Split, content_hash, split_of


class AdapterError(ValueError):
    """An environment that cannot be adapted as configured."""


@dataclass(frozen=True, slots=True)
class SeedLevel:
    """What an environment makes of a seed."""

    seed: int
    """Handed to the environment's own `reset`."""
    level_hash: str


def seed_level(name: str, kwargs: dict[str, Any], seed: int, split: Split) -> SeedLevel:
    """The seed that `reset(seed=seed)` hands on in this split.

    The splits share no seed. Whether two seeds give the same level only the environment knows.
    """
    prefix = f"{name} {json.dumps(kwargs, sort_keys=True, default=str)} "
    rng = Random(seed)
    while True:
        own = int(rng.random() * 2**31)
        digest = content_hash(f"{prefix}{own}")
        if split_of(digest) == split:
            return SeedLevel(own, digest)
