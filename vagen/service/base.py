"""The environment as whoever plays sees it, wherever it runs."""

from typing import Any, Protocol

from vagen.envs.base import AgentEnv, Observation, State

Stepped = tuple[Observation, float, bool, bool, dict[str, Any]]


class AsyncEnv(Protocol):
    """`AgentEnv` with every call awaited: while one answers, others may go on.

    An environment that fails raises `EnvironmentRaised` if it runs elsewhere, and what it raised
    itself if it runs here; one that is gone raises `EnvironmentLost`.
    """

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode of a seed; see `AgentEnv`."""
        ...

    async def step(self, response: str) -> Stepped:
        """Carries a response out; see `AgentEnv`."""
        ...

    async def state(self) -> State:
        """Ground truth now."""
        ...

    async def system_prompt(self) -> str:
        """Rules and response format."""
        ...

    async def expert_response(self) -> str:
        """An optimal response.

        Raises:
            EnvironmentRaised: There is no expert.
        """
        ...

    async def close(self) -> None:
        """Lets it go; never fails, also if it is gone already."""
        ...


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
    """An environment in this process; a call is over when it returns."""

    def __init__(self, env: AgentEnv):
        self.env = env

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AsyncEnv`."""
        return self.env.reset(seed=seed, options=options)

    async def step(self, response: str) -> Stepped:
        """See `AsyncEnv`."""
        observation, reward, terminated, truncated, info = self.env.step(response)
        return observation, float(reward), terminated, truncated, info

    async def state(self) -> State:
        """See `AsyncEnv`."""
        return self.env.state()

    async def system_prompt(self) -> str:
        """See `AsyncEnv`."""
        return self.env.system_prompt()

    async def expert_response(self) -> str:
        """See `AsyncEnv`."""
        return self.env.expert_response()

    async def close(self) -> None:
        """See `AsyncEnv`."""
        self.env.close()
