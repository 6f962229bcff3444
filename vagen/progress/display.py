"""The interface of a progress display, and the plain display: a line per finished step."""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from vagen.metrics import all_metrics, find
from vagen.progress.picture import Picture

Advance = Callable[..., None]
"""`advance(n=1, **fields)`: n more units are done; shows fields such as `success=0.4`."""

_SHORT_NAMES = tuple(metric.short for metric in all_metrics() if metric.short)
_SHOWN_OTHERWISE = 3
"""Metrics to show for steps without short names."""
_SECONDS_BETWEEN_LINES = 60.0
"""Seconds between lines of a long step in a log."""
_ESTIMATE_WINDOW = 5
"""Number of iterations whose mean duration predicts the rest."""


@dataclass
class StepRecord:
    """A running step; its `metrics` appear on the terminal and in the event `stage_finished`."""

    name: str
    iteration: int | None
    started: float
    """Start on the monotonic clock, in seconds."""
    label: str = ""
    """Distinguishes steps of one kind, e.g. `final` for an evaluation."""
    metrics: dict[str, Any] = field(default_factory=dict)
    performance: dict[str, float] = field(default_factory=dict)
    """Speed of its networks and its judge; not stored in a folder, as it differs between runs."""


class Display(Protocol):
    """The interface of progress displays."""

    def describe(self, title: str, iterations: int, done: int) -> None:
        """Sets the title, the number of iterations, and how many are done."""
        ...

    def begin(self, step: StepRecord) -> None:
        """A step has started."""
        ...

    def finish(self, step: StepRecord, seconds: float, error: str | None) -> None:
        """A step has ended, with a message if it failed."""
        ...

    def open_bar(self, description: str, total: int) -> Advance:
        """Opens a bar of `total` units inside the current step."""
        ...

    def close_bar(self) -> None:
        """Closes the bar."""
        ...

    def note(self, text: str, picture: Picture | None = None) -> None:
        """Prints a line, on a terminal below a picture."""
        ...

    def close(self) -> None:
        """Ends the display and restores the terminal."""
        ...


class Timing:
    """Elapsed time and an estimate of the rest."""

    def __init__(self) -> None:
        self.iterations: int | None = None
        self.iteration: int | None = None
        self.success: float | None = None
        self._began = time.monotonic()
        self._iteration_began = self._began
        self._durations: deque[float] = deque(maxlen=_ESTIMATE_WINDOW)
        self._evaluation = 0.0
        self._done = False

    def describe(self, iterations: int, done: int) -> None:
        """Sets the length of the training and the number of finished iterations."""
        self.iterations = iterations
        self.iteration = done - 1 if done else None

    def begin(self, step: StepRecord) -> None:
        """Records the start of a step, and possibly of an iteration."""
        if step.iteration is not None and step.iteration != self.iteration:
            self.iteration = step.iteration
            self._iteration_began = step.started

    def finish(self, step: StepRecord, seconds: float) -> None:
        """Records the duration of a step."""
        if step.iteration is not None and step.name == "update":
            self._durations.append(time.monotonic() - self._iteration_began)
        if step.name == "evaluate":
            self._evaluation = seconds
            self._done = self.iterations is not None and self.iteration == self.iterations - 1
        if (success := success_of(step.metrics)) is not None:
            self.success = success

    def elapsed(self) -> float:
        """Seconds since the start of reporting."""
        return time.monotonic() - self._began

    def remaining(self) -> float | None:
        """Estimated seconds left, including the final evaluation; None before the first update."""
        if self.iterations is None or self.iteration is None or not self._durations or self._done:
            return None
        left = self.iterations - self.iteration - 1
        per_iteration = fmean(self._durations)
        # The running iteration's elapsed time counts against its own share.
        running = max(per_iteration - (time.monotonic() - self._iteration_began), 0.0)
        return left * per_iteration + running + self._evaluation

    def place(self, step: StepRecord) -> str:
        """Step and iteration as text: the iteration's number from 1, and its folder's from 0."""
        name = f"{step.name} {step.label}".rstrip()
        if step.iteration is None:
            return name
        total = f"/{self.iterations}" if self.iterations else ""
        return f"iteration {step.iteration + 1}{total} ({step.iteration:04d}) {name}"


