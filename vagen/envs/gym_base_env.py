"""The module from which environments written for VAGEN import their base class."""

from abc import ABC, abstractmethod
from typing import Any


class GymBaseEnv(ABC):
    """An asynchronous environment; see `GymImageEnv` for its observations."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        """Stores the configuration as `config`."""
        self.config = env_config

    @abstractmethod
    async def close(self) -> None:
        """Releases resources of the environment."""

    @abstractmethod
    async def reset(self, seed: int) -> Any:
        """Starts an episode; returns observation and info."""

    @abstractmethod
    async def step(self, action_str: str) -> Any:
        """Executes a response; returns observation, reward, done, and info."""

    @abstractmethod
    async def system_prompt(self) -> Any:
        """The system prompt as an observation."""
