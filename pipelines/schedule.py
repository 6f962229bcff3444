"""Divides a training's iterations into items of the pipeline's loop."""

import itertools
from typing import TypedDict

from vagen.config import ConfigError, ExperimentConfig, InfraConfig

LIMIT = 60
"""Maximum stretches of a pipeline run: Kubernetes stores the state of all tasks in one object."""


class IterationRange(TypedDict):
    """An item of the pipeline's loop.

    Example: `{"start": 4, "stop": 5}`.
    """

    start: int
    """First iteration, from 0."""
    stop: int
    """Iteration to stop before."""


def stretches(experiment: ExperimentConfig, infra: InfraConfig) -> list[IterationRange]:
    """The stretches of a training, in order.

    `infra.mode: staged` makes every iteration a stretch; `fused` joins
    `infra.iterations_per_task` of them, or all.
    """
    total = experiment.trainer.total_training_steps
    length = 1 if infra.mode == "staged" else infra.iterations_per_task or total
    cuts = [*range(0, total, length), total]
    return [IterationRange(start=start, stop=stop) for start, stop in itertools.pairwise(cuts)]


def check_length(found: list[IterationRange]) -> None:
    """Rejects trainings that are too long for a Kubernetes cluster.

    Raises:
        ConfigError: There are too many stretches; the message names the options.
    """
    if len(found) > LIMIT:
        raise ConfigError(
            f"the pipeline would have {len(found)} stretches, and Kubernetes holds about {LIMIT}: "
            f"set infra.mode=fused and infra.iterations_per_task={-(-found[-1]['stop'] // LIMIT)} "
            "or more"
        )
