"""Extends a training, even while it runs.

The original experiment stays in `config/experiment.yaml`, and its digest identifies the run. Each
extension is a line of `config/extensions.jsonl`, read by a running process before every iteration.
"""

import json

from vagen.config import ConfigError
from vagen.run import layout
from vagen.run.run import Run
from vagen.storage import storage_errors

OPTION = "trainer.total_training_steps"


def extend(run: Run, steps: int) -> None:
    """Extends a training, even a finished or running one, to `steps` iterations.

    Raises:
        ConfigError: It already has as many, or cannot be extended.
        StorageError: The folder cannot be written.
    """
    now, stop = run.read_length(), run.stop
    if steps <= now:
        raise ConfigError(f"{OPTION} is {now} already: it can only be made larger, not {steps}")
    if stop is not None:
        raise ConfigError(
            f"the training ended after iteration {stop.iteration + 1}: {stop.reason}; begin "
            "another run with other `trainer.early_stop`"
        )
    if run.experiment.rollout_manager.over_sampling_batch_size is not None:
        raise ConfigError(
            f"{OPTION} decides which levels `rollout_manager.over_sampling_batch_size` begins "
            "early: begin another run with it"
        )
    line = json.dumps({"from": now, "to": steps, "done": run.finished_iterations})
    with storage_errors(run.path), (run.path / layout.EXTENSIONS).open("a") as file:
        file.write(f"{line}\n")
    run.read_length()
