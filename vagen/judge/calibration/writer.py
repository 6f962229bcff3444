"""What a calibration needs of an environment: states, and texts of known worth about them."""

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
"""Part of an episode's states that become scenes."""


class TextKind(StrEnum):
    """What a text is worth."""

    TRUE = "true"
    """Right and complete: a good judge gives it the full score."""
    FALSE = "false"
    """A complete description of another state."""
    PARTIAL = "partial"
    """Right but for one thing, or with something left out that has to be described."""
    VAGUE = "vague"
    """Says nothing specific."""
    TEMPLATE = "template"
    """The same text whatever the state."""
    ADVERSARIAL = "adversarial"
    """Tries to be paid without committing itself."""


class Text(NamedTuple):
    """A text and how it was made."""

    text: str
    wording: str
    """Notation and manner, e.g. `sentences/compass`; results are broken down by it."""
    section: str | None = None
    """Where it stands; None: in either section."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A state that an episode comes through, and how to come there again."""

    variant: int
    """Index of the environment's configuration among those that are calibrated."""
    env_config: dict[str, Any]
    seed: int
    turns: int
    """Expert turns from the start."""
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
    """Writes texts of known worth about the states of one environment.

    It shares no code with the judge's reader, so that both do not misunderstand the same way.
    """

    env_name: ClassVar[str]
    env_configs: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Variants of the environment that a calibration without an experiment goes over."""
    thing: str
    """Noun of an object that has to be described."""
    templates: tuple[str, ...]
    """Specific texts that do not depend on the state."""

    def __init__(self, env_config: EnvConfig) -> None:
        """Creates a writer for an environment as it is configured."""
        self.env_config = env_config

    @abstractmethod
    def plain(self, state: State) -> str:
        """A right and complete description in sentences, in the words of the prompt."""

    @abstractmethod
    def true(self, rng: Random, state: State) -> Text:
        """A right and complete description in any notation and wording."""

    @abstractmethod
    def differs(self, text: Text, state: State, other: State) -> bool:
        """Whether a text that is true of `other` is false of `state`, in the terms it is put in."""

    @abstractmethod
    def partial(self, rng: Random, state: State) -> Text | None:
        """A description with one mistake or one omission; None where there is none."""

    @abstractmethod
    def vague(self, rng: Random, state: State) -> Text:
        """A description that says nothing specific."""

    def opposes(self, state: State, other: State) -> bool:
        """Whether plain descriptions of the two states cannot both be right of one."""
        return self.differs(Text("", "sentences"), state, other)

    def adversarial(self, rng: Random, number: int, state: State, other: State) -> Text:
        """Attack number `number`, counted round, on a state.

        Args:
            rng: Decides the words, if anything is left to decide.
            number: From 0.
            state: That is described.
            other: One whose description contradicts that (`opposes`).
        """
        del rng
        texts = attacks(self.plain(state), self.plain(other), self.thing)
        texts |= {f"own/{name}": text for name, text in self.attacks(state, other).items()}
        wording = list(texts)[number % len(texts)]
        return Text(texts[wording], wording)

    def attacks(self, state: State, other: State) -> dict[str, str]:
        """Attacks of this environment's own, by `kind/name`."""
        del state, other
        return {}


def sample_scenes(
    env_name: str, env_configs: Sequence[dict[str, Any]], count: int, seed: int
) -> list[Scene]:
    """States from episodes of the expert, from the start to the end.

    Args:
        env_name: A registered environment.
        env_configs: Its variants, evenly represented.
        count: How many states.
        seed: Decides the levels; the states are those of the training split.
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
    """Some states of one episode, with the number of turns before them."""
    _, info = env.reset(seed=seed)
    found, turns, over = [], 0, False
    while not over:
        if rng.random() < SHARE_KEPT:
            found.append((turns, info["state"]))
        *_, terminated, truncated, info = env.step(env.expert_response())
        turns += 1
        over = terminated or truncated
    return found
