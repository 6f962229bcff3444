"""One arm on one task, at its own best learning rates: a result that is a file."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.method import arms, gradients, lab, learner
from benchmarks.method.curriculum import Levels
from benchmarks.method.report import LAST, measures
from vagen.storage import write_whole

SEEDS = range(16)
TUNING_SEEDS = range(100, 104)
ACTOR_RATES, ACTOR_STEP = (0.005, 0.01, 0.02, 0.04, 0.08), 2.0
CRITIC_RATES, CRITIC_STEP = (0.01, 0.03, 0.09), 3.0
MOST_STEPS = 3
"""Beyond the edge of a grid."""


class Job:
    """One arm on one task, whose result is a file."""

    def __init__(self, part: str, task: str, name: str, arm: learner.Arm, outputs: Path) -> None:
        self.part, self.task, self.name, self.arm = part, task, name, arm
        self.path = outputs / part / task / f"{name}.json"
        self.settings: dict[str, Any] = {"arm": asdict(arm), "seeds": list(SEEDS)}
        if part == "tokens":
            self.settings["iterations"] = iterations_of(task)
        else:
            self.settings["batches"] = gradients.BATCHES

    def finished(self) -> bool:
        """Whether it was run with these settings."""
        stored = self._stored()
        return self.settings == {key: stored.get(key) for key in self.settings}

    def _stored(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def run(self) -> str:
        """Makes the file; returns a line about it."""
        torch.set_num_threads(1)
        if self.part == "tokens":
            stored = self._stored()
            same = all(stored.get(key) == self.settings[key] for key in ("arm", "iterations"))
            tuning = stored["tuning"] if same else []
            found = tokens(self.task, self.arm, self.settings, tuning)
        else:
            found = _gradients(self.task, self.arm, self.settings)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(self.path) as partial:
            partial.write_text(json.dumps(self.settings | found) + "\n")
        return f"{self.part}: {self.task}: {self.name}"


def iterations_of(task: str) -> int:
    """Enough for most arms at their best rates to come to a plateau; more turns teach more."""
    if task == arms.LEVELS:
        return 120
    of = arms.CROSSED[task]
    iterations = 100 if of.sparse else 80 if of.noise else 60
    return {2: 2 * iterations, 8: iterations, 32: iterations // 2}[of.turns]


def tokens(
    task: str, arm: learner.Arm, settings: dict[str, Any], tuned: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Tunes the actor's rate, then the critic's, by the area; then trains new seeds at the best.

    Args:
        task: Name of the task.
        arm: The arm; its rates are where the search begins.
        settings: `seeds` and `iterations`.
        tuned: Rates that were tried before, as in the result's `tuning`.
    """
    tuning = [*tuned]

    def train(tried: learner.Arm, seeds: Sequence[int]) -> learner.Training:
        play = Levels(tried, seeds).play if task == arms.LEVELS else lab.play
        of = lab.Task() if task == arms.LEVELS else arms.CROSSED[task]
        return learner.train(of, tried, seeds, settings["iterations"], play)

    def area(tried: learner.Arm) -> float:
        rates = {"actor_lr": tried.actor_lr, "critic_lr": tried.critic_lr}
        for row in tuning:
            if rates.items() <= row.items():
                return sum(row["auc"])
        found = train(tried, TUNING_SEEDS).accuracy.mean(1).tolist()
        tuning.append({**rates, "auc": [round(value, 5) for value in found]})
        return sum(found)

    best = replace(
        arm,
        actor_lr=search(ACTOR_RATES, ACTOR_STEP, lambda rate: area(replace(arm, actor_lr=rate))),
    )
    if learner.get_estimator(arm.adv_estimator).needs_critic:
        best = replace(
            best,
            critic_lr=search(
                CRITIC_RATES, CRITIC_STEP, lambda rate: area(replace(best, critic_lr=rate))
            ),
        )
    trained = train(best, settings["seeds"])
    return {
        "actor_lr": best.actor_lr,
        "critic_lr": best.critic_lr,
        "tuning": tuning,
        **measures(trained.accuracy.tolist()),
        "final_entropy": trained.entropy[:, -LAST:].mean(1).tolist(),
        "curve": [round(value, 4) for value in trained.accuracy.mean(0).tolist()],
    }


def search(rates: Sequence[float], step: float, area: Callable[[float], float]) -> float:
    """The best of a grid that grows while its best is at an edge."""
    found = {rate: area(rate) for rate in rates}
    for _ in range(MOST_STEPS):
        best = max(found, key=found.__getitem__)
        if best not in (min(found), max(found)):
            break
        rate = best / step if best == min(found) else best * step
        found[rate] = area(rate)
    return max(found, key=found.__getitem__)


def _gradients(task: str, arm: learner.Arm, settings: dict[str, Any]) -> dict[str, Any]:
    accuracy, policies, reference = _fixed(arms.CROSSED[task].dependent)
    found = gradients.measure(policies, arms.CROSSED[task], arm, SEEDS)
    return {
        "accuracy": accuracy.tolist(),
        "snr": found.snr().tolist(),
        "cosine": found.cosine(reference).tolist(),
    }


@functools.cache
def _fixed(dependent: bool) -> tuple[torch.Tensor, lab.Networks, gradients.Moments]:
    """Once per process: share of turns that earn, the policies, and the true gradient."""
    task = lab.Task(dependent)
    accuracy, policies = gradients.fixed_policies(task, SEEDS)
    return accuracy, policies, gradients.measure(policies, task, gradients.REFERENCE, SEEDS)


def jobs(part: str, outputs: Path) -> list[Job]:
    """All of a part, the weightiest arms first, each on all of its tasks."""
    if part == "tokens":
        of_tasks = {name: arms.arms_of(name) for name in (*arms.CROSSED, arms.LEVELS)}
    else:
        every = arms.SUMMED | arms.PER_TURN | arms.ONLY_IN_GRADIENTS
        first_step = {name: arm for name, arm in every.items() if arm.clip_ratio_high == 0.2}
        of_tasks = dict.fromkeys(gradients.TASKS, first_step)  # where no ratio is clipped yet
    asked = [contrast for study in arms.STUDIES.values() for contrast in study]
    names = dict.fromkeys(name for contrast in asked for name in contrast[1:])
    names |= dict.fromkeys(name for of_task in of_tasks.values() for name in of_task)
    groups = (arms.TASKS, {*of_tasks} - {*arms.TASKS})
    return [
        Job(part, task, name, of_task[name], outputs)
        for group in groups
        for name in names
        for task, of_task in of_tasks.items()
        if task in group and name in of_task
    ]
