"""An environment of this process as a runner awaits it, and how one that runs elsewhere fails."""

from typing import Any

from vagen.envs.base import AgentEnv, Observation

Stepped = tuple[Observation, float, bool, bool, dict[str, Any]]


class EnvironmentLost(RuntimeError):
    """The environment is gone: its process died, its session expired, its service is away."""


class EnvironmentRaised(RuntimeError):
    """What an environment raised where it runs; reads `KeyError: 'player'`."""

    @classmethod
    def of(cls, error: Exception) -> "EnvironmentRaised":
        """The same failure, whether it was raised here or elsewhere."""
        if isinstance(error, EnvironmentRaised):
            return error
        return cls(f"{type(error).__name__}: {error}")


class LocalEnv:
    """An `AgentEnv` of this process with its calls awaited; each is over when it returns.

    Whatever the environment raises comes out as it is.
    """

    def __init__(self, env: AgentEnv):
        self._env = env

    def system_prompt(self) -> str:
        """See `AgentEnv`."""
        return self._env.system_prompt()

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AgentEnv`."""
        return self._env.reset(seed=seed, options=options)

    async def step(self, response: str) -> Stepped:
        """See `AgentEnv`."""
        observation, reward, terminated, truncated, info = self._env.step(response)
        return observation, float(reward), terminated, truncated, info

    async def expert_response(self) -> str:
        """See `AgentEnv`."""
        return self._env.expert_response()

    async def expert_summary(self) -> str:
        """See `AgentEnv`."""
        return self._env.expert_summary()

    async def close(self) -> None:
        """See `AgentEnv`."""
        self._env.close()
