"""A local environment for runners, and the errors of remote environments."""

import asyncio
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vagen.envs.answers import AnswerError, begun, stepped
from vagen.envs.base import AgentEnv, Observation

ResultT = TypeVar("ResultT")
EnvStep = tuple[Observation, float, bool, bool, dict[str, Any]]


class EnvironmentLost(RuntimeError):
    """The environment is gone: process dead, session expired, or service unreachable."""


class EnvironmentRaised(RuntimeError):
    """An error of an environment, where it runs; reads `KeyError: 'player'`."""

    @classmethod
    def of(cls, error: Exception) -> "EnvironmentRaised":
        """Wraps an error; returns an `EnvironmentRaised` unchanged."""
        if isinstance(error, EnvironmentRaised):
            return error
        return cls(f"{type(error).__name__}: {error}")


class HereEnv:
    """A local `AgentEnv` for synchronous code.

    Results are checked and plain. Errors are `EnvironmentRaised`, as for remote environments,
    except for invalid options.
    """

    def __init__(self, env: AgentEnv):
        self._env = env

    def system_prompt(self) -> str:
        """See `AgentEnv`."""
        return self._call(self._env.system_prompt)

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AgentEnv`."""
        return self._call(lambda: begun(self._env, self._env.reset(seed=seed, options=options)))

    def step(self, response: str, /) -> EnvStep:
        """See `AgentEnv`."""
        return self._call(lambda: stepped(self._env, self._env.step(response)))

    def expert_response(self) -> str:
        """See `AgentEnv`."""
        return self._call(self._env.expert_response)

    def expert_summary(self) -> str:
        """See `AgentEnv`."""
        return self._call(self._env.expert_summary)

    def close(self) -> None:
        """Closes the environment; never fails."""
        try:
            self._env.close()
        except Exception as error:  # any failure of an environment
            warnings.warn(f"{type(self._env).__name__}.close() raises {error!r}", stacklevel=2)

    def _call(self, method: Callable[[], ResultT]) -> ResultT:
        try:
            return method()
        except Exception as error:  # any failure of an environment
            is_internal = type(error).__module__.startswith("vagen.")
            if is_internal and isinstance(error, ValueError) and not isinstance(error, AnswerError):
                raise
            raise EnvironmentRaised.of(error) from error


class LocalEnv:
    """A `HereEnv` with asynchronous methods, which complete without yielding.

    Environments with `waits` are called in a thread.
    """

    def __init__(self, env: AgentEnv):
        self._env = HereEnv(env)
        self._thread = ThreadPoolExecutor(1) if env.waits else None

    def system_prompt(self) -> str:
        """See `AgentEnv`."""
        return self._env.system_prompt()

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AgentEnv`."""
        return await self._call(lambda: self._env.reset(seed=seed, options=options))

    async def step(self, response: str) -> EnvStep:
        """See `AgentEnv`."""
        return await self._call(lambda: self._env.step(response))

    async def expert_response(self) -> str:
        """See `AgentEnv`."""
        return await self._call(self._env.expert_response)

    async def expert_summary(self) -> str:
        """See `AgentEnv`."""
        return await self._call(self._env.expert_summary)

    async def close(self) -> None:
        """Closes the environment; never fails."""
        await self._call(self._env.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _call(self, method: Callable[[], ResultT]) -> ResultT:
        if self._thread is None:
            return method()
        return await asyncio.get_running_loop().run_in_executor(self._thread, method)
