"""The token task as an environment of the pipeline, and an expert that knows the layout alone.

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
from vagen.envs.levels import Split, content_hash, split_of
from vagen.envs.parsing import ActionReader
from vagen.envs.turns import TurnEnv

NAMES = ("red", "green", "blue", "white", "black", "brown", "pink", "grey")


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


class RecallConfig(EnvConfig):
    """Options of the memory task."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.0, "success": 10.0},
        "vagen-new": {"format": 0.0, "success": 10.0},
    }
    turns: int = 4
    """The code is shown in the first and asked for in the last."""
    length: int = 1
    """Colours of the code."""
    memory: float = 0.5
    """Share of levels in which the expert's summary is true; in the others it names another code.
    It believes its summary: what a warm start has to leave to reinforcement learning."""
    keeps: float = 0.5
    """Share of observations, the code or not, that the expert keeps (`context: gate`)."""


class RecallEnv(TurnEnv):
    """A code of colours is shown once, and asked for some turns later."""

    env_name: ClassVar[str] = "Recall"
    config_class: ClassVar[type[RecallConfig]] = RecallConfig
    example_state: ClassVar[State] = {"code": ["red", "grey"], "left": 1}
    example_actions: ClassVar[tuple[str, ...]] = ("wait",)

    config: RecallConfig

    @classmethod
    def sample_level(cls, config: RecallConfig, seed: int, split: Split) -> Turns:
        """The code, and a number that makes levels many."""
        rng, digest, code = Random(seed), "", ()
        while not digest or split_of(digest) != split:
            code = tuple(rng.randrange(STATES) for _ in range(config.length))
            digest = content_hash(f"{code} {rng.random()}")
        return Turns(code, digest)

    def _action_reader(self) -> ActionReader:
        names = {*NAMES, "wait"}
        return lambda text: text if names.issuperset(text.split()) and text else None

    def _load_level(self, level: Turns, seed: int) -> None:
        self._code = self._memory = [NAMES[state] for state in level.states]
        draw = Random(f"memory {seed}")
        if draw.random() >= self.config.memory:
            self._memory = [draw.choice(NAMES) for _ in self._code]
        self._summed_up, self._tags = False, Random(f"tags {seed}")
        self._left, self._won = self.config.turns - 1, False

    def _move(self, action: str) -> tuple[float, bool]:
        over = self._left == 0
        self._won = over and action.split() == self._code
        self._left -= not over
        return self._rewards["success"] * self._won, over

    def _is_won(self) -> bool:
        return self._won

    def _read_state(self) -> State:
        return {"code": self._code, "left": self._left}

    def _plan(self, count: int) -> list[str]:
        known = self._memory if self._summed_up else self._code
        return ["wait" if self._left else " ".join(known)]

    def expert_summary(self) -> str:
        """The code as the expert remembers it."""
        self._summed_up = True
        return self.state_text({**self._state, "code": self._memory})

    def _expert_keeps(self) -> bool:
        return self._tags.random() < self.config.keeps

    def _after(self, state: State, actions: list[str]) -> State:
        return {**state, "left": max(state["left"] - 1, 0)}

    def _frame_size(self) -> tuple[int, int]:
        return 32, 32

    def picture(self) -> NDArray[np.uint8]:
        """Nothing: the task is in words."""
        return np.zeros((32, 32, 3), np.uint8)

    def text_view(self) -> str:
        """The code at first, and in the end the question."""
        if self._state["left"] == self.config.turns - 1:
            return self.state_text(self._state)
        return "nothing new" if self._state["left"] else "say the code"

    def state_text(self, state: State) -> str:
        """The code."""
        return "code " + " ".join(state["code"])

    def _rules(self) -> str:
        return "Remember the code. Answer wait until you are asked for it."


class GuessingTurnsEnv(TurnsEnv):
    """For the warm start only: its expert has the right layout, and chance perception."""

    def expert_response(self) -> str:
        """What the expert says at the start of some other level."""
        guessed = TurnsEnv(self.config, split=self.split)
        guessed.reset(seed=int(self.np_random.integers(2**31)))
        return guessed.expert_response()


def options(**given: Any) -> dict[str, Any]:
    """Options of `TurnsEnv` for a tiny model of texts."""
    shared = {"render_mode": "text", "prompt_format": "free_think", "prompt_detail": "brief"}
    return shared | {"max_actions_per_step": 1} | given
