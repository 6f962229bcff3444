"""Texts of known truth, and the states of real episodes that they are about."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vagen.envs import make
from vagen.envs.base import AgentEnv, State

SHARE_KEPT = 0.4
"""Share of an episode's states that become scenes."""


class TextKind(StrEnum):
    """Truth of a text."""

    TRUE = "true"
    """Correct and complete: deserves the full score."""
    FALSE = "false"
    """A complete description of another state."""
    PARTIAL = "partial"
    """Correct except for one mistake or omission."""
    VAGUE = "vague"
    """Says nothing specific."""
    TEMPLATE = "template"
    """The same text for every state."""
    ADVERSARIAL = "adversarial"
    """Tries to get a score without describing the state."""


class Text(NamedTuple):
    """A text and its properties."""

    text: str
    wording: str
    """Notation and style, e.g. `sentences/compass`; results are grouped by it."""
    section: str | None = None
    """The section it belongs in; None for either."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A state of an episode, and how to reproduce it."""

    variant: int
    """Index of the environment's configuration."""
    env_config: dict[str, Any]
    seed: int
    turns: int
    """Number of expert turns from the start."""
    state: State = field(repr=False)

    def picture(self, env_name: str) -> NDArray[np.uint8] | None:
        """The frame of the state, uint8 [height, width, 3]; None if it has none."""
        env = make(env_name, self.env_config)
        try:
            env.reset(seed=self.seed)
            for _ in range(self.turns):
                env.step(env.expert_response())
            picture = getattr(env, "picture", None)
            return None if picture is None else picture()
        finally:
            env.close()


def sample_scenes(
    env_name: str, env_configs: Sequence[dict[str, Any]], count: int, seed: int
) -> list[Scene]:
    """States from episodes of the expert, from the start to the end.

    Args:
        env_name: A registered environment.
        env_configs: Its variants, in equal numbers.
        count: Number of states.
        seed: Seed of the levels, which are of the training split.
    """
    rng = Random(f"scenes {seed}")
    scenes: list[Scene] = []
    share = -(-count // len(env_configs))
    for variant, env_config in enumerate(env_configs):
        env = make(env_name, env_config)
        found: list[Scene] = []
        while len(found) < share:
            level_seed = rng.randrange(2**31)
            found += [
                Scene(variant, env_config, level_seed, turns, state)
                for turns, state in _episode(env, level_seed, rng)
            ]
        env.close()
        scenes += found[:share]
    rng.shuffle(scenes)
    return scenes[:count]


def _episode(env: AgentEnv, seed: int, rng: Random) -> list[tuple[int, State]]:
    """Some states of one episode, with their number of turns from the start."""
    _, info = env.reset(seed=seed)
    found, turns, over = [], 0, False
    while not over:
        if rng.random() < SHARE_KEPT:
            found.append((turns, info["state"]))
        *_, terminated, truncated, info = env.step(env.expert_response())
        turns += 1
        over = terminated or truncated
    return found
