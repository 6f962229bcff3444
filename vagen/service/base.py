"""An environment of this process as a runner awaits it, and how one that runs elsewhere fails."""

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
    """The environment is gone: its process died, its session expired, its service is away."""


class EnvironmentRaised(RuntimeError):
    """What an environment raised where it runs; reads `KeyError: 'player'`."""

    @classmethod
    def of(cls, error: Exception) -> "EnvironmentRaised":
        """The same failure, whether it was raised here or elsewhere."""
        if isinstance(error, EnvironmentRaised):
            return error
        return cls(f"{type(error).__name__}: {error}")


class HereEnv:
    """An `AgentEnv` of this process, for code that does not await.

    What it answers is checked and plain. Whatever it raises is `EnvironmentRaised`, as it would be
    elsewhere, but for a mistake in its options.
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
        """Lets it go; never fails."""
        try:
            self._env.close()
        except Exception as error:  # an environment may fail in any way, and is needed no more
            warnings.warn(f"{type(self._env).__name__}.close() raises {error!r}", stacklevel=2)

    def _call(self, method: Callable[[], ResultT]) -> ResultT:
        try:
            return method()
        except Exception as error:  # an environment may fail in any way
            ours = type(error).__module__.startswith("vagen.")
            if ours and isinstance(error, ValueError) and not isinstance(error, AnswerError):
                raise
            raise EnvironmentRaised.of(error) from error


class LocalEnv:
    """A `HereEnv` with its calls awaited; each is over when it returns.

    Those of an environment that `waits` are made in a thread.
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
        """Lets it go; never fails."""
        await self._call(self._env.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _call(self, method: Callable[[], ResultT]) -> ResultT:
        if self._thread is None:
            return method()
        return await asyncio.get_running_loop().run_in_executor(self._thread, method)
