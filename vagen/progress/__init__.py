"""Progress of a run: events in `events.jsonl`, and a display on the terminal."""

from vagen.progress.display import StepRecord
from vagen.progress.reporter import (
    append_event,
    bar,
    close,
    configure,
    current,
    describe,
    event,
    measured,
    note,
    observe,
    output_to,
    read_events,
    reporting,
    silence,
    step,
)

__all__ = [
    "StepRecord",
    "append_event",
    "bar",
    "close",
    "configure",
    "current",
    "describe",
    "event",
    "measured",
    "note",
    "observe",
    "output_to",
    "read_events",
    "reporting",
    "silence",
    "step",
]
