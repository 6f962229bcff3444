"""Adapters for other interfaces: Gymnasium's, VAGEN's `GymImageEnv`, and OpenEnv's."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from vagen.envs.levels import Split, content_hash, split_of


class AdapterError(ValueError):
    """An environment that cannot be adapted as configured."""


@dataclass(frozen=True, slots=True)
class SeedLevel:
    """A level that a seed defines."""

    seed: int
    """Seed for the environment's `reset`."""
    level_hash: str


def seed_level(name: str, kwargs: dict[str, Any], seed: int, split: Split) -> SeedLevel:
    """The environment's seed for `reset(seed=seed)` in this split.

    Splits share no seed, but different seeds may give the same level.
    """
    prefix = f"{name} {json.dumps(kwargs, sort_keys=True, default=str)} "
    rng = Random(seed)
    while True:
        own = int(rng.random() * 2**31)
        digest = content_hash(f"{prefix}{own}")
        if split_of(digest) == split:
            return SeedLevel(own, digest)
