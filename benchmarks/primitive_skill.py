"""PrimitiveSkill: success of expert and chance, agreement of the expert's texts, speed.

A random player draws primitives at the coordinates of things (the hardest chance to beat): it picks
at a thing, places or pushes at random points of the workspace.

    python benchmarks/primitive_skill.py [--seeds 200] [--random 60] [--output FILE]
"""

import argparse
import datetime
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from machine import describe_machine

from vagen import envs
from vagen.envs.primitive_skill.primitives import WORKSPACE
from vagen.envs.primitive_skill.tasks import TASKS
from vagen.judge import RuleJudge, rules_for

OPTIONS = {"render_mode": "text", "prompt_format": "grounding_worldmodeling"}
ANSWER = (
    "<think><observation>.</observation><reasoning>.</reasoning><prediction>.</prediction></think>"
)


def expert(task: str, seeds: int) -> dict[str, Any]:
    """Success of the expert, and the rule judge's scores of what it states."""
    env = envs.make("PrimitiveSkill", {"task": task, **OPTIONS}, "test")
    rules = rules_for("PrimitiveSkill", env.config)
    assert rules is not None
    judge = RuleJudge(rules)
    scores, successes, primitives, spent = [], [], 0, 0.0
    for seed in range(seeds):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            before, response = info["state"], env.expert_response()
            start = time.process_time()
            *_, terminated, truncated, info = env.step(response)
            spent += time.process_time() - start
            over = terminated or truncated
            primitives += len(info["parsed"]["actions"])
            parsed = info["parsed"]
            verdict = judge.score_sync(
                parsed["observation"], parsed["prediction"], before, info["state"]
            )
            scores.append((verdict.observation, verdict.prediction))
        successes.append(info["success"])
    observed, predicted = np.array(scores, float).T
    return {
        "success": float(np.mean(successes)),
        "observations_right": float(np.mean(observed == 1.0)),
        "predictions_right": float(np.mean(predicted == 1.0)),
        "primitives_per_episode": round(primitives / seeds, 2),
        "cpu_ms_per_primitive": round(1000 * spent / primitives, 1),
    }


def chance(task: str, episodes: int) -> float:
    """Success of random primitives, half of them at things."""
    env = envs.make("PrimitiveSkill", {"task": task, **OPTIONS}, "test")
    rng, successes = Random(task), 0
    for seed in range(episodes):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            points = [[rng.randint(low, high) for low, high in WORKSPACE] for _ in range(2)]
            kind = rng.choice(("pick", "place", "push"))
            if kind != "place":
                points[0] = rng.choice(list(info["state"]["objects"].values()))
            numbers = [*points[0], *(points[1] if kind == "push" else [])]
            action = f"{kind}({','.join(map(str, numbers))})"
            *_, terminated, truncated, info = env.step(f"{ANSWER}<answer>{action}</answer>")
            over = terminated or truncated
        successes += info["success"]
    return successes / episodes


def drawing(task: str, size: int, frames: int = 100) -> float:
    """CPU milliseconds of a picture."""
    env: Any = envs.make("PrimitiveSkill", {"task": task, "image_size": size})
    env.reset(seed=0)
    env.picture()
    start = time.process_time()
    for _ in range(frames):
        env.picture()
    return round(1000 * (time.process_time() - start) / frames, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--random", type=int, default=60)
    default = Path(__file__).parent / "results" / "primitive-skill.json"
    parser.add_argument("--output", type=Path, default=default)
    args = parser.parse_args()
    tasks = {}
    for task in TASKS:
        found = expert(task, args.seeds)
        found["random_success"] = chance(task, args.random)
        found["cpu_ms_per_picture_300px"] = drawing(task, 300)
        tasks[task] = found
        print(task, json.dumps(found), flush=True)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "seeds": args.seeds,
        "random_episodes": args.random,
        "tasks": tasks,
    }
    args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
