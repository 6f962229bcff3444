"""The page of an evaluation: a table of models per environment, intervals as bars, costs.

As the trajectory viewer it needs no network, and shows what models are called as text only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagen.report.viewer import render
from vagen.storage import write_text

_INTERVALS = {"95 %": "success", "gain 95 %": "gain"}
"""Columns whose text stands below another's value."""
_MEANINGS = {
    "success": "mean over levels of the share of attempts that solved them",
    "gain": "difference of success from the model compared with, on the levels that both played",
    "levels needed": "levels that would show this gain in four of five evaluations (95 % level)",
    "turns": "mean answers per episode",
    "format": "share of answers in the layout that the prompt asks for",
    "invalid": "share of answers with an unknown action",
    "observation": "mean score of what the agent says it sees",
    "prediction": "mean score of what it says will happen",
    "failed": "episodes that their endpoint or environment ended; they do not count",
}
_WIDTH, _HEIGHT, _MARGIN = 520.0, 240.0, 40.0


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """One model on one environment."""

    cells: Mapping[str, str]
    """Text by column, `model` first."""
    success: float | None
    interval: tuple[float, float] | None
    cost: float | None
    report: str
    """Address of its episodes' page, relative to this one."""
    remark: str = ""
    """Problem of the row; empty without one."""


def write_leaderboard(
    path: Path,
    *,
    title: str,
    boards: Mapping[str, Sequence[LeaderboardEntry]],
    facts: Mapping[str, str],
) -> None:
    """Writes the page: entries by environment, best first, and `facts` beside the heading."""
    page = render(
        "leaderboard.html.j2",
        ("report.css", "leaderboard.css"),
        ("leaderboard.js",),
        title=title,
        provenance=facts.items(),
        boards=[_board(name, entries) for name, entries in boards.items()],
    )
    write_text(path, page)


def _board(name: str, entries: Sequence[LeaderboardEntry]) -> dict[str, Any]:
    columns = [*dict.fromkeys(column for entry in entries for column in entry.cells)]
    shown = [column for column in columns if any(entry.cells.get(column) for entry in entries)]
    return {
        "name": name,
        "columns": [column for column in shown if column not in _INTERVALS],
        "entries": entries,
        "plot": _plot(entries),
        "below": {column: text for text, column in _INTERVALS.items()},
        "legend": {column: _MEANINGS[column] for column in shown if column in _MEANINGS},
    }


def _plot(entries: Sequence[LeaderboardEntry]) -> dict[str, Any] | None:
    """Points of cost (logarithmic) against success; None if fewer than two have both."""
    known = [e for e in entries if e.cost and e.success is not None]
    if len(known) < 2:
        return None
    logs = [math.log10(entry.cost or 1.0) for entry in known]
    low, high = min(logs), max(logs)
    points = [
        {
            "x": _MARGIN
            + (_WIDTH - 3 * _MARGIN) * ((at - low) / (high - low) if high > low else 0.5),
            "y": _height(entry.success or 0.0),
            "top": _height(entry.interval[1]) if entry.interval else None,
            "bottom": _height(entry.interval[0]) if entry.interval else None,
            "name": entry.cells["model"],
            "cost": entry.cells.get("cost", ""),
        }
        for entry, at in zip(known, logs, strict=True)
    ]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "zero": _height(0.0),
        "one": _height(1.0),
        "left": _MARGIN,
        "points": points,
    }


def _height(success: float) -> float:
    return _HEIGHT - _MARGIN - (_HEIGHT - 1.5 * _MARGIN) * success
