"""A sweep's trials on Kubernetes: each a pipeline run of its own, as `vagen submit` sends one.

Each has its own Ray cluster, which Kueue admits within the quota of its queue. The pipelines go on
by themselves: the sweep's process sends the next one when one has ended, and reads what they have
found from the store.
"""

import os
from pathlib import Path

from pipelines.schedule import check_length, stretches
from pipelines.submit import Kubeflow, check_image, kubernetes_of, run_uri
from vagen.cluster.names import label_value
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.infra import SCRATCH
from vagen.run import layout
from vagen.run.run import Run
from vagen.run.uris import split_uri
from vagen.storage import open_store
from vagen.sweep.measure import TrialMeasurement, measured
from vagen.sweep.queue import TrialState
from vagen.sweep.study import Trial


class Pipelines:
    """Trainings as pipeline runs of Kubeflow."""

    pause = 15.0

    def __init__(
        self, folder: Path, sweep: str, infra: InfraConfig, kubeflow: Kubeflow, image: str | None
    ) -> None:
        """Prepares a sweep's trainings.

        Args:
            folder: The sweep's, on this machine; gets copies of what the runs committed.
            sweep: Name of the sweep: label `vagen.dev/sweep` of what the trials own.
            infra: Where they run.
            kubeflow: Takes the pipelines.
            image: Container image of the steps instead of the infra's.

        Raises:
            ConfigError: It describes no cluster, no store that pods reach, or no image.
        """
        run_uri(infra, sweep)
        check_image(infra, image)
        cluster = kubernetes_of(infra).model_copy(update={"sweep": label_value(sweep)})
        self._infra = infra.model_copy(update={"kubernetes": cluster})
        self._kubeflow, self._image = kubeflow, image
        os.environ.setdefault(SCRATCH, str(folder / layout.RUNS))

    def make(self, trial: Trial, experiment: ExperimentConfig) -> str:
        """Submits the trial's training; returns the id of the pipeline run.

        A training that was submitted before, but not noted, is gone on with by the new one.

        Raises:
            ConfigError: It cannot run there.
            SubmitError: Kubeflow did not take it.
        """
        uri = run_uri(self._infra, trial.name)
        return self._kubeflow.train(experiment, self._infra, uri, image=self._image).id

    def start(self, trial: Trial) -> None:
        """Nothing: what was submitted is at work, or waits for its quota."""

    def state(self, trial: Trial) -> tuple[TrialState, str]:
        """How the pipeline run stands."""
        state, why, url = self._kubeflow.state(trial.made)
        if state == "SUCCEEDED":
            return TrialState.DONE, ""
        if state in ("FAILED", "CANCELED", "SKIPPED"):
            return TrialState.FAILED, f"{why or f'the pipeline run is {state.lower()}'} ({url})"
        return TrialState.RUNNING, ""

    def measured(self, trial: Trial) -> TrialMeasurement:
        """What its run has shown so far; nothing before the pipeline has made it."""
        uri = run_uri(self._infra, trial.name)
        root, name = split_uri(uri)
        if open_store(root).read_file(f"{name}/{layout.EXPERIMENT.as_posix()}") is None:
            return TrialMeasurement({})
        run = Run.open(uri)
        assert run.mirror is not None
        run.mirror.pull()
        return measured(run)

    def end(self, trial: Trial) -> None:
        """Terminates the pipeline run, whose exit handler lets its Ray cluster go."""
        self._kubeflow.terminate(trial.made)

    def leave(self) -> None:
        """Nothing: the pipelines go on by themselves."""


def check_pipeline(experiment: ExperimentConfig, infra: InfraConfig) -> None:
    """Refuses an experiment whose pipeline is too long for Kubernetes.

    Raises:
        ConfigError: Names the options.
    """
    check_length(stretches(experiment, infra))
