"""Runs the service's environments in worker processes, or in the serving process."""

import itertools
from collections.abc import Callable
from typing import Any

import orjson

from vagen.envs import parse_env_config
from vagen.envs.registry import get_environment
from vagen.service.base import EnvironmentRaised
from vagen.service.host import Call, Host
from vagen.service.pool import WorkerPools, core_count
from vagen.service.remote import Handle
from vagen.service.settings import ServiceSettings
from vagen.service.wire import WireReply


class NotServed(ValueError):
    """An option that clients may not set."""


class InlineEnv:
    """An environment in the serving process; implements `Handle`."""

    def __init__(self, host: Host, number: int, system_prompt: str):
        self.system_prompt = system_prompt
        self._host = host
        self._number = number

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """See `Handle`."""
        return _answered(self._host, {"op": op, "env": self._number, **fields})

    async def close(self) -> None:
        """See `Handle`."""
        self._host.answer({"op": "close", "env": self._number})


class Backend:
    """Creates the service's environments, with frames as PNG."""

    def __init__(self, settings: ServiceSettings, on_replace: Callable[[], None]):
        """Prepares the backend; `start` spawns the workers.

        Args:
            settings: Settings of the service.
            on_replace: Called for every dead worker process.
        """
        self._settings = settings
        self._host = Host()
        self._numbers = itertools.count()
        inline = settings.workers == 0
        size = 1 if inline else settings.workers or core_count()
        self._inline = inline
        self._pools = WorkerPools(
            size,
            answer_seconds=settings.answer_seconds,
            call_seconds=settings.answer_seconds / 2,
            memory_mib=settings.worker_memory_mib,
            on_replace=on_replace,
        )

    async def start(self) -> None:
        """Spawns workers and warms up environments before the first session.

        Raises:
            EnvironmentRaised: An environment of `warm_up` cannot be created.
            EnvironmentLost: Workers die while creating it.
        """
        if not self._inline:
            await self._pools.start()
        for env_name in self._settings.warm_up:
            env = await self.open(env_name, {}, "train")
            await env.close()

    @property
    def ready(self) -> bool:
        """Whether there is a process for new environments."""
        return self._inline or self._pools.ready

    async def open(self, env_name: str, env_config: dict[str, Any], split: str) -> Handle:
        """Creates an environment.

        Raises:
            pydantic.ValidationError: An option is invalid.
            NotServed: An option is reserved for local users.
            EnvironmentRaised: It cannot be created.
            EnvironmentLost: Its process died while creating it.
        """
        config = parse_env_config(env_name, env_config)
        for option, reason in config.not_served():
            raise NotServed(f"{option}: {reason}")
        options = config.model_dump(mode="json")
        if not self._inline or get_environment(env_name).load().needs_process:
            return await self._pools.open(env_name, options, split, encoding="png")
        number = next(self._numbers)
        order = {"env_name": env_name, "env_config": options, "split": split, "encoding": "png"}
        reply = _answered(self._host, {"op": "create", "env": number, **order})
        return InlineEnv(self._host, number, reply.content["system_prompt"])

    async def close(self) -> None:
        """Ends the workers."""
        await self._pools.close()


def _answered(host: Host, call: Call) -> WireReply:
    """The host's answer, as from a worker process."""
    content, frames = host.answer_json(call)
    reply = WireReply(orjson.loads(content), frames)
    if "error" in reply.content:
        raise EnvironmentRaised(reply.content["error"])
    return reply
