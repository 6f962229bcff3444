"""A sweep's trials on Kubernetes, each as a pipeline run like that of `vagen submit`.

Each has its own Ray cluster, which Kueue admits within the quota of its queue. The pipelines run
independently: the sweep's process submits the next one when one has ended, and reads results from
the store.
"""

import os
from pathlib import Path

from pipelines.schedule import check_length, stretches
from pipelines.submit import Kubeflow, check_image, kubernetes_of, run_uri
from vagen.cluster.names import label_value
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.infra import SCRATCH
from vagen.run import layout
from vagen.run.layout import split_uri
from vagen.run.run import Run
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
        """Prepares the trainings of a sweep.

        Args:
            folder: The sweep's local folder, for copies of the runs' commits.
            sweep: Name of the sweep: label `vagen.dev/sweep` of the trials' objects.
            infra: Infrastructure of the trials.
            kubeflow: Client for the pipelines.
            image: Container image of the steps; None for the infra's.

        Raises:
            ConfigError: The infra has no cluster, no store that pods can reach, or no image.
        """
        run_uri(infra, sweep)
        check_image(infra, image)
        cluster = kubernetes_of(infra).model_copy(update={"sweep": label_value(sweep)})
        self._infra = infra.model_copy(update={"kubernetes": cluster})
        self._kubeflow, self._image = kubeflow, image
        os.environ.setdefault(SCRATCH, str(folder / layout.RUNS))

    def make(self, trial: Trial, experiment: ExperimentConfig) -> str:
        """Submits the trial's training; returns the id of the pipeline run.

        A new run continues a training that was submitted but not recorded.

        Raises:
            ConfigError: It cannot run on the cluster.
            SubmitError: Kubeflow did not accept it.
        """
        uri = run_uri(self._infra, trial.name)
        return self._kubeflow.train(experiment, self._infra, uri, image=self._image).id

    def start(self, trial: Trial) -> None:
        """Does nothing: submitted pipelines run, or wait for their quota."""

    def state(self, trial: Trial) -> tuple[TrialState, str]:
        """Status of the pipeline run."""
        state, why, url = self._kubeflow.state(trial.made)
        if state == "SUCCEEDED":
            return TrialState.DONE, ""
        if state in ("FAILED", "CANCELED", "SKIPPED"):
            return TrialState.FAILED, f"{why or f'the pipeline run is {state.lower()}'} ({url})"
        return TrialState.RUNNING, ""

    def measured(self, trial: Trial) -> TrialMeasurement:
        """Results of its run so far; empty before the pipeline has created it."""
        uri = run_uri(self._infra, trial.name)
        root, name = split_uri(uri)
        if open_store(root).read_file(f"{name}/{layout.EXPERIMENT.as_posix()}") is None:
            return TrialMeasurement({})
        run = Run.open(uri)
        assert run.mirror is not None
        run.mirror.pull()
        return measured(run)

    def end(self, trial: Trial) -> None:
        """Terminates the pipeline run; the lease of its Ray cluster then expires."""
        self._kubeflow.terminate(trial.made)

    def leave(self) -> None:
        """Does nothing: the pipelines continue."""


def check_pipeline(experiment: ExperimentConfig, infra: InfraConfig) -> None:
    """Rejects an experiment whose pipeline is too long for Kubernetes.

    Raises:
        ConfigError: It is too long; the message names the options.
    """
    check_length(stretches(experiment, infra))
