"""Writes texts of known truth about states of an environment, for calibrations."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vagen.envs import make
from vagen.envs.base import AgentEnv, State
from vagen.envs.config import EnvConfig
from vagen.judge.calibration.attacks import attacks

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


class Writer(ABC):
    """Writes texts of known truth about states of one environment.

    Shares no code with the judge's reader, so that the two do not have the same bugs.
    """

    env_name: ClassVar[str]
    env_configs: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Variants of the environment for a calibration without an experiment."""
    thing: str
    """Noun of an object that must be described."""
    templates: tuple[str, ...]
    """Specific texts that do not depend on the state."""

    def __init__(self, env_config: EnvConfig) -> None:
        """Creates a writer for an environment with these options."""
        self.env_config = env_config

    @abstractmethod
    def plain(self, state: State) -> str:
        """A correct and complete description in sentences, in the words of the prompt."""

    @abstractmethod
    def true(self, rng: Random, state: State) -> Text:
        """A correct and complete description in any notation and wording."""

    @abstractmethod
    def differs(self, text: Text, state: State, other: State) -> bool:
        """Whether a true text about `other` is false about `state`, at the text's precision."""

    @abstractmethod
    def partial(self, rng: Random, state: State) -> Text | None:
        """A description with one mistake or omission; None if there is none."""

    @abstractmethod
    def vague(self, rng: Random, state: State) -> Text:
        """An unspecific description."""

    def opposes(self, state: State, other: State) -> bool:
        """Whether plain descriptions of the two states contradict each other."""
        return self.differs(Text("", "sentences"), state, other)

    def adversarial(self, rng: Random, number: int, state: State, other: State) -> Text:
        """Attack `number`, modulo the number of attacks, on a state.

        Args:
            rng: Chooses words.
            number: From 0.
            state: The described state.
            other: A state whose description contradicts it (`opposes`).
        """
        del rng
        texts = attacks(self.plain(state), self.plain(other), self.thing)
        texts |= {f"own/{name}": text for name, text in self.attacks(state, other).items()}
        wording = list(texts)[number % len(texts)]
        return Text(texts[wording], wording)

    def attacks(self, state: State, other: State) -> dict[str, str]:
        """Environment-specific attacks, by `kind/name`."""
        del state, other
        return {}


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
