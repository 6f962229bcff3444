"""What the iterations of a run have measured, in order."""

from pathlib import Path

from vagen import progress
from vagen.run import layout
from vagen.storage import read_manifest

_SECONDS = "timing_s/"


def iteration_metrics(path: Path, count: int) -> list[dict[str, float]]:
    """Metrics of a run's first iterations, with its `iteration`, and what events say of it: the
    steps' seconds, and how fast the engine was.

    Args:
        path: The run's folder.
        count: Iterations; they are finished.
    """
    told = _told(path)
    return [
        {
            "iteration": number,
            **read_manifest(path / layout.iteration(number) / "update").payload["history"],
            **told.get(number, {}),
        }
        for number in range(count)
    ]


def step_timings(path: Path, iteration: int) -> dict[str, float]:
    """How long the steps of an iteration took, as metrics."""
    found = _told(path).get(iteration, {})
    return {name: value for name, value in found.items() if name.startswith(_SECONDS)}


def _told(path: Path) -> dict[int, dict[str, float]]:
    """What events say, by iteration."""
    told: dict[int, dict[str, float]] = {}
    for event in progress.read_events(path / layout.EVENTS):
        if event["event"] == "stage_finished" and event["iteration"] is not None:
            found = told.setdefault(event["iteration"], {})
            found[f"{_SECONDS}{event['stage']}"] = event["seconds"]
            found |= event.get("performance", {})
    return told
