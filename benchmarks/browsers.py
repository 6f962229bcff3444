"""Speed and memory of environments in a browser: Web beside MiniWoB++ as BrowserGym plays it.

A worker on each core plays random clicks, five a level, with a screenshot after each. Resets count
as time, not as steps. Then every worker opens four more sessions, for what one takes.

    .venv-foreign/bin/python benchmarks/browsers.py [--seconds 30] [--output FILE]

Without BrowserGym (`make test-foreign` installs it) only Web is measured.
"""

import argparse
import json
import multiprocessing
import os
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from envs import children_seconds, processes_below
from machine import describe_machine

from vagen import envs
from vagen.envs.turns import TurnEnv

MINIWOB = {"task": "miniwob.click-checkboxes"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Web": ("Web", {"action_sep": "|"}),
    "MiniWoB++": ("BrowserGym", MINIWOB),
    "MiniWoB++ without waits": (
        "BrowserGym",
        {**MINIWOB, "kwargs": {"slow_mo": 0, "pre_observation_delay": 0}},
    ),
}
SESSIONS = 4


def play(case: str, number: int, seconds: float, barrier: Any, found: Any) -> None:
    """A worker: plays for `seconds`, then opens more sessions until they are measured."""
    name, options = CASES[case]
    options = {"prompt_format": "no_think", "max_steps": 5, **options}
    env, chance = envs.make(name, options), Random(number)
    assert isinstance(env, TurnEnv)
    env.reset(seed=number)
    barrier.wait()
    steps, end = 0, time.monotonic() + seconds
    for seed in count(number, 1000):
        env.reset(seed=seed)
        over = False
        while not over and time.monotonic() < end:
            click = env.any_action(chance) if name == "Web" else env._plan(1)[0]
            _, _, terminated, truncated, _ = env.step(f"<answer>{click}</answer>")
            steps, over = steps + 1, terminated or truncated
        if time.monotonic() >= end:
            break
    found.put(steps)
    barrier.wait()
    barrier.wait()  # it is measured
    more = [envs.make(name, options) for _ in range(SESSIONS)]
    for at, each in enumerate(more):
        each.reset(seed=at)
    barrier.wait()
    barrier.wait()  # again
    os._exit(0)


def resident_mib() -> float:
    """Memory of the workers and their browsers; those that share a page share its size."""
    total = 0
    for process in processes_below(os.getpid()):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def measure(case: str, workers: int, seconds: float) -> dict[str, Any]:
    """Steps of all workers, a second and a CPU-second, and memory."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(workers + 1), context.SimpleQueue()
    several = [
        context.Process(target=play, args=(case, number, seconds, barrier, found))
        for number in range(workers)
    ]
    for each in several:
        each.start()
    barrier.wait()
    began, spent = time.monotonic(), children_seconds()
    barrier.wait()
    began, spent = time.monotonic() - began, children_seconds() - spent
    steps, memory = sum(found.get() for _ in several), resident_mib()
    barrier.wait()
    barrier.wait()
    more = (resident_mib() - memory) / (workers * SESSIONS)
    barrier.wait()
    for each in several:
        each.join()
    return {
        "case": case,
        "steps_per_second": round(steps / began, 1),
        "steps_per_cpu_second": round(steps / spent, 1),
        "mib_of_a_worker": round(memory / workers),
        "mib_of_a_further_session": round(more, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    default = Path(__file__).parent / "results" / "browsers.json"
    parser.add_argument("--output", type=Path, default=default)
    options = parser.parse_args()
    results = []
    for case, (name, _) in CASES.items():
        if name == "Web" or find_spec("browsergym"):
            results.append(measure(case, options.workers, options.seconds))
            print(results[-1], flush=True)
    report = {"machine": describe_machine(), "workers": options.workers, "results": results}
    options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
