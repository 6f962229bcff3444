"""One arm on one task: a result that is a file."""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.method import arms, curriculum, entropy, gradients, lab, learner, losses
from vagen.storage import write_whole

SEEDS = range(8)
ENTROPY = {study.FILES: study for study in (entropy, losses.COVARIANCE, losses.RATIOS)}
"""Studies that follow entropy too, on tasks of their own."""
ITERATIONS = {"dense": 60, "noisy": 60, "sparse": 80}


class Job:
    """One arm on one task, whose result is a file."""

    def __init__(self, part: str, task: str, name: str, arm: learner.Arm, outputs: Path) -> None:
        self.part, self.task, self.name, self.arm = part, task, name, arm
        self.path = outputs / part / task / f"{name}.json"
        self.settings: dict[str, Any] = {"arm": asdict(arm), "seeds": list(SEEDS)}
        if part == "tokens":
            self.settings["iterations"] = ITERATIONS[arms.TASKS[task].reward]
        elif part in ENTROPY:
            self.settings["iterations"] = entropy.ITERATIONS
        elif part == curriculum.FILES:
            self.settings |= {
                "iterations": curriculum.ITERATIONS,
                "draws": curriculum.draws_of(name),
            }
        else:
            self.settings["batches"] = gradients.BATCHES

    def finished(self) -> bool:
        """Whether it was run with these settings."""
        if not self.path.exists():
            return False
        stored = json.loads(self.path.read_text())
        # What an arm could not say yet was at its default.
        stored["arm"] = asdict(learner.Arm(self.arm.adv_estimator)) | stored["arm"]
        return self.settings == {key: stored.get(key) for key in self.settings}

    def run(self) -> str:
        """Makes the file; returns a line about it."""
        torch.set_num_threads(1)
        found = RUNS[self.part](arms.TASKS[self.task], self.arm, self.settings)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(self.path) as partial:
            partial.write_text(json.dumps(self.settings | found) + "\n")
        return f"{self.part}: {self.task}: {self.name}"


def _tokens(task: lab.Task, arm: learner.Arm, settings: dict[str, Any]) -> dict[str, Any]:
    trained = learner.train(task, arm, SEEDS, settings["iterations"])
    return {"curves": trained.accuracy.tolist()}


def _entropy(task: lab.Task, arm: learner.Arm, settings: dict[str, Any]) -> dict[str, Any]:
    trained = learner.train(task, arm, SEEDS, settings["iterations"])
    curves = {"curves": trained.accuracy, "entropy": trained.entropy, "weights": trained.weights}
    return {name: curve.tolist() for name, curve in curves.items()}


def _gradients(task: lab.Task, arm: learner.Arm, settings: dict[str, Any]) -> dict[str, Any]:
    accuracy, policies, reference = _fixed(task.dependent)
    found = gradients.measure(policies, task, arm, SEEDS)
    return {
        "accuracy": accuracy.tolist(),
        "snr": found.snr().tolist(),
        "cosine": found.cosine(reference).tolist(),
    }


@functools.cache
def _fixed(dependent: bool) -> tuple[torch.Tensor, lab.Networks, gradients.Moments]:
    """Once per process: share of turns that earn, the policies, and the true gradient."""
    task = lab.Task(dependent, "dense")
    accuracy, policies = gradients.fixed_policies(task, SEEDS)
    return accuracy, policies, gradients.measure(policies, task, gradients.REFERENCE, SEEDS)


RUNS: dict[str, Callable[[lab.Task, learner.Arm, dict[str, Any]], dict[str, Any]]] = {
    "tokens": _tokens,
    "gradients": _gradients,
    **dict.fromkeys(ENTROPY, _entropy),
    curriculum.FILES: curriculum.run,
}


def jobs(part: str, outputs: Path) -> list[Job]:
    """All of a part, task by task, the weightiest arms first."""
    if part == "tokens":
        of_tasks = {name: arms.arms_of(task) for name, task in arms.TASKS.items()}
    elif part in ENTROPY:
        of_tasks = {name: ENTROPY[part].arms_of(name) for name in entropy.TASKS}
    elif part == curriculum.FILES:
        of_tasks = {curriculum.TASK: curriculum.arms_of()}
    else:
        every = arms.SUMMED | arms.PER_TURN | arms.ONLY_IN_GRADIENTS
        first_step = {name: arm for name, arm in every.items() if arm.clip_ratio_high == 0.2}
        of_tasks = dict.fromkeys(gradients.TASKS, first_step)  # where no ratio is clipped yet
    names = dict.fromkeys(name for contrast in arms.CONTRASTS for name in contrast[1:])
    names |= dict.fromkeys(name for of_task in of_tasks.values() for name in of_task)
    return [
        Job(part, task, name, of_task[name], outputs)
        for task, of_task in of_tasks.items()
        for name in names
        if name in of_task
    ]
