"""Writes a comparison as a page with curves, and as a LaTeX table."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vagen.compare.groups import Group, differences
from vagen.compare.reading import CURVES, VALIDATION
from vagen.compare.results import Cost, GroupResult
from vagen.evaluation.export import as_csv, as_latex, as_markdown
from vagen.evaluation.table import interval, number
from vagen.report.curves import write_comparison_curve
from vagen.report.viewer import render
from vagen.storage import write_text
from vagen.tracking.stats import Interval

PAGE, FIGURES = "index.html", "comparison.json"
_SMOOTHED = 20
"""Minimum number of iterations for smoothed curves."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Content of a comparison."""

    title: str
    groups: Sequence[Group]
    by: Sequence[str]
    over: str
    baseline: str
    levels: int
    """Number of held-out levels that all evaluated runs have in common."""
    results: Sequence[GroupResult]
    costs: Sequence[Cost]
    notes: Sequence[str]


def write_comparison(found: Comparison, folder: Path) -> Path:
    """Writes `index.html`, `table.{csv,md,tex}`, `comparison.json` and the curves as PNG.

    Returns:
        Path of the page.
    """
    rows = [_success_row(one, cost) for one, cost in zip(found.results, found.costs, strict=True)]
    costs = [
        _row(
            {
                "method": cost.label,
                "hours": number(cost.hours),
                f"{cost.device}-hours": number(cost.device_hours),
                "cost": number(cost.cost, ".2f"),
                **{step: number(seconds, ".1f") for step, seconds in cost.seconds.items()},
            }
        )
        for cost in found.costs
    ]
    title = "final success"
    tables = {title: [row["cells"] for row in rows]}
    write_text(folder / "table.csv", as_csv(tables, "table"))
    write_text(folder / "table.md", as_markdown(tables))
    write_text(folder / "table.tex", as_latex(tables))
    write_text(folder / FIGURES, json.dumps(_figures(found), indent=2) + "\n")
    page = render(
        "compare.html.j2",
        ("report.css", "leaderboard.css"),
        ("leaderboard.js",),
        title=found.title,
        provenance=[
            ("runs", sum(len(one.runs) for one in found.groups)),
            ("grouped by", ", ".join(found.by) or "nothing"),
            ("over", found.over),
            ("held-out levels", found.levels),
            ("compared with", found.baseline),
        ],
        notes=found.notes,
        tables=[
            _table("Final success", _ABOUT_SUCCESS, rows, bar="success"),
            _table("Time and cost", _ABOUT_COSTS, costs),
            _table("Differences of configuration", "", _difference_rows(found), kind="words"),
            _table("Runs", "", _run_rows(found), kind="words"),
        ],
        curves=_curves(found, folder),
    )
    return write_text(folder / PAGE, page)


_ABOUT_SUCCESS = (
    "Success of the final policy, mean over seeds and levels; its interval is for other seeds and "
    "other levels (Student's, two-way). The gain is paired by seed and level. "
    "P(better): that a training of this row does better than one of the baseline's; IQM: "
    "interquartile mean. Their intervals are rliable's stratified bootstrap, too narrow of few "
    "seeds."
)
_ABOUT_COSTS = (
    "Means over runs, seconds per step; cost is of all runs of a row together. On CPU an hour is "
    "one of the machine."
)


def _success_row(result: GroupResult, cost: Cost) -> dict[str, Any]:
    success, against = result.success, result.against
    cells = {
        "method": result.label,
        "seeds": str(result.seeds),
        "success": number(success and success.value),
        "95 %": _over_seeds(success and success.ci95, result.over_levels),
        "gain": number(against and against.gain.value, "+.3f"),
        "gain 95 %": _over_seeds(against and against.gain.ci95, against and against.over_levels),
        "P(better)": number(against and against.probability.value, ".2f"),
        "P 95 %": interval(against and against.probability.ci95),
        "IQM": number(result.iqm and result.iqm.value),
        "IQM 95 %": interval(result.iqm and result.iqm.ci95),
        f"{cost.device}-hours": number(cost.device_hours),
        "cost": number(cost.cost, ".2f"),
    }
    return _row(cells, success and success.value, success and success.ci95)


def _over_seeds(found: Interval | None, over_levels: Interval | None) -> str:
    if found is None and over_levels is not None:
        return f"over levels only {interval(over_levels)}"
    return interval(found)


def _difference_rows(found: Comparison) -> list[dict[str, Any]]:
    runs = [run for one in found.groups for run in one.runs]
    keys = [key for key in differences(runs) if key not in ("name", found.over)]
    return [
        _row({"option": key} | {one.label: _values(one, key) for one in found.groups})
        for key in keys
    ]


def _values(group: Group, key: str) -> str:
    return " | ".join(dict.fromkeys(run.options.get(key, "") for run in group.runs))


def _run_rows(found: Comparison) -> list[dict[str, Any]]:
    return [
        _row(
            {
                "run": run.name,
                "method": group.label,
                found.over: seed,
                "iterations": str(len({row["iteration"] for row in run.history})),
                "final success": number(
                    sum(run.by_level.values()) / len(run.by_level) if run.by_level else None
                ),
                "hours": number(run.hours),
                "read from": run.source,
            }
        )
        for group in found.groups
        for run, seed in zip(group.runs, group.seeds, strict=True)
    ]


def _row(
    cells: Mapping[str, str], value: float | None = None, interval: Interval | None = None
) -> dict[str, Any]:
    return {"cells": cells, "value": value, "interval": interval}


def _table(
    title: str, text: str, rows: Sequence[dict[str, Any]], bar: str = "", kind: str = ""
) -> dict[str, Any]:
    columns = dict.fromkeys(name for row in rows for name in row["cells"])
    shown = [name for name in columns if any(row["cells"].get(name) for row in rows)]
    return {"title": title, "text": text, "columns": shown, "rows": rows, "bar": bar, "kind": kind}


def _curves(found: Comparison, folder: Path) -> list[dict[str, str]]:
    curves = []
    for metric in CURVES:
        histories = {one.label: [run.history for run in one.runs] for one in found.groups}
        rows = [
            [row for row in run if metric in row] for runs in histories.values() for run in runs
        ]
        if not any(rows):
            continue
        smooth = metric != VALIDATION and max(map(len, rows)) >= _SMOOTHED
        is_success = metric.endswith("success")
        path = write_comparison_curve(
            histories,
            folder / f"{metric.replace('/', '-')}.png",
            metric=metric,
            title=metric,
            unit="share of episodes" if is_success else "per episode",
            limits=(0.0, 1.0) if is_success else None,
            window=5 if smooth else 1,
        )
        png = base64.b64encode(path.read_bytes()).decode("ascii")
        alt = f"{metric} over the iterations: mean and range over runs, by method"
        curves.append({"png": png, "alt": alt})
    return curves


def _figures(found: Comparison) -> dict[str, Any]:
    return {
        "by": list(found.by),
        "over": found.over,
        "baseline": found.baseline,
        "levels": found.levels,
        "notes": list(found.notes),
        "results": [asdict(one) for one in found.results],
        "costs": [asdict(one) for one in found.costs],
        "groups": {
            one.label: dict(zip(one.seeds, (run.source for run in one.runs), strict=True))
            for one in found.groups
        },
    }
