"""Lists the runs in a folder and their status, from their files alone."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from vagen import steps
from vagen.config.base import ConfigError
from vagen.config.yaml_io import read_yaml
from vagen.metrics import SUCCESS
from vagen.progress import read_events
from vagen.run import layout
from vagen.run.folder import committed, extensions
from vagen.run.run import Run
from vagen.run.spent import working_seconds
from vagen.storage import StorageError
from vagen.storage.writer import is_held

RunPhase = Literal["training", "finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run."""

    name: str
    path: str
    state: RunPhase
    """`training`: a process is working; `interrupted`: none is, and `vagen resume` continues."""
    iteration: int
    """Number of finished iterations."""
    iterations: int
    """Planned number of iterations."""
    start: float | None
    """Success on the held-out levels before the first iteration."""
    newest: float | None
    """The latest known success."""
    newest_of: str
    """Source of `newest`: `final`, `iteration-0010` (a validation), or `train` (last rollout)."""
    seconds: float
    """Working time of all its processes."""
    experiment: str
    preset: str | None
    seed: int
    began: str
    """UTC, ISO 8601."""
    message: str
    """Error message of a failed run; otherwise empty."""


def list_runs(folder: Path) -> list[RunStatus]:
    """The runs in a folder, newest first; skips everything else and unreadable runs.

    >>> list_runs(Path("outputs"))[0].state
    'training'
    """
    found = []
    for path in folder.iterdir():
        if not path.is_symlink() and (path / layout.EXPERIMENT).is_file():
            with suppress(ConfigError, StorageError):
                found.append(status_of(path))
    return sorted(found, key=lambda status: (status.began, status.name), reverse=True)


def status_of(path: Path) -> RunStatus:
    """Status of the run in a folder.

    Raises:
        ConfigError: Its experiment cannot be read.
        StorageError: One of its manifests cannot be read.
    """
    experiment = read_yaml(path / layout.EXPERIMENT).tree
    events = read_events(path / layout.EVENTS)
    began = events[0]["time"] if events else (path / layout.EXPERIMENT).stat().st_mtime
    updates = [path / layout.iteration(0) / "update"]
    while committed(updates[-1]):
        updates.append(path / layout.iteration(len(updates)) / "update")
    done = len(updates) - 1
    longer = extensions(path)
    state, message = _state(path, events, extended=bool(longer))
    running = time.time() - events[-1]["time"] if state == "training" and events else 0.0
    newest, newest_of = _newest(path, done)
    return RunStatus(
        name=path.name,
        path=str(path),
        state=state,
        iteration=done,
        iterations=longer[-1]["to"] if longer else experiment["trainer"]["total_training_steps"],
        start=_success(path, steps.WARM_START),
        newest=newest,
        newest_of=newest_of,
        seconds=round(working_seconds(events) + running, 1),
        experiment=experiment["name"],
        preset=experiment.get("preset"),
        seed=experiment["seed"],
        began=datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        message=message,
    )


def _state(path: Path, events: list[dict[str, Any]], *, extended: bool) -> tuple[RunPhase, str]:
    if is_held(path):
        return "training", ""
    if _is_finished(path, extended=extended):
        return "finished", ""
    for event in reversed(events):
        if event["event"] == "process_started":  # it was killed without a further event
            break
        if event["event"] == "run_ended" and event["status"] == "FAILED":
            return "failed", event["message"]
    return "interrupted", ""


def _is_finished(path: Path, *, extended: bool) -> bool:
    """Whether it is registered with its current length."""
    if not extended:
        return committed(path / layout.REGISTRATION) is not None
    run = Run.open(path)
    return run.is_current(run.registration)


def _newest(path: Path, done: int) -> tuple[float | None, str]:
    for name in (layout.FINAL, *map(layout.validation, range(done, 0, -1))):
        if (success := _success(path, name)) is not None:
            return success, name
    if not done:
        return None, ""
    manifest = committed(path / layout.iteration(done - 1) / "update")
    return (manifest.payload["history"].get(SUCCESS) if manifest else None), "train"


def _success(path: Path, name: str) -> float | None:
    """Success of an evaluation; None if it is not committed."""
    manifest = committed(path / layout.EVALUATIONS / name)
    metrics = manifest.payload.get("metrics", {}) if manifest else {}
    return next(
        (value for key, value in metrics.items() if key in ("test/success", "val/success")), None
    )
