"""Trials on this machine: each a process of its own, with its own run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from vagen.config import ExperimentConfig, InfraConfig
from vagen.models.files import check_model
from vagen.plan.parts import resolve_defaults
from vagen.run import layout
from vagen.run.run import Run
from vagen.sweep.folder import LOGS
from vagen.sweep.measure import TrialMeasurement, measured
from vagen.sweep.queue import TrialState
from vagen.sweep.study import Trial

PATIENCE = 60.0
"""Seconds for a training to close its run when it is told to end."""
_COMMAND = (sys.executable, "-m", "vagen.cli.trial")


class TrainingProcesses:
    """Trainings as processes of this machine.

    A process has the other end of a pipe as its input: it ends, and closes its run, when the
    sweep's process is gone, however that ended.
    """

    pause = 1.0

    def __init__(self, folder: Path, infra: InfraConfig, *, jobs: int) -> None:
        """Prepares a sweep's trainings.

        Args:
            folder: The sweep's.
            infra: Where they run; with `threads: null` each gets its share of the cores.
            jobs: How many there are at a time.
        """
        self._folder = folder
        threads = infra.threads or max(1, (os.cpu_count() or 1) // jobs)
        self._infra = infra.model_copy(
            update={"output_dir": str(folder / layout.RUNS), "threads": threads}
        )
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._runs: dict[int, Run] = {}

    def make(self, trial: Trial, experiment: ExperimentConfig) -> str:
        """Makes the trial's run, anew if its making was interrupted.

        Raises:
            ValueError: It cannot be made.
        """
        check_model(experiment.actor_rollout_ref.model.path)
        shutil.rmtree(self._infra.runs_folder / trial.name, ignore_errors=True)
        run = Run.create(experiment, resolve_defaults(experiment, self._infra), name=trial.name)
        return str(run.path)

    def start(self, trial: Trial) -> None:
        """Begins the training, or goes on with it."""
        with self._log(trial).open("ab") as log:
            self._processes[trial.number] = subprocess.Popen(
                [*_COMMAND, trial.made],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # An interrupt of the terminal reaches the sweep, which tells its trainings.
                start_new_session=True,
            )

    def state(self, trial: Trial) -> tuple[TrialState, str]:
        """How the process stands; why it failed is what it said last."""
        code = self._processes[trial.number].poll()
        if code is None:
            return TrialState.RUNNING, ""
        self._processes.pop(trial.number)
        if code == 0:
            return TrialState.DONE, ""
        return TrialState.FAILED, self._reason(trial, code)

    def measured(self, trial: Trial) -> TrialMeasurement:
        """What its run has shown so far."""
        if trial.number not in self._runs:
            self._runs[trial.number] = Run.open(Path(trial.made))
        return measured(self._runs[trial.number])

    def end(self, trial: Trial) -> None:
        """Ends a training as SIGTERM does, and returns when it has ended."""
        process = self._processes.pop(trial.number)
        process.terminate()
        _await(process)

    def leave(self) -> None:
        """Ends all that are at work; the same command goes on with them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            _await(process)
        self._processes.clear()

    def _log(self, trial: Trial) -> Path:
        path = self._folder / LOGS / f"{trial.name}.log"
        path.parent.mkdir(exist_ok=True)
        return path

    def _reason(self, trial: Trial, code: int) -> str:
        lines = self._log(trial).read_text(errors="replace").split("\n")
        told = [line for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in told if line.startswith("error: ")]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = (errors or told or ["it said nothing"])[-1].strip()
        return f"{last} ({how}; {self._log(trial)})"


def _await(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
