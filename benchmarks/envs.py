"""Speed of the environments: resets and steps per CPU-second, text and image; success of experts.

A step is one model turn of k actions, parsing and the next observation included. The figures of
VAGEN's own environments were measured in the same unit on a shared 2-core machine. Grid games are
measured by random moves, the others by the turns of their experts; the time of processes that an
environment starts counts.

    python benchmarks/envs.py [--repeats 7] [--only SVG] [--output benchmarks/results/envs.json]

With `--only` the results of the other environments stay as they are in the file.
"""

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args

import gymnasium
import numpy as np
from machine import describe_machine

from vagen import envs

SMALL: dict[str, Any] = {}
SHORT = {"max_solution_length": 5}
MEDIUM = {"dim_room": (8, 8), "num_boxes": 2}
LARGE = {"dim_room": (10, 10), "num_boxes": 4}


@dataclass(frozen=True)
class Case:
    """What is measured, and VAGEN's own figures as (2025 release, 2026 rewrite)."""

    name: str
    env_name: str
    env_config: dict[str, Any]
    actions: int | None
    """Actions of a step; None measures resets."""
    count: int
    """Resets or steps of one repeat."""
    text: tuple[float | None, float | None]
    vision: tuple[float | None, float | None]
    aim: dict[str, float]
    """Aimed ratio to the 2025 release, by render mode."""


IMAGE_STEPS, RESETS = {"vision": 10.0}, {"text": 20.0, "vision": 20.0}
CASES = [
    Case("Sokoban 6x6/1 reset", "Sokoban", SMALL, None, 2000, (793, 244), (303, 169), RESETS),
    Case(
        "Sokoban 6x6/1 reset, at most 5 moves", "Sokoban", SHORT, None, 2000, (793, 244),
        (303, 169), RESETS,
    ),
    Case("Sokoban 8x8/2 reset", "Sokoban", MEDIUM, None, 150, (47, 14), (42, 12), RESETS),
    Case("Sokoban 10x10/4 reset", "Sokoban", LARGE, None, 12, (0.6, None), (0.3, None), RESETS),
    Case("Sokoban 6x6/1 step x1", "Sokoban", SMALL, 1, 3000, (594, 542), (271, 279), IMAGE_STEPS),
    Case("Sokoban 6x6/1 step x3", "Sokoban", SMALL, 3, 3000, (218, 201), (121, 139), IMAGE_STEPS),
    Case("FrozenLake 4x4 reset", "FrozenLake", SMALL, None, 3000, (7024, 2608), (803, 462), {}),
    Case(
        "FrozenLake 4x4 step x1", "FrozenLake", SMALL, 1, 3000, (15712, 5725), (874, 628),
        IMAGE_STEPS,
    ),
]  # fmt: skip


GRIDS = {case.env_name for case in CASES}
OPTIONS: dict[str, dict[str, Any]] = {
    "SVG": {"difficulty": [1, 5]},
    "Blackjack": {},
    "Household": {},
}
"""Options with which an environment that is no grid game is measured; its defaults if not here."""
STALE = {"SVG"}
"""Environments whose expert copies, which costs nothing to compare: there the answer of the level
before is given."""
TURNS = 200
"""Expert turns of one repeat; a repeat is less for an environment that takes a second for ten."""
EXPERT_SEEDS = 200


