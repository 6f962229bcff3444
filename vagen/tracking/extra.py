"""Trackers beside MLflow: the same series in TensorBoard's files or in Weights & Biases.

MLflow stays the record and the registry. What a tracker here cannot take does not stop a training:
it is told in the next process, which compares what is committed with what was told.
"""

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vagen.storage import storage_errors
from vagen.tracking.server import TrackingError

TENSORBOARD = "tensorboard"
"""Folder of a run with event files."""
WANDB_TOLD = "wandb_logged.jsonl"
"""File of a run: the W&B run's id, and the steps that it has been told."""

_LOG = logging.getLogger("vagen.tracking")


class Sink(Protocol):
    """What a tracker has to be able to do."""

    def config(self, tree: Mapping[str, Any]) -> None:
        """Shows a run's configuration."""
        ...

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Adds a value to each series; of a step and a name it is called once."""
        ...

    def close(self, exit_code: int) -> None:
        """Ends the process's part; 0 is success."""
        ...


class ExtraTracker:
    """A sink that is told each step of each metric once, in whatever process, and never fails."""

    def __init__(self, sink: Sink, told: Path) -> None:
        """Goes on after what the file `told` says."""
        self._sink: Sink | None = sink
        self._told = told
        self._steps = {(name, line["step"]) for line in _lines(told) for name in line["names"]}

    def log_config(self, tree: Mapping[str, Any]) -> None:
        """Shows the configuration, once."""
        self._tell(["config"], -1, lambda sink: sink.config(tree))

    def log_metrics(self, metrics: Mapping[str, float | None], step: int) -> None:
        """Adds what was not told of this step; None is absent."""
        fresh = {
            name: float(value)
            for name, value in metrics.items()
            if value is not None and (name, step) not in self._steps
        }
        if fresh:
            self._tell(list(fresh), step, lambda sink: sink.metrics(fresh, step))

    def finish(self, *, failed: bool) -> None:
        """Ends this process's part; a later process may go on."""
        if self._sink is not None:
            self._attempt(lambda sink: sink.close(int(failed)))
            self._sink = None

    def _tell(self, names: Sequence[str], step: int, tell: Callable[[Sink], None]) -> None:
        names = [name for name in names if (name, step) not in self._steps]
        if not names or not self._attempt(tell):
            return
        self._steps |= {(name, step) for name in names}
        self._attempt(lambda _: _append(self._told, {"step": step, "names": names}))

    def _attempt(self, tell: Callable[[Sink], None]) -> bool:
        if self._sink is None:
            return False
        try:
            tell(self._sink)
        except Exception as error:  # of a library, a disk or a network: never a training's end
            what = f"{type(error).__name__}: {error}"
            _LOG.warning("%s is told no more by this process: %s", type(self._sink).__name__, what)
            self._sink = None
            return False
        return True


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir outputs`."""

    def __init__(self, folder: Path) -> None:
        """Writes files of its own to the folder."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def config(self, tree: Mapping[str, Any]) -> None:
        """A text."""
        indented = "\n".join(f"    {line}" for line in json.dumps(tree, indent=2).splitlines())
        self._writer.add_text("config", indented)
        self._writer.flush()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """A scalar each, on the disk when this returns."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, exit_code: int) -> None:
        """Closes the file."""
        self._writer.close()


class Wandb:
    """A W&B run: key, server and mode (`offline`) come from W&B's own variables and files."""

    def __init__(self, run_id: str, *, project: str, name: str, folder: Path) -> None:
        """Begins the run, or goes on with it.

        Raises:
            TrackingError: W&B refuses.
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
        # Steps of W&B's own only grow; an evaluation may be told after a later iteration.
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")

    def config(self, tree: Mapping[str, Any]) -> None:
        """The run's configuration."""
        self._run.config.update(dict(tree), allow_val_change=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """A row."""
        self._run.log({**values, "iteration": step})

    def close(self, exit_code: int) -> None:
        """Sends what is left."""
        self._run.finish(exit_code=exit_code)


def open_beside(name: str, *, run_dir: Path, run_name: str, project: str) -> ExtraTracker:
    """The tracker of a name, going on where an earlier process left it.

    Args:
        name: `tensorboard` or `wandb`.
        run_dir: The run's folder.
        run_name: What W&B calls the run.
        project: W&B's project.

    Raises:
        TrackingError: It is not installed, or refuses.
        StorageError: The run's folder cannot be written.
    """
    if find_spec(name) is None:  # here, on another machine than the one that checked it
        raise TrackingError(
            f"infra.trackers names {name}, which is not installed: pip install 'vagen[{name}]'"
        )
    if name == TENSORBOARD:
        folder = run_dir / TENSORBOARD
        with storage_errors(run_dir):
            return ExtraTracker(TensorBoard(folder), folder / "logged.jsonl")
    told = run_dir / WANDB_TOLD
    lines: list[dict[str, Any]] = _lines(told)
    if not lines:
        lines = [{"id": uuid.uuid4().hex, "step": -1, "names": []}]
        _append(told, lines[0])
    return ExtraTracker(Wandb(lines[0]["id"], project=project, name=run_name, folder=run_dir), told)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one cut short by a kill is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
