"""What a curriculum over levels does: `data.curriculum` on levels of known difficulty.

A level is eight states and a number, from 1 to 8: so many turns must be right for the one reward of
10 at the end. A policy that begins by guessing hardly ever succeeds where the number is above 3,
and later always where it is small. The policy is not told the number, so the share of right turns,
times nothing else, is its mean success over all levels.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method import arms, lab, report
from benchmarks.method.learner import Arm, train
from vagen.config.data_options import CurriculumConfig
from vagen.rollout.curriculum import BucketCounts, count_successes, draw_weights, weighted_order

ITERATIONS = 120
LEVELS = 1024
"""Per seed; as many of each number of right turns."""
ESTIMATORS = {"grpo": arms.SUMMED["grpo"], "masked": arms.SUMMED["masked"]}
"""With groups of eight, and with a critic and a level per episode."""
DRAWS: dict[str, dict[str, Any]] = {
    "even": {},
    "curriculum": {"buckets": lab.TURNS},
    "curriculum, 4 buckets": {"buckets": 4},
    "curriculum, uniform share .05": {"buckets": lab.TURNS, "uniform_share": 0.05},
}
FILES = "curriculum"
TASK = "independent, sparse"
RESULT = report.ROOT / "benchmarks" / "results" / "method-curriculum.json"


class Levels:
    """Levels of every seed, drawn iteration by iteration as the package draws them."""

    def __init__(self, draws: dict[str, Any], arm: Arm, seeds: Sequence[int]) -> None:
        self.config = CurriculumConfig(enable=bool(draws), **draws)
        self.arm, self.seeds = arm, seeds
        self.states = torch.stack(
            [
                torch.randint(
                    lab.STATES, (LEVELS, lab.TURNS), generator=torch.Generator().manual_seed(seed)
                )
                for seed in seeds
            ]
        )
        self.needed = torch.arange(LEVELS) * lab.TURNS // LEVELS + 1
        buckets = (self.needed - 1) * self.config.buckets // lab.TURNS
        self.buckets = [f"levels/{bucket}" for bucket in buckets.tolist()]
        self.seen: list[BucketCounts] = [{} for _ in seeds]
        self.iteration = 0
        self.difficulty: list[list[float]] = []
        """Mean number of right turns needed, by iteration and seed."""

    def play(
        self, networks: lab.Networks, task: lab.Task, luck: lab.Luck, judge: lab.Judge
    ) -> lab.Episodes:
        """Plays the levels of an iteration; a level is played as often as a group is large."""
        group = self.arm.n_trajectory
        drawn = torch.stack(
            [
                torch.from_numpy(self._order(index)[: lab.EPISODES // group].copy())
                for index in range(len(self.seeds))
            ]
        ).repeat_interleave(group, 1)
        states = torch.stack([s[d] for s, d in zip(self.states, drawn, strict=True)])
        played = lab.play(networks, task, luck._replace(states=states), judge)
        success = played.earned.sum(-1) >= self.needed[drawn]
        rewards = torch.zeros_like(played.rewards)
        rewards[..., -1] = 10.0 * success
        for index, (levels, won) in enumerate(zip(drawn, success, strict=True)):
            buckets = [self.buckets[level] for level in levels.tolist()]
            self.seen[index] = count_successes(self.config, self.seen[index], buckets, won.tolist())
        self.difficulty.append(self.needed[drawn].float().mean(1).tolist())
        self.iteration += 1
        return played._replace(rewards=rewards)

    def _order(self, index: int) -> np.ndarray:
        seed = 1_000 * self.seeds[index] + self.iteration
        if not self.config.enable:
            return np.random.Generator(np.random.Philox(key=seed)).permutation(LEVELS)
        weights = draw_weights(self.config, self.buckets, self.seen[index])
        return weighted_order(weights, seed)


def arms_of() -> dict[str, Arm]:
    """Every estimator with every way to draw; `DRAWS` by the end of the name."""
    return {
        f"{estimator}: {draws}": arm for estimator, arm in ESTIMATORS.items() for draws in DRAWS
    }


def draws_of(name: str) -> dict[str, Any]:
    """How the arm of this name draws."""
    return DRAWS[name.partition(": ")[2]]


def run(task: lab.Task, arm: Arm, settings: dict[str, Any]) -> dict[str, Any]:
    """Success over all levels, [seed][iteration], and the mean difficulty drawn, the other way."""
    levels = Levels(settings["draws"], arm, settings["seeds"])
    trained = train(task, arm, settings["seeds"], settings["iterations"], levels.play)
    return {"curves": trained.accuracy.tolist(), "difficulty": levels.difficulty}


def write(outputs: Path, note: str) -> None:
    """From the files of finished arms to the result and the table of `docs/method.md`."""
    found: report.Found = {TASK: {}}
    for path in sorted((outputs / FILES / TASK).glob("*.json")):
        row = json.loads(path.read_text())
        difficulty = np.mean(row["difficulty"], 1).round(3).tolist()
        found[TASK][path.stem] = {
            **{key: row[key] for key in ("arm", "draws", "seeds", "iterations")},
            **report.measures(row["curves"]),
            "mean_curves": {
                "success": np.mean(row["curves"], 0).round(4).tolist(),
                "difficulty": difficulty,
            },
        }
    contrasts = [
        arms.Contrast(f"{draws} against even, {estimator}", f"{estimator}: even", name)
        for estimator in ESTIMATORS
        for draws in DRAWS
        if draws != "even" and (name := f"{estimator}: {draws}") in found[TASK]
    ]
    result = {
        **header(note),
        "machine": describe_machine(),
        "arms": found,
        "contrasts": report.contrasts_of(found, contrasts),
    }
    write_result(RESULT, result)
    report.write_tables({"curriculum": _table(found[TASK], contrasts)})
    print(RESULT)


def _table(found: dict[str, Any], contrasts: Sequence[arms.Contrast]) -> str:
    """By arm: area and final success, their gain over even draws, the difficulty drawn."""
    gains = {each.candidate: report.compare(found, each) for each in contrasts}
    lines = [
        "| estimator: draws | area | final | area, minus even | final, minus even "
        "| turns needed, of iterations 1, 31, 61, 120 |",
        "|---" * 6 + "|",
    ]
    for name in arms_of():
        if name in found:
            row = found[name]
            drawn = row["mean_curves"]["difficulty"]
            cells = [
                *(f"{np.mean(row[key]):.3f}" for key in ("auc", "final")),
                *(report.as_text(gains.get(name, {}).get(key)) for key in ("auc", "final")),
                ", ".join(f"{drawn[i]:.1f}" for i in (0, 30, 60, ITERATIONS - 1)),
            ]
            lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)
