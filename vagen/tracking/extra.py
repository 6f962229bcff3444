"""Additional trackers: the same metrics in TensorBoard files or in Weights & Biases.

MLflow remains the record and the registry. An error of a tracker here does not stop a training. The
next process sends what is missing, by comparing committed metrics with sent ones.
"""

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vagen.storage import append_line, read_lines, storage_errors
from vagen.tracking.server import TrackingError

TENSORBOARD = "tensorboard"
"""Folder for event files in a run."""
WANDB_SENT = "wandb_logged.jsonl"
"""File of a run with the W&B run's id and the steps that were sent."""

_LOG = logging.getLogger("vagen.tracking")


class Sink(Protocol):
    """The interface of an additional tracker."""

    def config(self, tree: Mapping[str, Any]) -> None:
        """Records a run's configuration."""
        ...

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Adds a value to each series; called once per step and name."""
        ...

    def close(self, exit_code: int) -> None:
        """Ends this process's part; 0 is success."""
        ...


class ExtraTracker:
    """Sends each metric of each step to a sink once, over all processes; never raises."""

    def __init__(self, sink: Sink, sent: Path) -> None:
        """Continues after the steps in the file `sent`."""
        self._sink: Sink | None = sink
        self._file = sent
        self._sent = {(name, line["step"]) for line in read_lines(sent) for name in line["names"]}

    def log_config(self, tree: Mapping[str, Any]) -> None:
        """Sends the configuration once."""
        if ("config", -1) not in self._sent:
            self._send(lambda sink: sink.config(tree), ["config"], -1)

    def log_metrics(self, metrics: Mapping[str, float | None], step: int) -> None:
        """Sends the metrics of a step that were not sent before; skips None."""
        fresh = {
            name: float(value)
            for name, value in metrics.items()
            if value is not None and (name, step) not in self._sent
        }
        if fresh:
            self._send(lambda sink: sink.metrics(fresh, step), list(fresh), step)

    def finish(self, *, failed: bool) -> None:
        """Ends this process's part; a later process may continue."""
        self._send(lambda sink: sink.close(int(failed)))
        self._sink = None

    def _send(
        self, send: Callable[[Sink], None], names: Sequence[str] = (), step: int = -1
    ) -> None:
        """Calls the sink and stores what it got; an error ends this process's part."""
        if self._sink is None:
            return
        try:
            send(self._sink)
            self._sent |= {(name, step) for name in names}
            if names:
                append_line(self._file, json.dumps({"step": step, "names": names}))
        except Exception as error:  # must not end the training
            what = f"{type(error).__name__}: {error}"
            sink = type(self._sink).__name__
            _LOG.warning("%s gets no more records from this process: %s", sink, what)
            self._sink = None


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir outputs`."""

    def __init__(self, folder: Path) -> None:
        """Creates new files in the folder."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def config(self, tree: Mapping[str, Any]) -> None:
        """Writes the configuration as text."""
        indented = "\n".join(f"    {line}" for line in json.dumps(tree, indent=2).splitlines())
        self._writer.add_text("config", indented)
        self._writer.flush()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Writes a scalar per metric to the disk."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, exit_code: int) -> None:
        """Closes the file."""
        self._writer.close()


class Wandb:
    """A W&B run; key, server and mode (`offline`) come from W&B's environment and files."""

    def __init__(self, run_id: str, *, project: str, name: str, folder: Path) -> None:
        """Starts or resumes the run.

        Raises:
            TrackingError: W&B rejects it.
        """
        import wandb

        try:
            self._run = wandb.init(
                id=run_id,
                resume="allow",
                project=project,
                name=name,
                dir=str(folder),
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off", disable_git=True),
            )
        except (wandb.Error, OSError) as error:
            raise TrackingError(
                f"W&B cannot start a run: {error}; log in by `wandb login` or WANDB_API_KEY, or "
                "set WANDB_MODE=offline and send it later by `wandb sync`"
            ) from error
        # W&B's steps must increase, but an evaluation may be sent after a later iteration.
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")

    def config(self, tree: Mapping[str, Any]) -> None:
        """Sets the run's configuration."""
        self._run.config.update(dict(tree), allow_val_change=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Logs a row."""
        self._run.log({**values, "iteration": step})

    def close(self, exit_code: int) -> None:
        """Sends what remains."""
        self._run.finish(exit_code=exit_code)


def open_extra_tracker(name: str, *, run_dir: Path, run_name: str, project: str) -> ExtraTracker:
    """The tracker `tensorboard` or `wandb`, which continues from an earlier process.

    Raises:
        TrackingError: It is not installed, or rejects the run.
        StorageError: The run's folder cannot be written.
    """
    if find_spec(name) is None:  # may be another machine than the one that checked it
        raise TrackingError(
            f"infra.trackers names {name}, which is not installed: pip install 'vagen[{name}]'"
        )
    if name == TENSORBOARD:
        folder = run_dir / TENSORBOARD
        with storage_errors(run_dir):
            return ExtraTracker(TensorBoard(folder), folder / "logged.jsonl")
    sent = run_dir / WANDB_SENT
    if not read_lines(sent):
        append_line(sent, json.dumps({"id": uuid.uuid4().hex, "step": -1, "names": []}))
    run_id = read_lines(sent)[0]["id"]
    return ExtraTracker(Wandb(run_id, project=project, name=run_name, folder=run_dir), sent)
