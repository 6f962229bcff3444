"""The live display of progress, drawn with rich."""

import os
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from vagen.progress.display import Advance, StepRecord, Terminal, Timing, clock, headline
from vagen.progress.picture import Picture, half_blocks

_USUAL_WIDTH = 100
_NAME_WIDTH = 26
"""Width of the names, so that bars stay aligned between steps."""


class _Count(MofNCompleteColumn):
    """`96/128`, or nothing for a step of unknown length."""

    def render(self, task: Task) -> Text:
        """The count of a task."""
        return Text("") if task.total is None else super().render(task)


class _Left(TimeRemainingColumn):
    """Remaining time of the running step; `Timing` estimates that of the training."""

    def render(self, task: Task) -> Text:
        """The estimate of a task with a length."""
        if task.id == 0 or task.time_remaining is None:
            return Text("")
        return Text(f"-{clock(task.time_remaining)}")


class LiveDisplay:
    """Two bars at the bottom: the whole training, and the current step.

    Above them is a line per iteration, and per step outside the iterations.
    """

    def __init__(self, stream: Terminal) -> None:
        self._stream = stream
        self._timing = Timing()
        file: Any = stream
        self._console = Console(file=file, force_terminal=True, width=_width(stream))
        name = Column(min_width=_NAME_WIDTH)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(bar_width=None),
            _Count(),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("{task.fields[shown]}", markup=False),
            console=self._console,
            expand=True,
            refresh_per_second=4,
            transient=True,
            # `output_to` redirects output of libraries.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._whole = self._progress.add_task("run", total=None, shown="")
        self._step: TaskID | None = None
        self._name = ""
        self._metrics: dict[str, Any] = {}
        self._progress.start()
        # A killed process could not show the cursor again, so it is never hidden.
        self._console.show_cursor(True)

    def describe(self, title: str, iterations: int, done: int) -> None:
        """Sets the name and length of the training's bar."""
        self._timing.describe(iterations, done)
        self._progress.update(self._whole, description=title, total=iterations, completed=done)

    def begin(self, step: StepRecord) -> None:
        """Opens the step's bar."""
        if step.iteration is not None and step.iteration != self._timing.iteration:
            self._metrics = {}
        self._timing.begin(step)
        self._console.width = _width(self._stream)
        self._name = f"{step.name} {step.label}".rstrip()
        self._replace_step(self._timing.place(step), None)
        self._refresh_whole()

    def finish(self, step: StepRecord, seconds: float, error: str | None) -> None:
        """Prints a line for the step or, at its update, for the iteration."""
        self._timing.finish(step, seconds)
        self._metrics.update(step.metrics)
        if error:
            self._print(f"{self._timing.place(step)} failed after {seconds:.1f} s")
        elif step.iteration is None:
            self._print(
                "  ".join([f"{self._timing.place(step)}: {seconds:.1f} s", *headline(step.metrics)])
            )
        elif step.name == "update":
            self._progress.update(self._whole, completed=step.iteration + 1)
            number = f"{step.iteration + 1}/{self._timing.iterations or '?'} ({step.iteration:04d})"
            line = "  ".join([f"iteration {number}", *headline(self._metrics)])
            self._console.print(Text(line), no_wrap=True, overflow="ellipsis")
        self._drop_step()
        self._refresh_whole()

    def open_bar(self, description: str, total: int) -> Advance:
        """Sets the length of the step's bar."""
        task = self._replace_step(f"{self._name}: {description}", total)

        def advance(n: int = 1, **fields: Any) -> None:
            shown = "  ".join(headline(fields))
            self._progress.advance(task, n)
            if shown:
                self._progress.update(task, shown=shown)

        return advance

    def close_bar(self) -> None:
        """Removes the bar; the end of the step follows."""
        self._drop_step()

    def note(self, text: str, picture: Picture | None = None) -> None:
        """Prints a picture and a line above the bars."""
        if picture is not None:
            self._console.print(half_blocks(picture), end="")
        self._print(text)

    def close(self) -> None:
        """Removes the bars."""
        self._progress.stop()
        self._stream.close()

    def _replace_step(self, description: str, total: int | None) -> TaskID:
        self._drop_step()
        self._step = self._progress.add_task(description, total=total, shown="")
        return self._step

    def _drop_step(self) -> None:
        if self._step is not None:
            self._progress.remove_task(self._step)
            self._step = None

    def _refresh_whole(self) -> None:
        timing = self._timing
        left = timing.remaining()
        shown = [] if timing.success is None else [f"success {timing.success:.2f}"]
        shown += [] if left is None else [f"about {clock(left)} left"]
        self._progress.update(self._whole, shown="  ".join(shown))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def _width(stream: Terminal) -> int:
    """Columns of the terminal; `_USUAL_WIDTH` if unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except OSError:
        return _USUAL_WIDTH
