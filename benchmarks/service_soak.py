"""Soak of the environment service: sessions opened, played, closed and dropped, a great many steps.

Starts a service with worker processes and plays image steps on it by several clients. Every so
often a client vanishes with its sessions open, as a trainer that is killed does; the service
closes them when they are idle. Memory, open files and processes of the service and its workers are
looked at all along. Memory rises with the most sessions that were ever open at once, and stays
there: the growth is what there is at the end over what there was after half of the steps.

    python benchmarks/service_soak.py [--steps 100000] [--sessions 64] [--workers 1]
"""

import argparse
import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import psutil

from vagen.config.infra import EnvironmentsConfig
from vagen.service.client import ServiceClient, SessionEnv

OPTIONS = {"size": 4, "p_frozen": 0.8}
EPISODE = 12
"""Steps of an episode at most."""
VANISHING = 5
"""A client vanishes after every so many rounds."""
IDLE_SECONDS = 5.0


def resources(pid: int) -> dict[str, float]:
    """Memory, open files and processes of a service and its children."""
    service = psutil.Process(pid)
    family = [service, *service.children(recursive=True)]
    return {
        "memory_mib": sum(process.memory_info().rss for process in family) / 2**20,
        "files": float(sum(process.num_fds() for process in family)),
        "processes": float(len(family)),
    }


def sessions_open(url: str) -> int:
    """Sessions that the service holds."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vagen_env_sessions{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


async def episode(env: SessionEnv, rng: Random) -> int:
    """Plays one episode by random moves; returns its steps."""
    await env.ask("reset", seed=rng.randrange(2**31), options=None)
    for taken in range(1, EPISODE + 1):
        move = rng.choice(["Up", "Down", "Left", "Right"])
        response = (
            f"<think><observation>o</observation><reasoning>r</reasoning>"
            f"<prediction>p</prediction></think><answer>{move}</answer>"
        )
        content = (await env.ask("step", response=response)).content
        if content["terminated"] or content["truncated"]:
            return taken
    return EPISODE


async def _round(
    config: EnvironmentsConfig, rng: Random, sessions: int, *, vanishes: bool
) -> tuple[int, int]:
    """Steps played by a client of its own, and the sessions that it left open."""
    client = ServiceClient(config)
    envs = await asyncio.gather(
        *(client.open("FrozenLake", OPTIONS, "train") for _ in range(sessions))
    )
    steps = sum(await asyncio.gather(*(episode(env, Random(rng.random())) for env in envs)))
    if vanishes:
        assert client._http is not None
        await client._http.close()
        return steps, sessions
    for env in envs:
        await env.close()
    await client.close()
    return steps, 0


def soak(url: str, pid: int, *, steps: int, sessions: int) -> dict[str, Any]:
    """Plays so many steps and looks at what the service takes.

    Args:
        url: Of the service; its sessions expire after some seconds.
        pid: Its process.
        steps: To play.
        sessions: Alive at a time.
    """
    config, rng = EnvironmentsConfig(placement="service", url=url), Random(0)
    begun, done, dropped, rounds = time.monotonic(), 0, 0, 0
    samples: list[dict[str, float]] = []
    while done < steps:
        taken, left = asyncio.run(
            _round(config, rng, sessions, vanishes=rounds % VANISHING == VANISHING - 1)
        )
        done, dropped, rounds = done + taken, dropped + left, rounds + 1
        if len(samples) < done * 20 // steps:
            samples.append({"steps": done, **resources(pid)})
    seconds = time.monotonic() - begun
    deadline = time.monotonic() + 60
    while sessions_open(url) and time.monotonic() < deadline:
        time.sleep(0.5)
    first, last = samples[len(samples) // 2], {"steps": done, **resources(pid)}
    samples.append(last)
    return {
        "steps": done,
        "sessions": rounds * sessions,
        "dropped_sessions": dropped,
        "sessions_left": sessions_open(url),
        "seconds": round(seconds, 1),
        "steps_per_s": round(done / seconds),
        "growth": {key: round(last[key] - first[key], 1) for key in first if key != "steps"},
        "samples": [{key: round(value, 1) for key, value in sample.items()} for sample in samples],
    }


def main() -> None:
    from machine import describe_machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    default = Path(__file__).parent / "results" / "service_soak.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()
    command = ["--port", "0", "--workers", str(arguments.workers)]
    service = subprocess.Popen(
        [sys.executable, "-m", "vagen.service", *command, "--idle-seconds", str(IDLE_SECONDS)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert service.stdout is not None
    url = service.stdout.readline().strip().rpartition(" ")[2]
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "workers": arguments.workers,
    }
    try:
        report |= soak(url, service.pid, steps=arguments.steps, sessions=arguments.sessions)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait()
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "samples"}, indent=2))


if __name__ == "__main__":
    main()
