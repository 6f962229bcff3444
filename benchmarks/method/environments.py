"""The token task as an environment of the pipeline, and experts that know the layout alone.

env_name: benchmarks.method.environments:TurnsEnv
"""

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.method.lab import RIGHT, STATES, TURNS
from vagen.envs.base import State
from vagen.envs.config import EnvConfig
from vagen.envs.frozenlake.env import FrozenLakeEnv
from vagen.envs.levels import Split, content_hash, split_of
from vagen.envs.turns import TurnEnv

NAMES = ("red", "green", "blue", "white", "black", "brown", "pink", "grey")


class Guessing:
    """An expert that answers as one of another level would: right layout, chance perception."""

    def expert_response(self) -> str:
        """What the expert says at the start of some other level."""
        guessed = type(self).__mro__[2](self.config, split=self.split)  # type: ignore[attr-defined]
        guessed.reset(seed=int(self.np_random.integers(2**31)))  # type: ignore[attr-defined]
        return guessed.expert_response()


class TurnsConfig(EnvConfig):
    """Options of the token task."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.0, "turn": 1.0, "end": 10.0},
        "vagen-new": {"format": 0.0, "turn": 1.0, "end": 10.0},
    }
    turns: int = TURNS
    """After so many the task is over."""
    dependent: bool = False
    """Whether a turn earns only if the one before it was right too."""
    pays: Literal["dense", "noisy", "sparse"] = "dense"
    """Every earned turn, the same with noise of deviation 1, or once at the end."""


@dataclass(frozen=True)
class Turns:
    """A level."""

    states: tuple[int, ...]
    level_hash: str


class TurnsEnv(TurnEnv):
    """Eight turns; each shows a colour, to which one letter is right."""

    env_name: ClassVar[str] = "Turns"
    config_class: ClassVar[type[TurnsConfig]] = TurnsConfig
    actions: ClassVar[tuple[str, ...]] = tuple("ABCDEFGH")
    example_state: ClassVar[State] = {"colour": "red", "spoilt": False}
    example_actions: ClassVar[tuple[str, ...]] = ("D",)

    config: TurnsConfig

    @classmethod
    def sample_level(cls, config: TurnsConfig, seed: int, split: Split) -> Turns:
        """Colours of the turns."""
        rng, digest, states = Random(seed), "", ()
        while not digest or split_of(digest) != split:
            states = tuple(rng.randrange(STATES) for _ in range(config.turns + 1))
            digest = content_hash(f"{states} {config.dependent} {config.pays}")
        return Turns(states, digest)

    def _load_level(self, level: Turns, seed: int) -> None:
        self._states, self._noise = level.states, Random(f"noise {seed}")
        self._right: list[bool] = []
        self._earned = 0

    def _move(self, action: str) -> tuple[float, bool]:
        turn = len(self._right)
        right = self.actions.index(action) == int(RIGHT[self._states[turn]])
        earned = right and not self._spoilt()
        self._right.append(right)
        self._earned += earned
        over = turn + 1 == self.config.turns
        if self.config.pays == "sparse":
            enough = self._earned >= (2 if self.config.dependent else 3)
            return self._rewards["end"] * (over and enough), over
        noise = self._noise.gauss(0.0, 1.0) if self.config.pays == "noisy" else 0.0
        return self._rewards["turn"] * earned + noise, over

    def _spoilt(self) -> bool:
        return self.config.dependent and bool(self._right) and not self._right[-1]

    def _is_won(self) -> bool:
        return 2 * self._earned >= self.config.turns

    def _read_state(self) -> State:
        return {"colour": NAMES[self._states[len(self._right)]], "spoilt": self._spoilt()}

    def _plan(self, count: int) -> list[str]:
        return [self.actions[int(RIGHT[self._states[len(self._right)]])]]

    def _after(self, state: State, actions: list[str]) -> State:
        return {**state, "spoilt": False}

    def _frame_size(self) -> tuple[int, int]:
        return 32, 32

    def picture(self) -> NDArray[np.uint8]:
        """A patch whose brightness is the colour's number."""
        return np.full((32, 32, 3), 255 * NAMES.index(self._state["colour"]) // STATES, np.uint8)

    def state_text(self, state: State) -> str:
        """The colour, and whether the last answer was wrong."""
        return f"{state['colour']} {'spoilt' if state['spoilt'] else 'fresh'}"

    def _reason(self, actions: list[str]) -> str:
        return self._read_state()["colour"]

    def _rules(self) -> str:
        return "Answer each colour with its letter, A to H."


class GuessingTurnsEnv(Guessing, TurnsEnv):
    """For the warm start only."""


class GuessingLakeEnv(Guessing, FrozenLakeEnv):
    """For the warm start only."""


def options(**given: Any) -> dict[str, Any]:
    """Options of `TurnsEnv` for a tiny model of texts."""
    shared = {"render_mode": "text", "prompt_format": "free_think", "prompt_detail": "brief"}
    return shared | {"max_actions_per_step": 1} | given
