"""The queue: runs trials concurrently until all are done."""

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from vagen.config import ExperimentConfig
from vagen.sweep.measure import TrialMeasurement
from vagen.sweep.schema import SweepConfig, described
from vagen.sweep.study import Study, Trial


class TrialState(StrEnum):
    """State of a trial's training."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Trainings(Protocol):
    """Runs trials, as processes of this machine or as pipelines on a cluster."""

    pause: float
    """Seconds between polls."""

    def make(self, trial: Trial, experiment: ExperimentConfig) -> str:
        """Creates the trial's run; returns its identifier. Called again after an interruption.

        Raises:
            ValueError: It cannot be created.
        """
        ...

    def start(self, trial: Trial) -> None:
        """Starts or resumes the training of a created run."""
        ...

    def state(self, trial: Trial) -> tuple[TrialState, str]:
        """State of the training, and the reason of a failure."""
        ...

    def measured(self, trial: Trial) -> TrialMeasurement:
        """Results of its run so far."""
        ...

    def end(self, trial: Trial) -> None:
        """Ends a training early."""
        ...

    def leave(self) -> None:
        """Releases running trainings because this process ends."""
        ...


def conduct(
    config: SweepConfig,
    study: Study,
    trainings: Trainings,
    *,
    jobs: int,
    say: Callable[[str], None],
) -> None:
    """Runs the remaining trials of a sweep.

    A failed trial is recorded with its reason; others continue.
    """
    begun = deque(study.unfinished())
    active: list[Trial] = []
    try:
        while True:
            while len(active) < jobs and (trial := _next(begun, study)) is not None:
                say(f"{trial.name}: {described(trial.parameters)}")
                try:
                    if not trial.made:
                        made = trainings.make(trial, config.load(trial.parameters))
                        trial = study.record_made(trial, made)
                    trainings.start(trial)
                    active.append(trial)
                except ValueError as error:
                    study.fail(trial, str(error))
                    say(_outcome(study, trial, config.size))
            if not active:
                return
            time.sleep(trainings.pause)
            for trial in list(active):
                if _ended(config, study, trainings, trial):
                    active.remove(trial)
                    say(_outcome(study, trial, config.size))
    finally:
        trainings.leave()


def _next(begun: deque[Trial], study: Study) -> Trial | None:
    return begun.popleft() if begun else study.draw()


def _ended(config: SweepConfig, study: Study, trainings: Trainings, trial: Trial) -> bool:
    """Records news of a trial; returns whether it has ended."""
    state, reason = trainings.state(trial)
    if state is TrialState.FAILED:
        study.fail(trial, reason)
        return True
    if state is TrialState.RUNNING and config.asha is None:
        return False
    measured = trainings.measured(trial)
    hopeless = study.report(trial, measured.validations)
    if state is TrialState.DONE:
        value = measured.value
        assert value is not None, trial.name
        study.complete(trial, value)
    elif hopeless:
        trainings.end(trial)
        study.prune(trial)
    return state is TrialState.DONE or hopeless


def _outcome(study: Study, trial: Trial, size: int) -> str:
    now = study.read(trial.number)
    done = sum(each.state != "running" for each in study.trials)
    what = f"success {now.value:.3f}" if now.value is not None else now.reason
    outcome = {"complete": "done", "pruned": "ended early", "fail": "failed"}[now.state]
    return f"{now.name}: {outcome}, {what}   [{done}/{size}]"
