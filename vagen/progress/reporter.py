"""Reports progress on the terminal and in `events.jsonl`.

One process at a time reports a run: it works inside `reporting`, and calls `step`, `bar` and `note`
from anywhere. On a terminal a live display shows the iteration, the step, its bar, the latest
success and the remaining time; elsewhere (a CI log, a file) each finished step is one line. Errors
of a closed terminal are ignored.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vagen.config.base import redact
from vagen.progress.display import Advance, Display, LineDisplay, StepRecord, Terminal
from vagen.progress.live import LiveDisplay
from vagen.progress.picture import Picture
from vagen.storage import StorageError, append_line, read_lines, storage_errors

Observer = Callable[[str, dict[str, Any]], None]
"""Called with the name and the fields of an event."""


class Reporter:
    """Events and display of one run; functions of this module use the current one."""

    def __init__(self, events: Path | None, display: Display) -> None:
        self._events = events
        self.display = display
        self.observer: Observer | None = None
        self.record: StepRecord | None = None
        """The latest step."""
        if self._events is not None and _is_cut(self._events):
            with self._events.open("a") as file:
                file.write("\n")

    def event(self, event: str, **fields: Any) -> None:
        """Appends one event, and tells the observer."""
        if self.observer is not None:
            self.observer(event, fields)
        if self._events is not None:
            append_event(self._events, event, **fields)


def append_event(path: Path, event: str, **fields: Any) -> None:
    """Appends `{"time", "event", **fields}` to an events file as one line, without passwords.

    Raises:
        StorageError: The folder cannot be written.
    """
    line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, default=str)
    with storage_errors(path.parent):
        append_line(path, redact(line))


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a file, oldest first, without a last line truncated by a crash."""
    return read_lines(path)


def _is_cut(path: Path) -> bool:
    """Whether the last line is incomplete, after a crash or on a full disk."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


_current: Reporter | None = None
_terminal = 2
"""Descriptor of the display."""


def configure(events: Path | None = None, *, terminal: int | None = None) -> Reporter:
    """Starts reporting; an earlier reporter is closed.

    Args:
        events: File that receives one JSON object per line, `{"time", "event", ...}` with the time
            in Unix s; None writes no events.
        terminal: File descriptor of the display; duplicated, never closed. None for standard
            error, also inside `output_to`.
    """
    global _current
    close()
    stream = Terminal(os.dup(_terminal if terminal is None else terminal))
    display = LiveDisplay(stream) if stream.isatty() else LineDisplay(stream)
    _current = Reporter(events, display)
    return _current


@contextmanager
def reporting(events: Path) -> Iterator[None]:
    """Reports progress inside the block; the first event is `process_started`."""
    reporter = configure(events)
    reporter.event("process_started", pid=os.getpid())
    try:
        yield
    finally:
        close()


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Redirects output of this process and its libraries to a file, except for the display.

    Raises:
        StorageError: The file cannot be written.
    """
    with storage_errors(log.parent):
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    global _terminal
    kept = os.dup(1), os.dup(2)
    _terminal = kept[1]
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        _terminal = 2
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, file):
            os.close(descriptor)


def describe(title: str, iterations: int, done: int = 0) -> None:
    """Sets the title, the number of iterations, and how many are done."""
    current().display.describe(title, iterations, done)


def current() -> Reporter:
    """The current reporter; by default one that displays on standard error."""
    return _current or configure()


def observe(observer: Observer) -> None:
    """Calls `observer` with every event until the reporter is closed."""
    current().observer = observer


def close() -> None:
    """Ends the display and restores the terminal."""
    global _current
    if _current is not None:
        _current.display.close()
        _current = None


def silence() -> None:
    """Ends the display; later events are recorded but not shown."""
    reporter = current()
    reporter.display.close()
    reporter.display = LineDisplay(Terminal(os.open(os.devnull, os.O_WRONLY)))


@contextmanager
def step(name: str, iteration: int | None = None, label: str = "") -> Iterator[StepRecord]:
    """Reports one step: `stage_started`, then `stage_finished` or `stage_failed`.

    Args:
        name: The stage.
        iteration: Its iteration from 0; None outside the iterations.
        label: Distinguishes stages of one name (`warm_start`, `final` for evaluations).
    """
    reporter = current()
    record = StepRecord(name, iteration, time.monotonic(), label)
    about = {"stage": name, "iteration": iteration, **({"label": label} if label else {})}
    reporter.event("stage_started", **about)
    reporter.display.begin(record)
    reporter.record = record
    try:
        yield record
    except BaseException as error:
        seconds = time.monotonic() - record.started
        message = str(error) or type(error).__name__
        if isinstance(error, Exception):  # an interrupt is not a failure of the step
            reporter.display.finish(record, seconds, message)
        with suppress(StorageError):  # a full disk must not hide the error
            reporter.event("stage_failed", **about, seconds=round(seconds, 3), message=message)
        raise
    seconds = time.monotonic() - record.started
    reporter.display.finish(record, seconds, None)
    extra = {"metrics": record.metrics}
    if record.performance:
        extra["performance"] = record.performance
    reporter.event("stage_finished", **about, seconds=round(seconds, 3), **extra)


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


def measured(performance: dict[str, float]) -> None:
    """Adds performance metrics to the current step."""
    if (record := current().record) is not None:
        record.performance |= performance


def note(text: str, picture: Picture | None = None) -> None:
    """Prints one line, on a terminal below a picture, and records it as a `note` event."""
    reporter = current()
    reporter.event("note", text=text)
    reporter.display.note(text, picture)


def event(name: str, **fields: Any) -> None:
    """Records an event without showing it."""
    current().event(name, **fields)
