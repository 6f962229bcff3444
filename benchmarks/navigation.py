"""Navigation: who arrives, the expert and random play, in each task style.

    python benchmarks/navigation.py [--levels 200]

That needs no pictures: moves, sight and truth are the environment's own.
"""

import argparse
import json
from itertools import product
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=int, default=200)
    options = parser.parse_args()
    rows = []
    for reward, style in product(("vagen-legacy", "vagen-new"), get_args(TaskStyle)):
        rows.append(measure(style, reward, options.levels))
        print(json.dumps(rows[-1]), flush=True)
    RESULT.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