class Terminal:
    """Text stream to a descriptor that ignores a closed other end."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")

    def write(self, text: str) -> int:
        """Writes, or drops the text."""
        try:
            return self._file.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        """Flushes, or does nothing."""
        try:
            self._file.flush()
        except (OSError, ValueError):
            return

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return self._file.isatty()

    def fileno(self) -> int:
        """The descriptor, for its size."""
        return self._file.fileno()

    def close(self) -> None:
        """Closes the descriptor."""
        try:
            self._file.close()
        except OSError:
            return


class LineDisplay:
    """One plain line per finished step, for logs."""

    def __init__(self, stream: Terminal) -> None:
        self._stream = stream
        self._title = ""
        self._timing = Timing()

    def describe(self, title: str, iterations: int, done: int) -> None:
        """Sets the prefix of every line."""
        self._title = title
        self._timing.describe(iterations, done)

    def begin(self, step: StepRecord) -> None:
        """Does nothing: lines are written when steps end."""
        self._timing.begin(step)

    def finish(self, step: StepRecord, seconds: float, error: str | None) -> None:
        """Writes the step's line."""
        self._timing.finish(step, seconds)
        what = f"{self._timing.place(step)}: " + (f"failed: {error}" if error else "")
        if not error:
            what += "  ".join([f"{seconds:.1f} s", *headline(step.metrics)])
        left = None if error else self._timing.remaining()
        tail = f"  (about {clock(left)} left)" if left is not None else ""
        self._write(f"[{clock(self._timing.elapsed())}] {what}{tail}")

    def open_bar(self, description: str, total: int) -> Advance:
        """Writes a line a minute, from a tenth on with an estimate of the rest."""
        began = written = time.monotonic()
        done = 0

        def advance(n: int = 1, **fields: Any) -> None:
            nonlocal done, written
            done += n
            now = time.monotonic()
            if now - written >= _SECONDS_BETWEEN_LINES and done < total:
                written = now
                what = "  ".join([f"{description} {done}/{total}", *headline(fields)])
                if done >= total / 10:  # parallel episodes end late and together
                    left = clock((now - began) * (total - done) / done)
                    what += f"  (about {left} left of this step)"
                self.note(what)

        return advance

    def close_bar(self) -> None:
        """Does nothing."""

    def note(self, text: str, picture: Picture | None = None) -> None:
        """Writes the text."""
        self._write(f"[{clock(self._timing.elapsed())}] {text}")

    def close(self) -> None:
        """Closes the descriptor."""
        self._stream.close()

    def _write(self, text: str) -> None:
        self._stream.write(f"{self._title + ' ' if self._title else ''}{text}\n")
        self._stream.flush()


def success_of(metrics: Mapping[str, Any]) -> float | None:
    """The success rate in a step's metrics or a bar's fields; None if there is none."""
    return next(
        (value for name, value in _numbers(metrics).items() if _short_name(name) == "success"), None
    )


def headline(metrics: Mapping[str, Any]) -> list[str]:
    """The most important metrics as `name value`, in the order of their table."""
    numbers = _numbers(metrics)
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if short := _short_name(name):
            found.setdefault(short, value)
    if found:
        return [f"{short} {_short(found[short])}" for short in _SHORT_NAMES if short in found]
    some = list(numbers.items())[:_SHOWN_OTHERWISE]
    return [f"{name.rsplit('/', 1)[-1]} {_short(value)}" for name, value in some]


def _short(value: float) -> str:
    """Three digits, or all digits of a count."""
    return f"{value:.0f}" if 1_000 <= value < 1e9 and value == int(value) else f"{value:.3g}"


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _short_name(name: str) -> str:
    """Name of a metric on a line; fields of a bar keep theirs."""
    metric = find(name)
    return metric.short if metric else name if name in _SHORT_NAMES else ""


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
