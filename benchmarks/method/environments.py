"""A memory task as an environment: a code is shown once and asked for later.

env_name: benchmarks.method.environments:RecallEnv
"""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.method.lab import STATES
from vagen.envs.base import State
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split, content_hash, split_of
from vagen.envs.parsing import ActionReader
from vagen.envs.turns import TurnEnv

NAMES = ("red", "green", "blue", "white", "black", "brown", "pink", "grey")


@dataclass(frozen=True)
class Code:
    """A level."""

    states: tuple[int, ...]
    level_hash: str


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
    def sample_level(cls, config: RecallConfig, seed: int, split: Split) -> Code:
        """The code, and a number that makes levels many."""
        rng, digest, code = Random(seed), "", ()
        while not digest or split_of(digest) != split:
            code = tuple(rng.randrange(STATES) for _ in range(config.length))
            digest = content_hash(f"{code} {rng.random()}")
        return Code(code, digest)

    def _action_reader(self) -> ActionReader:
        names = {*NAMES, "wait"}
        return lambda text: text if names.issuperset(text.split()) and text else None

    def _load_level(self, level: Code, seed: int) -> None:
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
