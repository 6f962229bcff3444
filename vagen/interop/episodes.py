"""An environment's levels and episodes as messages of OpenAI's form."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from vagen.envs import distinct_levels
from vagen.envs.base import Observation
from vagen.envs.images import png_bytes
from vagen.envs.levels import Split
from vagen.rollout.demonstrations import user_content
from vagen.service import AsyncEnv, environments_of


class Level(BaseModel):
    """A level to play."""

    model_config = ConfigDict(frozen=True)

    env_name: str
    """Registered name such as `FrozenLake`, or `module:Class`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment."""
    split: Split = "test"
    seed: int
    max_turns: PositiveInt
    """Responses after which the episode ends."""

    @property
    def name(self) -> str:
        """Name in logs."""
        return f"{self.env_name} {self.split} {self.seed}"


def levels(
    env_name: str, env_config: dict[str, Any], split: Split, count: int, max_turns: int
) -> list[Level]:
    """The first distinct levels of a split.

    Raises:
        UnknownEnvironmentError: No environment has this name.
        pydantic.ValidationError: An option is unknown or a value is invalid.
        LevelError: The split has fewer levels.
    """
    return [
        Level(
            env_name=env_name,
            env_config=env_config,
            split=split,
            seed=ref.seed,
            max_turns=max_turns,
        )
        for ref in distinct_levels(env_name, env_config, split, count)
    ]


class Episode:
    """An episode with responses from outside; use it as `async with Episode(level)`."""

    system_prompt: str
    content: str | list[dict[str, Any]]
    """The observation to respond to: a text, or parts with pictures as data URLs."""

    def __init__(self, level: Level):
        self.level = level
        self.turns, self.over, self.success = 0, False, False
        self.rewards = {"env": 0.0, "format": 0.0}
        """Sums over turns."""

    async def __aenter__(self) -> Self:
        level = self.level
        self._env: AsyncEnv = await environments_of().make(
            level.env_name, level.env_config, level.split
        )
        observation, _ = await self._env.reset(seed=level.seed)
        self.system_prompt = self._env.system_prompt()
        self._show(observation)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._env.close()

    async def step(self, response: str) -> bool:
        """Plays a response; returns whether the episode is over."""
        observation, _, terminated, truncated, info = await self._env.step(response)
        self._show(observation)
        self.turns += 1
        self.rewards = {part: self.rewards[part] + info["rewards"][part] for part in self.rewards}
        self.success = bool(info["success"])
        self.over = terminated or truncated or self.turns >= self.level.max_turns
        return self.over

    @property
    def scores(self) -> dict[str, float]:
        """Success (0 or 1), return and number of turns."""
        return {
            "success": float(self.success),
            "return": float(sum(self.rewards.values())),
            "turns": float(self.turns),
        }

    def _show(self, observation: Observation) -> None:
        self.content = user_content(
            observation["text"], [png_bytes(frame) for frame in observation["images"]]
        )
