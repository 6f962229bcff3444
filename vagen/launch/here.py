"""Runs stages of a run by name in this process."""

from typing import Any

from vagen.config.base import ConfigError
from vagen.run.folder import result
from vagen.run.run import Run
from vagen.stages.execute import execute, stage_named
from vagen.steps import STEPS

TRAIN = "train"
"""Pseudo stage: whole iterations from `start` to before `stop`."""
DURING_TRAINING = "measure"
"""Stage that may run during a training, since no other process writes its folder."""


def run_in_process(run: str, stage: str, **arguments: Any) -> dict[str, Any]:
    """Executes one stage of a run and then frees all resources.

    Args:
        run: The run: its folder, or its URI in a store.
        stage: One of `STEPS`, or `TRAIN`.
        arguments: Arguments of the stage.

    Returns:
        `uri`, `sha256`, `metrics`.

    Raises:
        ValueError: An error that the user can fix.
        StageFailed: The stage failed.
    """
    opened = Run.open(run)
    with opened.release_resources() if stage == DURING_TRAINING else opened.session():
        return perform(opened, stage, **arguments)


def perform(run: Run, stage: str, **arguments: Any) -> dict[str, Any]:
    """Executes one stage of a run that this process has opened; see `run_in_process`."""
    if stage == TRAIN:
        from vagen.train import iterate

        iterate(run, **arguments)
        return run.located(result(run.step(run.finished_iterations - 1, "update")))
    if stage not in STEPS:
        raise ConfigError(f"no stage is named {stage!r}: there are {', '.join(STEPS)}, {TRAIN}")
    return execute(run, stage_named(stage), **arguments)
