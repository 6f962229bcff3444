"""Worker processes: death, silence, replacement, and that nothing is left behind."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from vagen.service.base import EnvironmentLost, EnvironmentRaised
from vagen.service.pool import PooledEnv, WorkerPool

pytestmark = pytest.mark.slow


def with_pool(work: Callable[[WorkerPool], Any], workers: int = 2, **options: Any) -> Any:
    async def main() -> Any:
        pool = WorkerPool(workers, **options)
        try:
            return await work(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


async def opened(pool: WorkerPool, count: int) -> list[PooledEnv]:
    envs = [await pool.open("FrozenLake", {}, "train") for _ in range(count)]
    await asyncio.gather(*(env.ask("reset", seed=k, options=None) for k, env in enumerate(envs)))
    return envs


async def replaced(pool: WorkerPool, gone: int) -> None:
    deadline = time.monotonic() + 30
    while gone in pool.pids or not pool.ready:
        assert time.monotonic() < deadline, "the worker is not replaced"
        await asyncio.sleep(0.02)


async def outcomes(envs: list[PooledEnv]) -> list[str]:
    answers = await asyncio.gather(
        *(env.ask("step", response="x") for env in envs), return_exceptions=True
    )
    return [type(answer).__name__ for answer in answers]


def test_a_worker_killed_loses_its_environments_and_no_other() -> None:
    async def work(pool: WorkerPool) -> None:
        envs = await opened(pool, 6)
        victim = pool.pids[0]
        os.kill(victim, signal.SIGKILL)
        first = await outcomes(envs)
        assert sorted(first) == ["EnvironmentLost"] * 3 + ["WireReply"] * 3
        await replaced(pool, victim)
        assert await outcomes(envs) == first, "lost is lost"
        fresh = await opened(pool, 2)
        assert await outcomes(fresh) == ["WireReply"] * 2
        with pytest.raises(EnvironmentLost, match=f"pid {victim}.*SIGKILL"):
            await envs[first.index("EnvironmentLost")].ask("step", response="x")
        for env in envs:
            await env.close()

    with_pool(work)


def test_a_call_under_way_when_its_worker_dies_is_lost() -> None:
    async def work(pool: WorkerPool) -> None:
        (env,) = await opened(pool, 1)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(env.ask("step", response="x"))
        await asyncio.sleep(0.1)
        assert not asking.done()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvironmentLost):
            await asking

    with_pool(work, workers=1)


def test_a_worker_that_gives_no_answer_is_replaced() -> None:
    async def work(pool: WorkerPool) -> None:
        (env,) = await opened(pool, 1)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EnvironmentLost, match="no answer for 1 s"):
            await env.ask("step", response="x")
        await replaced(pool, pid)
        assert await outcomes(await opened(pool, 1)) == ["WireReply"]

    with_pool(work, workers=1, answer_seconds=1.0)


def test_what_cannot_be_made_is_told_as_it_would_be_here() -> None:
    async def work(pool: WorkerPool) -> None:
        with pytest.raises(EnvironmentRaised, match="LevelError: unknown split 'exam'"):
            await pool.open("FrozenLake", {}, "exam")
        (env,) = await opened(pool, 1)
        with pytest.raises(EnvironmentRaised, match="ValueError: unknown reset options"):
            await env.ask("reset", seed=0, options={"level": 3})
        assert await outcomes([env]) == ["WireReply"], "the episode begun before goes on"

    with_pool(work, workers=1)


def test_environments_opened_and_dropped_leave_nothing() -> None:
    async def work(pool: WorkerPool) -> set[int]:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            envs = await opened(pool, 4)
            await outcomes(envs)
            for env in envs:
                await env.close()
                await env.close()
        assert {worker.environments for worker in pool._workers} == {0}
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * 2
        return set(pool.pids)

    for pid in with_pool(work):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_call_that_json_cannot_hold_is_refused_alone() -> None:
    async def work(pool: WorkerPool) -> None:
        envs = await opened(pool, 2)
        asked = [envs[0].ask("reset", seed=2**70, options=None), envs[1].ask("step", response="x")]
        wrong, right = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(wrong, EnvironmentRaised) and "TypeError" in str(wrong)
        assert right.content["reward"] == 0.0

    with_pool(work, workers=1)
