"""Decides where environments run; players see no difference."""

import asyncio
import atexit
import os
from functools import partial
from typing import Any

from vagen.config.infra import EnvironmentsConfig
from vagen.envs import make, parse_env_config
from vagen.envs.adapters.threads import DaemonThread
from vagen.envs.registry import get_environment
from vagen.service.base import AsyncEnv, Handle, HereEnv, LocalEnv, LoopThread, RemoteEnv, SyncEnv
from vagen.service.pool import WorkerPools, core_count

MAX_WORKERS = 8


class Environments:
    """Creates environments where the infra configures them, from any thread and event loop.

    Starts worker processes and connections on first use and keeps them until `close`.
    """

    def __init__(self, config: EnvironmentsConfig, *, num_processes: int = 1):
        """Prepares without processes or connections.

        Args:
            config: `infra.environments`.
            num_processes: Number of processes on this machine with the same configuration.
        """
        self.config = config
        self._sharers = num_processes
        self._thread: LoopThread | None = None
        self._pools: WorkerPools | None = None
        self._client: Any = None

    async def make(self, env_name: str, env_config: Any, split: str = "train") -> AsyncEnv:
        """An environment for asynchronous code.

        Raises:
            EnvironmentRaised: It cannot be created remotely; local errors are raised as they are.
            EnvironmentLost: Its process or service is gone.
        """
        if self._is_local(env_name):
            made = partial(make, env_name, env_config, split)
            if not get_environment(env_name).load().waits:
                return LocalEnv(made())
            own = DaemonThread()
            return LocalEnv(await asyncio.wrap_future(own.submit(made)), own)
        thread = self._running()
        opening = thread.submit(self._open(env_name, env_config, split))
        return RemoteEnv(thread, await asyncio.wrap_future(opening))

    def open(self, env_name: str, env_config: Any, split: str = "train") -> HereEnv | SyncEnv:
        """An environment for synchronous code; errors as of `make`."""
        if self._is_local(env_name):
            return HereEnv(make(env_name, env_config, split))
        thread = self._running()
        handle = thread.submit(self._open(env_name, env_config, split)).result()
        return SyncEnv(RemoteEnv(thread, handle), thread)

    def close(self) -> None:
        """Ends workers and connections; open environments are lost."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        for part in (self._pools, self._client):
            if part is not None:
                thread.submit(part.close()).result()
        self._pools = self._client = None
        thread.stop()

    def _is_local(self, env_name: str) -> bool:
        placement = self.config.placement
        if placement == "auto":
            return not get_environment(env_name).load().needs_process
        return placement == "process"

    def _running(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("environments")
        return self._thread

    async def _open(self, env_name: str, env_config: Any, split: str) -> Handle:
        options = parse_env_config(env_name, env_config).model_dump(mode="json")
        if self.config.placement == "service":
            if self._client is None:
                from vagen.service.client import ServiceClient

                self._client = ServiceClient(self.config)
            return await self._client.open(env_name, options, split)
        if self._pools is None:
            share = max(1, min(core_count(), MAX_WORKERS) // self._sharers)
            self._pools = WorkerPools(
                self.config.workers or share, answer_seconds=self.config.answer_seconds
            )
        return await self._pools.open(env_name, options, split)


_made: dict[tuple[int, str, int], Environments] = {}


def environments_of(
    config: EnvironmentsConfig | None = None, *, num_processes: int = 1
) -> Environments:
    """The `Environments` of a configuration (None: the default), cached in this process."""
    config = config or EnvironmentsConfig()
    key = (os.getpid(), config.model_dump_json(), num_processes)
    if key not in _made:
        _made[key] = Environments(config, num_processes=num_processes)
    return _made[key]


@atexit.register
def _close_all() -> None:
    for (pid, _, _), environments in _made.items():
        if pid == os.getpid():
            environments.close()
