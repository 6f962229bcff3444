"""What is checked before a run computes: what could not be recorded or judged fails at once."""

import asyncio

from vagen import progress
from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.config.hints import stalling
from vagen.judge.base import JudgeUnavailable
from vagen.judge.calibration.run import shortcomings
from vagen.judge.llm.probe import probe
from vagen.models.files import check_model, check_obtainable
from vagen.run.run import Run
from vagen.stages.tracking import tracker_of
from vagen.stages.weights import device_of
from vagen.tracking import open_client

_PROBE_SECONDS = 60.0


def check_machine(experiment: ExperimentConfig, infra: InfraConfig) -> None:
    """Looks at what a run needs of this machine, before anything is made.

    Raises:
        ConfigError: The device is not there.
        ModelError: The model cannot be had.
        TrackingError: MLflow's server does not answer.
    """
    device_of(infra)
    check_model(experiment.actor_rollout_ref.model.path)
    check_obtainable(experiment.actor_rollout_ref.model.path)
    if infra.mlflow_tracking_uri is not None:
        open_client(infra.mlflow_tracking_uri)


def check_start(run: Run) -> None:
    """Opens MLflow, looks at the judge's calibration and at what the rewards pay for.

    Raises:
        TrackingError: MLflow cannot be reached.
        ConfigError: The judge is not as good as its calibration has to be, or stalling pays.
    """
    tracker_of(run).ready()
    _check_calibration(run)
    found = list(stalling(run.experiment))
    if found and run.experiment.rollout_manager.on_stalling == "refuse":
        raise ConfigError(f"{'; '.join(found)} (rollout_manager.on_stalling=warn goes on)")
    for text in found:
        progress.note(text)


def check_endpoints(run: Run) -> None:
    """Asks the judge's language models something, from where they will be asked.

    Raises:
        JudgeUnavailable, EndpointError: One does not answer.
    """
    for key, llm in run.experiment.judge.endpoints().items():
        found = asyncio.run(probe(llm, key, seconds=_PROBE_SECONDS))
        if found.problem:
            raise JudgeUnavailable(
                f"`{key}.base_url`: {llm.model} {llm.where} did not answer "
                f"({found.problem}); start it, or see that it can be reached from here"
            )


def _check_calibration(run: Run) -> None:
    found = shortcomings(run.experiment)
    if found and run.experiment.judge.calibration.on_failure == "refuse":
        raise ConfigError(
            f"the judge is not good enough to start: {'; '.join(found)}. Calibrate it anew with "
            "`vagen judge calibrate`, or set judge.calibration.on_failure=warn"
        )
    for text in found:
        progress.note(f"calibration of the judge: {text}")
