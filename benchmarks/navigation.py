"""Navigation: who arrives (the expert, random play) in each task style, and how fast it is.

    python benchmarks/navigation.py [--part arrivals|speed] [--levels 200]

Arrivals need no pictures: moves, sight and truth are the environment's own. Speed is per CPU-second
of the process, Mesa's software rendering included; a step is one model turn of one action.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import get_args

from machine import describe_machine

from vagen import envs
from vagen.envs.navigation.config import TaskStyle
from vagen.envs.navigation.world import ACTIONS

RESULT = Path(__file__).parent / "results" / "navigation.json"


def play(env, seed, respond):
    """Whether a player arrives, and how many actions the episode took."""
    env.reset(seed=seed)
    actions, over = 0, False
    while not over:
        _, _, terminated, truncated, info = env.step(respond())
        actions += len(info["parsed"]["actions"])
        over = terminated or truncated
    return info["success"], actions


def measure(style, reward, levels):
    options = {"render_mode": "text", "prompt_format": "no_think", "tasks": style, "reward": reward}
    env = envs.make("Navigation", options, "test")
    rng = Random(0)
    expert = [play(env, seed, env.expert_response) for seed in range(levels)]
    chance = [
        play(env, seed, lambda: f"<answer>{','.join(rng.choices(ACTIONS, k=5))}</answer>")
        for seed in range(levels)
    ]
    actions = [count for _, count in expert]
    return {
        "style": style,
        "reward": reward,
        "levels": levels,
        "expert_success": sum(success for success, _ in expert) / levels,
        "expert_actions_mean": round(sum(actions) / levels, 2),
        "expert_actions_most": max(actions),
        "random_success": sum(success for success, _ in chance) / levels,
    }


def speed(mode, style):
    """Resets and steps per CPU-second, on levels that differ every time."""
    options = {"render_mode": mode, "prompt_format": "no_think", "tasks": style}
    env = envs.make("Navigation", options)
    for seed in range(20):  # textures and meshes are loaded
        env.reset(seed=seed)
    reset_seconds = step_seconds = 0.0
    resets, steps = 150, 0
    rng = Random(0)
    for seed in range(100, 100 + resets):
        start = time.process_time()
        env.reset(seed=seed)
        middle = time.process_time()
        for _ in range(4):
            _, _, terminated, _, _ = env.step(f"<answer>{rng.choice(ACTIONS)}</answer>")
            steps += 1
            if terminated:
                break
        step_seconds += time.process_time() - middle
        reset_seconds += middle - start
    return {
        "mode": mode,
        "style": style,
        "resets_per_cpu_second": round(resets / reset_seconds, 1),
        "steps_per_cpu_second": round(steps / step_seconds, 1),
    }


def arrivals(levels):
    for reward in ("vagen-legacy", "vagen-new"):
        for style in get_args(TaskStyle):
            yield measure(style, reward, levels)


def speeds():
    for mode in ("text", "vision"):
        for style in ("base", "long_horizon"):
            yield speed(mode, style)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("arrivals", "speed"))
    parser.add_argument("--levels", type=int, default=200)
    options = parser.parse_args()
    report = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part, rows in (("arrivals", arrivals(options.levels)), ("speed", speeds())):
        if options.part in (None, part):
            report[part] = {"machine": describe_machine(), "rows": []}
            for row in rows:
                report[part]["rows"].append(row)
                print(json.dumps(row), flush=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
