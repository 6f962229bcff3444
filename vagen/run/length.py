"""Length of a training, including extensions (`vagen.run.extension`)."""

import json
from pathlib import Path

from vagen.config import ExperimentConfig
from vagen.run import layout


def extensions(path: Path) -> list[dict[str, int]]:
    """Extensions of a run, oldest first.

    Returns:
        Dictionaries with the number of iterations before (`from`) and after (`to`), and of those
            that were `done` at the time.
    """
    file = path / layout.EXTENSIONS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def lengthened(began: ExperimentConfig, path: Path) -> ExperimentConfig:
    """The run's initial experiment with its current length.

    A schedule over the whole training keeps its original end.
    """
    found = extensions(path)
    if not found:
        return began
    trainer, schedule = began.trainer, began.judge.schedule
    if schedule.type != "constant":
        schedule = schedule.model_copy(
            update={"iterations": schedule.iterations or trainer.total_training_steps}
        )
    return began.model_copy(
        update={
            "trainer": trainer.model_copy(update={"total_training_steps": found[-1]["to"]}),
            "judge": began.judge.model_copy(update={"schedule": schedule}),
        }
    )
