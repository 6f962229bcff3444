"""How long a training is: as its experiment says, or longer since (`vagen.run.extension`)."""

import json
from pathlib import Path

from vagen.config import ExperimentConfig
from vagen.run import layout


def extensions(path: Path) -> list[dict[str, int]]:
    """The extensions of the run in a folder, oldest first.

    Returns:
        Each with the number of iterations before (`from`) and with it (`to`), and with how many
        were `done` when it was asked for.
    """
    file = path / layout.EXTENSIONS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def lengthened(began: ExperimentConfig, path: Path) -> ExperimentConfig:
    """The experiment that a run began with, at the length that it has now.

    A schedule that was to last the whole training ends where it would have ended.
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
