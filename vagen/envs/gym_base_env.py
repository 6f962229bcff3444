"""The name under which environments written for VAGEN import their base class."""

from abc import ABC, abstractmethod
from typing import Any


class GymBaseEnv(ABC):
    """An asynchronous environment; `GymImageEnv` says what its observations are."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        """Keeps the configuration as `config`."""
        self.config = env_config

    @abstractmethod
    async def close(self) -> None:
        """Releases what the environment holds."""

    @abstractmethod
    async def reset(self, seed: int) -> Any:
        """Starts an episode; returns an observation and an info."""

    @abstractmethod
    async def step(self, action_str: str) -> Any:
        """Takes a response; returns observation, reward, whether it is over, and an info."""

    @abstractmethod
    async def system_prompt(self) -> Any:
        """The system prompt as an observation."""
