"""Speed of environments by where they run: steps per second, and what a step costs over in-process.

FrozenLake 4x4 with pictures (128 x 128 px), random moves, a reset whenever an episode ends (its
time counts, it is no step). The client has every frame as pixels, as a policy needs them.
`sessions` episodes are under way at once, each waiting for its own environment only.
`ms_over_process` is the wall time per step beyond that of the same episodes in the process that
plays; with several sessions it is the time per step of all together, with one the latency of a
call. CPU milliseconds per step are the client's, and those of workers and service together.

    python benchmarks/env_service.py [--seconds 4] [--sessions 1,8,64]
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
from machine import describe_machine

from vagen.config.infra import EnvironmentsConfig
from vagen.service import AsyncEnv, Environments

AIM = {"steps_per_s": 2000, "ms_over_process": 1.5}
MOVES = ("Up", "Down", "Left", "Right")
REPEATS = 3


async def play(env: AsyncEnv, seed: int, deadline: float) -> int:
    """Plays episodes until the time is up; returns the steps."""
    rng, steps = Random(seed), 0
    await env.reset(seed=seed)
    while time.perf_counter() < deadline:
        response = (
            "<think><observation>target is above and left</observation><reasoning>move</reasoning>"
            "<prediction>target is above and same column</prediction></think>"
            f"<answer>{rng.choice(MOVES)}</answer>"
        )
        observation, _, terminated, truncated, _ = await env.step(response)
        assert observation["images"][0].shape == (128, 128, 3)
        steps += 1
        if terminated or truncated:
            await env.reset(seed=rng.randrange(2**31))
    return steps


async def episodes(
    environments: Environments, sessions: int, seconds: float, server: psutil.Process | None
) -> tuple[float, float, float]:
    """Steps per second of so many sessions side by side; CPU seconds per step, here and there."""
    envs = await asyncio.gather(*(environments.make("FrozenLake", {}) for _ in range(sessions)))
    others, here = elsewhere(server), time.process_time()
    begun = time.perf_counter()
    counts = await asyncio.gather(*(play(env, k, begun + seconds) for k, env in enumerate(envs)))
    spent = time.perf_counter() - begun
    here, others = time.process_time() - here, elsewhere(server) - others
    await asyncio.gather(*(env.close() for env in envs))
    steps = sum(counts)
    return steps / spent, here / steps, others / steps


def elsewhere(server: psutil.Process | None) -> float:
    """CPU time of worker processes, or of a service and its workers."""
    root = server or psutil.Process()
    members = [root] * (server is not None) + root.children(recursive=True)
    return sum(member.cpu_times().user + member.cpu_times().system for member in members)


def measure(
    environments: Environments, sessions: int, seconds: float, server: psutil.Process | None
) -> dict[str, float]:
    """Medians of a few repeats."""
    asyncio.run(episodes(environments, sessions, 0.5, server))  # spawns, connects, warms up
    repeats = [
        asyncio.run(episodes(environments, sessions, seconds / REPEATS, server))
        for _ in range(REPEATS)
    ]
    rates, client, others = zip(*repeats, strict=True)
    return {
        "sessions": sessions,
        "steps_per_s": round(statistics.median(rates)),
        "slowest_repeat": round(min(rates)),
        "fastest_repeat": round(max(rates)),
        "client_cpu_ms_per_step": round(1e3 * statistics.median(client), 3),
        "other_cpu_ms_per_step": round(1e3 * statistics.median(others), 3),
    }


@contextlib.contextmanager
def service(workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """A service of its own on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vagen.service", "--port", "0", "--workers", str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().rpartition(" ")[2], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def image_bytes(url: str) -> float:
    """PNG bytes per observation that a service has sent."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    values = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }
    calls = sum(v for k, v in values.items() if k.startswith("vagen_env_calls_total"))
    return values["vagen_env_image_bytes_total"] / calls


def compare(counts: list[int], seconds: float) -> dict[str, Any]:
    """All placements, each with 1, 8, 64 sessions."""
    results: list[dict[str, Any]] = []
    alone: dict[int, float] = {}

    def record(name: str, config: EnvironmentsConfig, server: psutil.Process | None) -> None:
        environments = Environments(config)
        for sessions in counts:
            found: dict[str, Any] = {
                "placement": name,
                **measure(environments, sessions, seconds, server),
            }
            rate = found["steps_per_s"]
            alone.setdefault(sessions, rate)
            found["ms_over_process"] = round(1e3 / rate - 1e3 / alone[sessions], 3)
            results.append(found)
            print(
                f"{name:22} {sessions:>3} sessions {rate:>7,} steps/s  "
                f"{found['ms_over_process']:>6.2f} ms over process  CPU ms a step: "
                f"client {found['client_cpu_ms_per_step']:.2f}, "
                f"others {found['other_cpu_ms_per_step']:.2f}",
                flush=True,
            )
        environments.close()

    record("process", EnvironmentsConfig(placement="process"), None)
    record("workers, 1", EnvironmentsConfig(placement="workers", workers=1), None)
    size = 0.0
    for workers in (0, 1):
        with service(workers) as (url, process):
            config = EnvironmentsConfig(placement="service", url=url)
            record(f"service, {workers} workers", config, process)
            size = image_bytes(url)
    best = max(r["steps_per_s"] for r in results if r["placement"].startswith("service"))
    over = min(r["ms_over_process"] for r in results if r["placement"].startswith("service"))
    print(
        f"aims: {best:,} of {AIM['steps_per_s']:,} steps/s; {over} of {AIM['ms_over_process']} ms"
    )
    return {"aim": AIM, "image_bytes_per_step": round(size), "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--sessions", default="1,8,64")
    default = Path(__file__).parent / "results" / "env_service.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "repeats": REPEATS,
    }
    counts = [int(part) for part in arguments.sessions.split(",")]
    report |= compare(counts, arguments.seconds)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
