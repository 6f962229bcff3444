"""A pool of worker processes that run environments."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vagen.envs import get_environment
from vagen.service.base import EnvironmentLost, EnvironmentRaised
from vagen.service.process import WorkerProcess
from vagen.service.wire import Encoding, WireReply

HOPELESS = 5
"""Number of consecutive deaths of workers after which creating an environment fails."""
SPOILT = 2
"""Number of failures after which a worker gets no new environments."""
_WATCH_SECONDS = 1.0
_STARTING_SECONDS = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


def core_count() -> int:
    """Cores available to this process: the machine's, or its control group's share if lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, period = "max", "1"
    with suppress(OSError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    if not quota.isdigit():
        return cores or 1
    return max(1, min(cores or 1, int(quota) // int(period)))


class PooledEnv:
    """An environment in a worker process, with the calls of `Host`."""

    def __init__(self, worker: WorkerProcess, number: int, system_prompt: str):
        self.system_prompt = system_prompt
        self._worker = worker
        self._number = number
        self._open = True

    async def ask(self, op: str, **fields: Any) -> WireReply:
        """The environment's reply; see `WorkerProcess.ask`."""
        return await self._worker.ask(op, env=self._number, **fields)

    async def close(self) -> None:
        """Closes the environment; never fails."""
        if self._open:
            self._open = False
            self._worker.drop(self._number)


class WorkerPool:
    """Spawns workers, distributes environments over them and replaces dead ones.

    Belongs to one event loop.
    """

    def __init__(
        self,
        workers: int,
        *,
        answer_seconds: float = 300.0,
        call_seconds: float = 0.0,
        memory_mib: int = 0,
        on_replace: Callable[[], None] = lambda: None,
    ):
        """Prepares a pool; the first environment, or `start`, spawns workers.

        Args:
            workers: Number of processes.
            answer_seconds: Seconds after which a worker with an unanswered call is killed.
            call_seconds: Seconds after which a call fails alone; 0 for no limit.
            memory_mib: Memory limit of a worker in MiB; 0 for none.
            on_replace: Called when a worker has died or must be replaced.
        """
        self._size = workers
        self._answer_seconds = answer_seconds
        self._seconds, self._memory_mib = call_seconds, memory_mib
        self._on_replace = on_replace
        self._workers: list[WorkerProcess] = []
        self._fresh: set[WorkerProcess] = set()
        """Workers that load simulators before they take environments."""
        self._retired: list[WorkerProcess] = []
        """Workers that failed too often and end with their last environment."""
        self._may_retire, self._pause = 0.0, _FIRST_PAUSE
        self._deaths = 0
        self._last_cause = ""
        self._warm: dict[str, tuple[asyncio.Task[None], dict[str, Any]]] = {}
        self._cold: set[str] = set()
        """Environments that failed to be created in a warm-up and are no longer warmed up."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of living workers."""
        living = [*self._workers, *self._retired]
        return [worker.pid for worker in living if worker.pid is not None]

    @property
    def ready(self) -> bool:
        """Whether all workers are alive."""
        return len(self._workers) == self._size

    async def start(self) -> None:
        """Spawns the workers once."""
        if self._starting is None:
            self._starting = self._later(self._start())
        await asyncio.shield(self._starting)

    async def open(
        self, env_name: str, env_config: dict[str, Any], split: str, *, encoding: Encoding = "raw"
    ) -> PooledEnv:
        """Creates an environment in the worker with the fewest.

        The first environment of a kind is created in all workers, to load its simulator.

        Raises:
            EnvironmentRaised: The environment cannot be created.
            EnvironmentLost: The worker died while creating it, or workers keep dying.
        """
        await self.start()
        await self._warm_up(env_name, env_config, split)
        worker = await self._least_busy()
        number, system_prompt = await worker.open(
            env_name=env_name, env_config=env_config, split=split, encoding=encoding
        )
        self._deaths = 0
        return PooledEnv(worker, number, system_prompt)

    async def close(self) -> None:
        """Ends all workers and waits for them."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers = [*self._workers, *self._retired]
        self._workers, self._retired = [], []
        await asyncio.gather(*(worker.close() for worker in workers))

    async def _start(self) -> None:
        self._later(self._watch())
        await asyncio.gather(*(self._spawn() for _ in range(self._size)))

    async def _spawn(self) -> None:
        worker = WorkerProcess(self._died, seconds=self._seconds, memory_mib=self._memory_mib)
        await worker.start()
        self._fresh.add(worker)
        try:
            for env_name, (_, example) in list(self._warm.items()):
                if env_name not in self._cold:
                    await _try(worker, example)
        finally:
            self._fresh.discard(worker)
            if self._closed:
                await worker.close()
        if not worker.cause:
            self._workers.append(worker)
            self._changed.set()

    async def _warm_up(self, env_name: str, env_config: dict[str, Any], split: str) -> None:
        """Loads an environment's simulator in all workers, once per kind of environment."""
        if env_name not in self._warm:
            example = {"env_name": env_name, "env_config": env_config, "split": split}
            task = self._later(self._warm_all(env_name, example))
            self._warm[env_name] = (task, example)
        await asyncio.shield(self._warm[env_name][0])

    async def _warm_all(self, env_name: str, example: dict[str, Any]) -> None:
        tries = [_try(worker, example) for worker in list(self._workers)]
        if not all(await asyncio.gather(*tries)):
            self._cold.add(env_name)

    async def _least_busy(self) -> WorkerProcess:
        while True:
            if self._closed:
                raise EnvironmentLost("the worker processes were closed")
            self._retire()
            if self._workers:
                return min(self._workers, key=lambda worker: worker.environments)
            if self._deaths >= HOPELESS:
                raise EnvironmentLost(
                    f"{self._deaths} worker processes died one after the other; the last: "
                    f"{self._last_cause}"
                )
            self._changed.clear()
            await self._changed.wait()

    def _retire(self) -> None:
        """Replaces a worker that failed twice; its environments stay."""
        for worker in [each for each in self._workers if each.faults >= SPOILT]:
            if time.monotonic() < self._may_retire:
                return
            self._may_retire = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._workers.remove(worker)
            self._retired.append(worker)
            self._on_replace()
            self._later(self._replace(0))

    def _died(self, worker: WorkerProcess) -> None:
        """Replaces a dead worker, whose environments are lost."""
        if worker in self._retired:
            self._retired.remove(worker)
            return
        if worker in self._workers:
            self._workers.remove(worker)
        self._on_replace()
        self._failed(worker.cause)

    def _failed(self, cause: str) -> None:
        self._deaths += 1
        self._last_cause = cause
        self._changed.set()
        if not self._closed:
            self._later(self._replace(self._deaths))

    async def _replace(self, deaths: int) -> None:
        if deaths > 1:
            await asyncio.sleep(min(0.25 * 2**deaths, _LONGEST_PAUSE))
        try:
            await self._spawn()
        except OSError as error:
            self._failed(f"no process can be made: {error}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for worker in [each for each in self._retired if not each.environments]:
                self._retired.remove(worker)
                await worker.close()
            for worker in [*self._workers, *self._fresh, *self._retired]:
                patience = self._answer_seconds
                if not worker.has_answered:
                    patience = max(patience, _STARTING_SECONDS)
                if worker.silent_seconds > patience:
                    worker.kill(f"its process (pid {worker.pid}) gave no answer for {patience:g} s")

    def _later(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class WorkerPools:
    """A pool of workers per simulator, created on first use, and one for other environments.

    A process crashes with the graphics of two simulators.
    """

    def __init__(self, workers: int, **options: Any):
        """Prepares the pool of environments without a simulator; see `WorkerPool`."""
        self._make = lambda: WorkerPool(workers, **options)
        self._pools = {"": self._make()}

    @property
    def pids(self) -> list[int]:
        """Process ids of all living workers."""
        return [pid for pool in self._pools.values() for pid in pool.pids]

    @property
    def ready(self) -> bool:
        """Whether all workers are alive."""
        return all(pool.ready for pool in self._pools.values())

    async def start(self) -> None:
        """Spawns the workers of environments without a simulator."""
        await self._pools[""].start()

    async def open(
        self, env_name: str, env_config: dict[str, Any], split: str, *, encoding: Encoding = "raw"
    ) -> PooledEnv:
        """Creates an environment; see `WorkerPool.open`."""
        kind = env_name if get_environment(env_name).load().needs_process else ""
        if kind not in self._pools:
            self._pools[kind] = self._make()
        return await self._pools[kind].open(env_name, env_config, split, encoding=encoding)

    async def close(self) -> None:
        """Ends all workers and waits for them."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))


async def _try(worker: WorkerProcess, example: dict[str, Any]) -> bool:
    """Warms up a worker; ignores errors, which creating the environment will raise again."""
    try:
        await worker.ask("warm_up", **example)
    except (EnvironmentRaised, EnvironmentLost):
        return False
    return True
