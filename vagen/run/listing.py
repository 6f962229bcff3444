"""The runs in a folder, and how each stands, as far as its own files tell."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from vagen.config.base import ConfigError
from vagen.config.yaml_io import read_yaml
from vagen.metrics import SUCCESS
from vagen.progress import read_events
from vagen.run import layout
from vagen.run.length import extensions
from vagen.run.reading import committed
from vagen.run.run import Run
from vagen.run.spent import working_seconds
from vagen.storage import StorageError
from vagen.storage.writer import is_held

RunState = Literal["training", "finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run stands."""

    name: str
    path: str
    state: RunState
    """`training`: a process is at work; `interrupted`: none is, and `vagen resume` goes on."""
    iteration: int
    """Iterations that are done."""
    iterations: int
    """Iterations that it is to have."""
    start: float | None
    """Success on the held-out levels before the first iteration."""
    newest: float | None
    """The newest success that is known."""
    newest_of: str
    """Where: `final`, `iteration-0010` (a validation), or `train` (the last rollout)."""
    seconds: float
    """At work, all its processes together."""
    experiment: str
    preset: str | None
    seed: int
    began: str
    """UTC, ISO 8601."""
    message: str
    """Why it failed; empty unless it did."""


def list_runs(folder: Path) -> list[RunStatus]:
    """The runs in a folder, the newest first; what is no run, or cannot be read, is left out.

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
    """How the run in a folder stands.

    Raises:
        ConfigError: Its experiment cannot be read.
        StorageError: A manifest of it cannot be read.
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
    newest, newest_of = _newest(path, done)
    return RunStatus(
        name=path.name,
        path=str(path),
        state=state,
        iteration=done,
        iterations=longer[-1]["to"] if longer else experiment["trainer"]["total_training_steps"],
        start=_success(path, layout.WARM_START),
        newest=newest,
        newest_of=newest_of,
        seconds=round(working_seconds(events), 1),
        experiment=experiment["name"],
        preset=experiment.get("preset"),
        seed=experiment["seed"],
        began=datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        message=message,
    )


def _state(path: Path, events: list[dict[str, Any]], *, extended: bool) -> tuple[RunState, str]:
    if is_held(path):
        return "training", ""
    if _is_finished(path, extended=extended):
        return "finished", ""
    for event in reversed(events):
        if event["event"] == "process_started":  # it was killed: it said no more
            break
        if event["event"] == "run_ended" and event["status"] == "FAILED":
            return "failed", event["message"]
    return "interrupted", ""


def _is_finished(path: Path, *, extended: bool) -> bool:
    """Whether it is registered; of a run that was made longer, at the length that it has now."""
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
