"""Speed of the environments: resets and steps per CPU-second, text and image.

A step is one model turn of k actions, parsing and the next observation included. The figures of
VAGEN's own environments were measured in the same unit on a shared 2-core machine.

    python benchmarks/envs.py [--repeats 7] [--output benchmarks/results/envs.json]
"""

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

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
    instances = [envs.make(case.env_name, options) for _ in range(pool)]

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    default = Path(__file__).parent / "results" / "envs.json"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()

    load = describe_machine(numpy=np.__version__, gymnasium=gymnasium.__version__)
    results = []
    for case in CASES:
        for mode in ("text", "vision"):
            result = rate(case, mode, arguments.repeats)
            results.append(result)
            ratio, aim = result["times_vagen_2025"], result["aim"]
            verdict = (
                "" if aim is None else f"(aim {aim:g}x: {'met' if ratio >= aim else 'MISSED'})"
            )
            print(
                f"{case.name:38} {mode:7} {result['per_cpu_second']:>10,.0f} /s  "
                f"{ratio:>7,.1f}x {verdict}",
                flush=True,
            )
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": load,
        "unit": "per CPU-second of one process, median of the repeats",
        "repeats": arguments.repeats,
        "results": results,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
