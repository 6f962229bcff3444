"""Environments as their players see them: in this process, or behind calls and replies."""

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, TypeVar

import uvloop

from vagen.envs.adapters.threads import DaemonThread
from vagen.envs.answers import AnswerError, begun, stepped
from vagen.envs.base import AgentEnv, Observation
from vagen.service.wire import WireReply, read_observation, replace_surrogates

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
    """A `HereEnv` with asynchronous methods, which run in `thread`, or else without yielding."""

    def __init__(self, env: AgentEnv, thread: DaemonThread | None = None):
        self._env = HereEnv(env)
        self._thread = thread

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
            self._thread.close()

    async def _call(self, method: Callable[[], ResultT]) -> ResultT:
        if self._thread is None:
            return method()
        return await asyncio.wrap_future(self._thread.submit(method))


class Handle(Protocol):
    """An environment in a worker process or behind HTTP."""

    system_prompt: str

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """The reply of `vagen.service.worker.Host` to a call.

        Raises:
            EnvironmentRaised: The environment failed.
            EnvironmentLost: It is gone.
        """
        ...

    async def close(self) -> None:
        """Closes the environment; never fails."""
        ...


class LoopThread:
    """An event loop in a separate thread, so that connections outlive the players' event loops."""

    def __init__(self, name: str):
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, ResultT]) -> "Future[ResultT]":
        """Starts a coroutine in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Ends the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class RemoteEnv:
    """A remote environment with asynchronous methods for any event loop.

    Calls go through a handle that belongs to the thread of a loop. They raise `EnvironmentRaised`
    for errors of the environment, and `EnvironmentLost` if it is gone.
    """

    def __init__(self, thread: LoopThread, handle: Handle):
        self._thread = thread
        self._handle = handle

    def system_prompt(self) -> str:
        """See `AgentEnv`; received when the environment was created."""
        return self._handle.system_prompt

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AgentEnv`."""

        def read(reply: WireReply) -> tuple[Observation, dict[str, Any]]:
            content = reply.content
            return read_observation(content["observation"], reply.frames), content["info"]

        return await self._ask("reset", read, seed=seed, options=options)

    async def step(self, response: str) -> EnvStep:
        """See `AgentEnv`."""

        def read(reply: WireReply) -> EnvStep:
            content = reply.content
            return (
                read_observation(content["observation"], reply.frames),
                content["reward"],
                content["terminated"],
                content["truncated"],
                content["info"],
            )

        return await self._ask("step", read, response=replace_surrogates(response))

    async def expert_response(self) -> str:
        """See `AgentEnv`."""
        return await self._ask("expert", lambda reply: reply.content["response"])

    async def expert_summary(self) -> str:
        """See `AgentEnv`."""
        return await self._ask("summary", lambda reply: reply.content["response"])

    async def close(self) -> None:
        """Closes the environment; never fails, even if it is gone."""
        await asyncio.wrap_future(self._thread.submit(self._handle.close()))

    async def _ask(self, op: str, read: Callable[[WireReply], ResultT], **fields: Any) -> ResultT:
        """Parses the reply with `read`; frames are decoded in the handle's thread."""

        async def answer() -> ResultT:
            return read(await self._handle.ask(op, **fields))

        return await asyncio.wrap_future(self._thread.submit(answer()))


AsyncEnv: TypeAlias = LocalEnv | RemoteEnv
"""An environment with asynchronous methods, so that others can run during a call."""


class SyncEnv:
    """A remote environment with blocking methods for synchronous code."""

    def __init__(self, env: RemoteEnv, thread: LoopThread):
        self._env = env
        self._thread = thread

    def system_prompt(self) -> str:
        """See `AgentEnv`."""
        return self._env.system_prompt()

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.reset(seed=seed, options=options)).result()

    def step(self, response: str, /) -> EnvStep:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.step(response)).result()

    def expert_response(self) -> str:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.expert_response()).result()

    def expert_summary(self) -> str:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.expert_summary()).result()

    def close(self) -> None:
        """See `AgentEnv`."""
        self._thread.submit(self._env.close()).result()
