"""What is happening, on the terminal and in `events.jsonl`.

One process at a time reports a run: it calls `configure` once, and from then on `step`, `bar` and
`note` from anywhere. On a terminal a live display shows the iteration, the step, its bar, the
latest success and the time left; elsewhere (a log of a CI job, a file) each finished step is one
line. Reporting never breaks the work: a terminal that went away is ignored.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vagen.stages.terminal import Advance, Display, LineDisplay, StepRecord, Terminal
from vagen.storage import StorageError, storage_errors

EVENTS = "events.jsonl"
"""File of a run's folder: one JSON object per line, `{"time", "event", ...}`, time in Unix s."""


class Reporter:
    """Events and display of one run; the module's functions use the current one."""

    def __init__(self, run_dir: Path | None, display: Display) -> None:
        self._events = run_dir / EVENTS if run_dir else None
        self.display = display
        if self._events is not None and _is_cut(self._events):
            with self._events.open("a") as file:
                file.write("\n")

    def event(self, event: str, **fields: Any) -> None:
        """Appends one event; a single write, so that lines of several processes do not mix."""
        if self._events is not None:
            append_event(self._events, event, **fields)


def append_event(path: Path, event: str, **fields: Any) -> None:
    """Appends `{"time", "event", **fields}` to an events file as one line.

    Raises:
        StorageError: The folder cannot be written.
    """
    line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, default=str)
    with storage_errors(path.parent):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)


def read_events(run_dir: Path | str) -> list[dict[str, Any]]:
    """All events of a run, oldest first; a last line cut by a crash is left out."""
    path = Path(run_dir) / EVENTS
    if not path.exists():
        return []
    events = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events


def _is_cut(path: Path) -> bool:
    """Whether the last line was not written to its end (a crash, a full disk)."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


_current: Reporter | None = None


def configure(run_dir: Path | str | None = None, *, terminal: int = 2) -> Reporter:
    """Starts reporting for a run; an earlier reporter is closed.

    Args:
        run_dir: Folder that receives `events.jsonl`; None writes no events.
        terminal: File descriptor of the display; duplicated, never closed.
    """
    global _current
    close()
    stream = Terminal(os.dup(terminal))
    display: Display
    if stream.isatty():
        from vagen.stages.terminal_live import LiveDisplay

        display = LiveDisplay(stream)
    else:
        display = LineDisplay(stream)
    _current = Reporter(Path(run_dir) if run_dir else None, display)
    return _current


def describe(title: str, iterations: int, done: int = 0) -> None:
    """Says what is being trained, for how many iterations, and how many are done already."""
    current().display.describe(title, iterations, done)


def current() -> Reporter:
    """The reporter in use; without `configure`, one that draws on standard error."""
    return _current or configure()


def close() -> None:
    """Ends the display and restores the terminal."""
    global _current
    if _current is not None:
        _current.display.close()
        _current = None


@contextmanager
def step(name: str, iteration: int | None = None, label: str = "") -> Iterator[StepRecord]:
    """Reports one step: `stage_started`, then `stage_finished` or `stage_failed`.

    Args:
        name: The stage.
        iteration: Its iteration from 0; None outside the iterations.
        label: Tells stages of one name apart (`warm_start`, `final` for evaluations).
    """
    reporter = current()
    record = StepRecord(name, iteration, time.monotonic(), label)
    about = {"stage": name, "iteration": iteration, **({"label": label} if label else {})}
    reporter.event("stage_started", **about)
    reporter.display.begin(record)
    try:
        yield record
    except BaseException as error:
        seconds = time.monotonic() - record.started
        message = str(error) or type(error).__name__
        reporter.display.finish(record, seconds, message)
        with suppress(StorageError):  # a full disk must not hide what went wrong
            reporter.event("stage_failed", **about, seconds=round(seconds, 3), message=message)
        raise
    seconds = time.monotonic() - record.started
    reporter.display.finish(record, seconds, None)
    reporter.event("stage_finished", **about, seconds=round(seconds, 3), metrics=record.metrics)


@contextmanager
def bar(description: str, total: int) -> Iterator[Advance]:
    """Draws a bar inside the current step.

    Example: `with bar("episodes", 128) as advance: advance(8, success=0.4)`.
    """
    display = current().display
    advance = display.open_bar(description, total)
    try:
        yield advance
    finally:
        display.close_bar()


def note(text: str) -> None:
    """Prints one line above the display and records it as a `note` event."""
    reporter = current()
    reporter.event("note", text=text)
    reporter.display.note(text)


def event(name: str, **fields: Any) -> None:
    """Records an event without showing it."""
    current().event(name, **fields)