def processes_below(top: int) -> Iterator[int]:
    """Processes that one has started and that still run, and theirs."""
    for task in Path(f"/proc/{top}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        for child in map(int, children):
            yield child
            with suppress(FileNotFoundError):
                yield from processes_below(child)


def children_seconds() -> float:
    """CPU time of the processes that this one has started and that still run."""
    ticks = 0
    for process in processes_below(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """What an action returns, and the CPU time it took, that of other processes included."""
    before = children_seconds()
    start = time.process_time()
    result = action()
    own = time.process_time() - start
    return result, own + children_seconds() - before


def render_modes(env_name: str) -> tuple[str, ...]:
    """What observations of an environment can hold."""
    annotation = envs.get_environment(env_name).config_class.model_fields["render_mode"].annotation
    return get_args(annotation)


def expert_rates(env_name: str, mode: str, repeats: int) -> list[dict[str, Any]]:
    """Resets and steps of an environment under its expert, per CPU-second."""
    env = envs.make(env_name, {**OPTIONS.get(env_name, {}), "render_mode": mode})
    env.reset(seed=0)
    env.step(env.expert_response())  # loads what is loaded late
    rates: dict[str, list[float]] = {"reset": [], "step": []}
    seed, turns, stale = 1, TURNS, env.expert_response()
    for repeat in range(repeats):
        spent, done = {"reset": 0.0, "step": 0.0}, {"reset": 0, "step": 0}
        while done["step"] < turns:
            _, seconds = timed(lambda seed=seed: env.reset(seed=seed))
            spent["reset"] += seconds
            done["reset"] += 1
            seed, over = seed + 1, False
            while not over:
                stale, response = env.expert_response(), stale
                if env_name not in STALE:
                    response = stale
                result, seconds = timed(lambda response=response: env.step(response))
                spent["step"] += seconds
                done["step"] += 1
                _, _, terminated, truncated, _ = result
                over = terminated or truncated or env_name in STALE
        for what, seconds in spent.items():
            rates[what].append(done[what] / max(seconds, 1e-3))
        if repeat == 0 and done["step"] / max(spent["step"], 1e-3) < 20:
            turns = TURNS // 5
    env.close()
    return [
        {
            "case": f"{env_name} {what}",
            "mode": mode,
            "per_cpu_second": round(statistics.median(found), 1),
            "slowest_repeat": round(min(found), 1),
            "fastest_repeat": round(max(found), 1),
        }
        for what, found in rates.items()
    ]


def expert_play(env_name: str) -> dict[str, Any]:
    """How often the expert succeeds on held-out levels, and in how many turns."""
    options = OPTIONS.get(env_name, {})
    modes = render_modes(env_name)
    env = envs.make(env_name, {**options, "render_mode": modes[-1]}, "test")
    solved, turns, paid = 0, 0, 0.0
    for seed in range(EXPERT_SEEDS):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.expert_response())
            over = terminated or truncated
            turns += 1
            paid += info["rewards"]["env"]
        solved += info["success"]
    env.close()
    return {
        "environment": env_name,
        "seeds": EXPERT_SEEDS,
        "expert_success": solved / EXPERT_SEEDS,
        "expert_turns": round(turns / EXPERT_SEEDS, 2),
        "expert_return": round(paid / EXPERT_SEEDS, 3),
    }


def resets(case: Case, mode: str) -> Callable[[int], float]:
    """Returns a function of the repeat that does the resets and returns CPU seconds."""
    env = envs.make(case.env_name, {**case.env_config, "render_mode": mode})
    env.reset(seed=0)

    def measure(repeat: int) -> float:
        seeds = range(repeat * case.count, (repeat + 1) * case.count)
        start = time.process_time()
        for seed in seeds:
            env.reset(seed=seed)
        return time.process_time() - start

    return measure


def steps(case: Case, mode: str) -> Callable[[int], float]:
    """Returns a function of the repeat that does first steps of fresh episodes."""
    pool = 200
    options = {**case.env_config, "render_mode": mode, "prompt_format": "grounding_worldmodeling"}
    instances: list[Any] = [envs.make(case.env_name, options) for _ in range(pool)]

    def measure(repeat: int) -> float:
        rng, spent, seed = Random(repeat), 0.0, repeat * case.count
        for _ in range(case.count // pool):
            responses = []
            for env in instances:
                env.reset(seed=seed)
                seed += 1
                answer = ", ".join(rng.choices(env.actions, k=case.actions or 1))
                responses.append(
                    f"<think><observation>target is above and left</observation><reasoning>move"
                    f"</reasoning><prediction>target is above and same column</prediction></think>"
                    f"<answer>{answer}</answer>"
                )
            start = time.process_time()
            for env, response in zip(instances, responses, strict=True):
                env.step(response)
            spent += time.process_time() - start
        return spent

    return measure


def rate(case: Case, mode: str, repeats: int) -> dict[str, Any]:
    """Measures one case in one render mode."""
    measure = (resets if case.actions is None else steps)(case, mode)
    rates = [case.count / measure(repeat) for repeat in range(repeats)]
    median = statistics.median(rates)
    release, rewrite = case.text if mode == "text" else case.vision
    return {
        "case": case.name,
        "mode": mode,
        "per_cpu_second": round(median, 1),
        "slowest_repeat": round(min(rates), 1),
        "fastest_repeat": round(max(rates), 1),
        "vagen_2025": release,
        "vagen_2026": rewrite,
        "times_vagen_2025": round(median / release, 1) if release else None,
        "times_vagen_2026": round(median / rewrite, 1) if rewrite else None,
        "aim": case.aim.get(mode),
    }


def grid_results(env_name: str, repeats: int) -> list[dict[str, Any]]:
    """Every case of a grid game."""
    results = []
    for case in (case for case in CASES if case.env_name == env_name):
        for mode in ("text", "vision"):
            result = rate(case, mode, repeats)
            ratio, aim = result["times_vagen_2025"], result["aim"]
            met = "" if aim is None else f"(aim {aim:g}x: {'met' if ratio >= aim else 'MISSED'})"
            show(result, f"{ratio:>7,.1f}x {met}")
            results.append(result)
    return results


def show(result: dict[str, Any], remark: str = "") -> None:
    """Prints a result and notes when, and beside how much else, it was measured."""
    result["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
    result["load_average"] = round(os.getloadavg()[0], 1)
    figure = f"{result['per_cpu_second']:>10,.0f} /s"
    print(f"{result['case']:38} {result['mode']:7} {figure}  {remark}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(envs.ENVIRONMENTS), metavar="NAME")
    default = Path(__file__).parent / "results" / "envs.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()

    chosen = arguments.only or list(envs.ENVIRONMENTS)
    report: dict[str, Any] = {}
    if arguments.output.exists() and arguments.only:
        report = json.loads(arguments.output.read_text())
    results = [r for r in report.get("results", []) if r["case"].split(" ")[0] not in chosen]
    experts = [r for r in report.get("experts", []) if r["environment"] not in chosen]
    for name in chosen:
        if name in GRIDS:
            results += grid_results(name, arguments.repeats)
        else:
            for mode in render_modes(name):
                found = expert_rates(name, mode, arguments.repeats)
                results += found
                for result in found:
                    show(result)
        experts.append(expert_play(name))
        print(f"{name}: {experts[-1]}", flush=True)
    report |= {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(numpy=np.__version__, gymnasium=gymnasium.__version__),
        "unit": "per CPU-second of all its processes, median of the repeats",
        "repeats": arguments.repeats,
        "results": results,
        "experts": experts,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
