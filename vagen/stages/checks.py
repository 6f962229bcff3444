"""Checks before a run, so that problems with tracking or judges fail at once."""

import asyncio

from vagen import progress
from vagen.config import ConfigError, ExperimentConfig, InfraConfig
from vagen.engines.make import device_of
from vagen.experiment.hints import stalling
from vagen.judge.base import JudgeUnavailable
from vagen.judge.calibration.run import shortcomings
from vagen.judge.llm.llm_judge import probe
from vagen.models.files import check_model, check_obtainable
from vagen.run.run import Run
from vagen.stages.tracking import tracker_of
from vagen.tracking import open_client

_PROBE_SECONDS = 60.0


def check_machine(experiment: ExperimentConfig, infra: InfraConfig) -> None:
    """Checks what a run needs on this machine, before anything is created.

    Raises:
        ConfigError: The device does not exist.
        ModelError: The model is not available.
        TrackingError: MLflow's server does not respond.
    """
    device_of(infra)
    check_model(experiment.actor_rollout_ref.model.path)
    check_obtainable(experiment.actor_rollout_ref.model.path)
    if infra.mlflow_tracking_uri is not None:
        open_client(infra.mlflow_tracking_uri)


def check_start(run: Run) -> None:
    """Opens MLflow, and checks the judge's calibration and the rewards.

    Raises:
        TrackingError: MLflow cannot be reached.
        ConfigError: The judge's calibration is insufficient, or rewards favour stalling.
    """
    tracker_of(run).ready()
    found = shortcomings(run.experiment)
    if found and run.experiment.judge.calibration.on_failure == "refuse":
        raise ConfigError(
            f"the judge is not good enough to start: {'; '.join(found)}. Calibrate it again with "
            "`vagen judge calibrate`, or set judge.calibration.on_failure=warn"
        )
    for text in found:
        progress.note(f"calibration of the judge: {text}")
    found = list(stalling(run.experiment))
    if found and run.experiment.rollout_manager.on_stalling == "refuse":
        raise ConfigError(f"{'; '.join(found)} (rollout_manager.on_stalling=warn goes on)")
    for text in found:
        progress.note(text)


def check_endpoints(run: Run) -> None:
    """Sends the judge's language models a test request from the process that will use them.

    Raises:
        JudgeUnavailable, EndpointError: A model does not answer.
    """
    for key, llm in run.experiment.judge.endpoints().items():
        found = asyncio.run(probe(llm, key, seconds=_PROBE_SECONDS))
        if found.problem:
            raise JudgeUnavailable(
                f"`{key}.base_url`: {llm.model} {llm.where} did not answer "
                f"({found.problem}); start it, or see that it can be reached from here"
            )
