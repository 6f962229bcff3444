"""An environment: walk left or right to the door."""

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.envs.claims import Claim
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split, content_hash, split_of
from vagen.envs.turns import TurnEnv

REWARDS = {"format": 0.1, "success": 1.0}


class CorridorConfig(EnvConfig):
    """Options: `env_config` of an experiment."""

    reward_presets: ClassVar = {"vagen-legacy": REWARDS, "vagen-new": REWARDS}
    length: int = 60
    """Number of cells."""


@dataclass(frozen=True)
class Level:
    """Where an episode begins."""

    start: int
    door: int
    level_hash: str


class Door(Claim):
    """What a description of a state says; the judge compares it with `truth`."""

    phrase = "door is {side}"
    side: Literal["left", "right"]


class CorridorEnv(TurnEnv):
    """Walk along a row of cells to the door."""

    env_name, config_class, actions = "Corridor", CorridorConfig, ("Left", "Right")
    example_state, example_actions = {"player": 3, "door": 5}, ("Right", "Right")
    claims = (Door,)
    config: CorridorConfig

    @classmethod
    def sample_level(cls, config: CorridorConfig, seed: int, split: Split) -> Level:
        """Draws levels until one belongs to the split."""
        rng, digest = Random(seed), ""
        while not digest or split_of(digest) != split:
            start, door = rng.sample(range(config.length), 2)
            digest = content_hash(f"{start} {door} {config.length}")
        return Level(start, door, digest)

    @classmethod
    def truth(cls, state: State, config: CorridorConfig) -> list[Claim]:
        """The claims of a true and complete description."""
        return [Door(side="left" if state["door"] < state["player"] else "right")]

    def _rules(self) -> str:
        return "Walk to the door (green; you are red). Actions: Left, Right."

    def _load_level(self, level: Level, seed: int) -> None:
        self._at, self._door = level.start, level.door

    def _move(self, action: str) -> tuple[float, bool]:
        self._at = min(max(self._at + (1 if action == "Right" else -1), 0), self.config.length - 1)
        return self._rewards["success"] * self._is_won(), self._is_won()

    def _is_won(self) -> bool:
        return self._at == self._door

    def _read_state(self) -> State:
        return {"player": self._at, "door": self._door}

    def _plan(self, count: int) -> list[str]:
        return ["Right" if self._door > self._at else "Left"]

    def _after(self, state: State, actions: list[str]) -> State:
        moved = sum(1 if action == "Right" else -1 for action in actions)
        return {**state, "player": state["player"] + moved}

    def _frame_size(self) -> tuple[int, int]:
        return 32, 8 * self.config.length

    def picture(self) -> NDArray[np.uint8]:
        """Grey cells, the door green, the player red; uint8 [32, 8 * length, 3]."""
        cells: Any = np.full((1, self.config.length, 3), 230, np.uint8)
        cells[0, self._door], cells[0, self._at] = (0, 160, 0), (200, 0, 0)
        return cells.repeat(32, 0).repeat(8, 1)
