"""Metrics of a run's iterations, in order."""

from pathlib import Path

from vagen import progress
from vagen.run import layout
from vagen.storage import read_manifest

_SECONDS = "timing_s/"


def iteration_metrics(path: Path, count: int) -> list[dict[str, float]]:
    """Metrics of a run's first iterations, with `iteration`, seconds of the steps and speed of the
    engine.

    Args:
        path: The run's folder.
        count: Number of iterations, all finished.
    """
    from_events = _event_metrics(path)
    return [
        {
            "iteration": number,
            **read_manifest(path / layout.iteration(number) / "update").payload["history"],
            **from_events.get(number, {}),
        }
        for number in range(count)
    ]


def step_timings(path: Path, iteration: int) -> dict[str, float]:
    """Seconds of the steps of an iteration, as metrics."""
    found = _event_metrics(path).get(iteration, {})
    return {name: value for name, value in found.items() if name.startswith(_SECONDS)}


def _event_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Metrics in the events, by iteration."""
    from_events: dict[int, dict[str, float]] = {}
    for event in progress.read_events(path / layout.EVENTS):
        if event["event"] == "stage_finished" and event["iteration"] is not None:
            found = from_events.setdefault(event["iteration"], {})
            found[f"{_SECONDS}{event['stage']}"] = event["seconds"]
            found |= event.get("performance", {})
    return from_events
