"""Resources that a run has used: working time, GPU-hours and cost."""

from collections.abc import Iterator, Sequence
from typing import Any

from vagen import progress
from vagen.run.run import Run

ENGINE_STARTED = "engine_started"
"""Event: from now to the end of its process, an engine holds `gpus` GPUs."""


def working_seconds(events: Sequence[dict[str, Any]]) -> float:
    """Working time of a run: of each process from its start to its last event.

    Excludes the time between processes, and what a killed process did after its last event.

    Args:
        events: Events of the run, oldest first.
    """
    return sum(seconds for seconds, _ in _spans(events))


def step_seconds(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Total seconds of each kind of step.

    Args:
        events: Events of the run, oldest first.
    """
    seconds: dict[str, float] = {}
    for event in events:
        if event["event"] == "stage_finished":
            seconds[event["stage"]] = seconds.get(event["stage"], 0.0) + event["seconds"]
    return seconds


def gpu_hours(events: Sequence[dict[str, Any]]) -> float:
    """GPU-hours of a run: all GPUs of an engine from its start to its process's last event.

    >>> gpu_hours([{"time": 0, "event": "engine_started", "gpus": 8},
    ...            {"time": 1800, "event": "stage_finished"}])
    4.0

    Args:
        events: Events of the run, oldest first.
    """
    return sum(seconds * gpus for seconds, gpus in _spans(events)) / 3600


def spent(run: Run) -> dict[str, float]:
    """`run/gpu_hours` and, if the infra has a price, `run/cost`; empty without GPUs."""
    hours = gpu_hours(progress.read_events(run.events))
    if not hours:
        return {}
    price = run.infra.gpu_hour_price
    return {"run/gpu_hours": hours} | ({} if price is None else {"run/cost": hours * price})


def _spans(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, int]]:
    """Seconds between consecutive events of a process, and the GPUs held in between."""
    previous, gpus = None, 0
    for event in events:
        if event["event"] == "process_started":
            gpus = 0
        elif previous is not None:
            yield event["time"] - previous, gpus
        if event["event"] == ENGINE_STARTED:
            gpus = event["gpus"]
        previous = event["time"]
