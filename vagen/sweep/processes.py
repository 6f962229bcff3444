"""Runs trials as processes on this machine, with one run each."""

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
"""Seconds that a training may take to close its run when it is stopped."""
_COMMAND = (sys.executable, "-m", "vagen.cli.trial")


class TrainingProcesses:
    """Trainings as processes on this machine.

    A process reads from a pipe; it closes its run and ends when the sweep's process is gone for any
    reason.
    """

    pause = 1.0

    def __init__(self, folder: Path, infra: InfraConfig, *, jobs: int) -> None:
        """Prepares the trainings of a sweep.

        Args:
            folder: The sweep's folder.
            infra: Infrastructure; with `threads: null` each gets an equal share of the cores.
            jobs: Number of concurrent trainings.
        """
        self._folder = folder
        threads = infra.threads or max(1, (os.cpu_count() or 1) // jobs)
        self._infra = infra.model_copy(
            update={"output_dir": str(folder / layout.RUNS), "threads": threads}
        )
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._runs: dict[int, Run] = {}

    def make(self, trial: Trial, experiment: ExperimentConfig) -> str:
        """Creates the trial's run, again if this was interrupted.

        Raises:
            ValueError: It cannot be created.
        """
        check_model(experiment.actor_rollout_ref.model.path)
        shutil.rmtree(self._infra.runs_folder / trial.name, ignore_errors=True)
        run = Run.create(experiment, resolve_defaults(experiment, self._infra), name=trial.name)
        return str(run.path)

    def start(self, trial: Trial) -> None:
        """Starts or resumes the training."""
        with self._log(trial).open("ab") as log:
            self._processes[trial.number] = subprocess.Popen(
                [*_COMMAND, trial.made],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # An interrupt of the terminal goes to the sweep only, which stops its trainings.
                start_new_session=True,
            )

    def state(self, trial: Trial) -> tuple[TrialState, str]:
        """State of the process; for a failure also its last message."""
        code = self._processes[trial.number].poll()
        if code is None:
            return TrialState.RUNNING, ""
        self._processes.pop(trial.number)
        if code == 0:
            return TrialState.DONE, ""
        return TrialState.FAILED, self._reason(trial, code)

    def measured(self, trial: Trial) -> TrialMeasurement:
        """Results of its run so far."""
        if trial.number not in self._runs:
            self._runs[trial.number] = Run.open(Path(trial.made))
        return measured(self._runs[trial.number])

    def end(self, trial: Trial) -> None:
        """Ends a training by SIGTERM and waits for it."""
        process = self._processes.pop(trial.number)
        process.terminate()
        _await(process)

    def leave(self) -> None:
        """Ends all running trainings; the same command resumes them."""
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
        messages = [line for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in messages if line.startswith("error: ")]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = (errors or messages or ["it said nothing"])[-1].strip()
        return f"{last} ({how}; {self._log(trial)})"


def _await(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
