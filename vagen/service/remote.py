"""An environment that lives elsewhere, behind calls and replies."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import uvloop

from vagen.envs.base import Observation, State
from vagen.service.base import Stepped
from vagen.service.wire import Reply, read_observation, whole_text

Result = TypeVar("Result")


class Handle(Protocol):
    """An environment in a worker process or behind HTTP."""

    system_prompt: str

    async def ask(self, op: str, **fields: Any) -> Reply:
        """The answer of `vagen.service.host.Host` to a call.

        Raises:
            EnvironmentRaised: The environment failed.
            EnvironmentLost: It is gone.
        """
        ...

    async def close(self) -> None:
        """Lets it go; never fails."""
        ...


class LoopThread:
    """An event loop in a thread of its own: connections outlive the loops of those who play."""

    def __init__(self, name: str):
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Starts a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Ends the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class RemoteEnv:
    """Implements `AsyncEnv`, for any event loop, over a handle that belongs to a loop's thread."""

    def __init__(self, thread: LoopThread, handle: Handle):
        self._thread = thread
        self._handle = handle
        self._state: State = {}

    async def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AsyncEnv`."""
        return await self._there(self._reset(seed, options))

    async def step(self, response: str) -> Stepped:
        """See `AsyncEnv`."""
        return await self._there(self._step(response))

    async def state(self) -> State:
        """The state after the last call, which came with its answer."""
        return self._state

    async def system_prompt(self) -> str:
        """See `AsyncEnv`."""
        return self._handle.system_prompt

    async def expert_response(self) -> str:
        """See `AsyncEnv`."""
        return await self._there(self._expert())

    async def close(self) -> None:
        """See `AsyncEnv`."""
        await self._there(self._handle.close())

    async def _reset(
        self, seed: int, options: dict[str, Any] | None
    ) -> tuple[Observation, dict[str, Any]]:
        reply = await self._handle.ask("reset", seed=seed, options=options)
        info = reply.content["info"]
        self._state = info["state"]
        return read_observation(reply.content["observation"], reply.frames), info

    async def _step(self, response: str) -> Stepped:
        reply = await self._handle.ask("step", response=whole_text(response))
        content = reply.content
        self._state = content["info"]["state"]
        return (
            read_observation(content["observation"], reply.frames),
            content["reward"],
            content["terminated"],
            content["truncated"],
            content["info"],
        )

    async def _expert(self) -> str:
        return (await self._handle.ask("expert")).content["response"]

    async def _there(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(self._thread.submit(work))


class SyncEnv:
    """Any `AsyncEnv` for code that does not await: the calls of `AgentEnv`."""

    def __init__(self, env: RemoteEnv, thread: LoopThread):
        self._env = env
        self._thread = thread

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.reset(seed=seed, options=options)).result()

    def step(self, response: str) -> Stepped:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.step(response)).result()

    def state(self) -> State:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.state()).result()

    def system_prompt(self) -> str:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.system_prompt()).result()

    def expert_response(self) -> str:
        """See `AgentEnv`."""
        return self._thread.submit(self._env.expert_response()).result()

    def close(self) -> None:
        """See `AgentEnv`."""
        self._thread.submit(self._env.close()).result()
