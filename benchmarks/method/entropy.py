"""What a bonus on entropy does, fixed or controlled: from a fresh start and from a confident one.

A confident policy's first logits are eight times as far apart: as after imitation it is sure of
what it does, right or wrong, so that it has to unlearn before it can learn.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method import arms, report
from benchmarks.method.learner import Arm
from vagen.report.curves import COLORS, GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITERATIONS = 120
TASKS = {
    "dependent, dense": arms.PER_TURN["gigpo, turns"],
    "independent, sparse": arms.SUMMED["grpo"],
    "independent, noisy": arms.PER_TURN["gigpo, turns"],
}
"""Each with the estimator without a critic that suits it."""
STARTS = {"confident": 8.0, "fresh": 1.0}
BONUSES: dict[str, dict[str, Any]] = {
    "none": {},
    "fixed .02": {"entropy_coeff": 0.02},
    "fixed .1": {"entropy_coeff": 0.1},
    "target .5": {"entropy_target": 0.5},
    "target 1": {"entropy_target": 1.0},
}
FILES = "entropy"
RESULT = report.ROOT / "benchmarks" / "results" / "method-entropy.json"


def arms_of(task: str) -> dict[str, Arm]:
    """Every bonus from every start."""
    return {
        f"{start}, {bonus}": replace(TASKS[task], sharpness=sharpness, **options)
        for start, sharpness in STARTS.items()
        for bonus, options in BONUSES.items()
    }


def write(outputs: Path, note: str) -> None:
    """From the files of finished arms to the result, the table of `docs/method.md`, the figure."""
    found: report.Found = {}
    for path in sorted((outputs / FILES).glob("*/*.json")):
        row = json.loads(path.read_text())
        means = {key: np.mean(row[key], 0).round(4).tolist() for key in ("entropy", "weights")}
        found.setdefault(path.parent.name, {})[path.stem] = {
            **{key: row[key] for key in ("arm", "seeds", "iterations")},
            **report.measures(row["curves"]),
            "final_entropy": np.mean(np.asarray(row["entropy"])[:, -report.LAST :], 1).tolist(),
            "mean_curves": {"accuracy": np.mean(row["curves"], 0).round(4).tolist(), **means},
        }
    contrasts = [
        arms.Contrast(f"{bonus} against none, {start}", f"{start}, none", f"{start}, {bonus}")
        for start in STARTS
        for bonus in BONUSES
        if bonus != "none"
    ]
    result = {
        **header(note),
        "machine": describe_machine(),
        "arms": found,
        "contrasts": report.contrasts_of(found, contrasts),
    }
    write_result(RESULT, result)
    report.write_tables({"entropy": table(found, contrasts, arms_of, "start, bonus")})
    _draw(found, report.ROOT / "docs" / "images" / "method-entropy.png")
    print(RESULT)


def table(
    found: report.Found,
    contrasts: Sequence[arms.Contrast],
    arms_of: Callable[[str], Mapping[str, Arm]],
    head: str,
) -> str:
    """By task: final accuracy, the final entropy, and the gain in final accuracy over the first."""
    tasks = [task for task in TASKS if task in found]
    gains = {contrast.candidate: contrast for contrast in contrasts}
    lines = [f"| {head} | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for name in arms_of(tasks[0]):
        cells = []
        for row in (found[task].get(name) for task in tasks):
            cells.append("")
            if row is not None:
                cells[-1] = f"{np.mean(row['final']):.3f}; {np.mean(row['final_entropy']):.2f} nats"
        if name in gains:
            for i, task in enumerate(tasks):
                gain = report.compare(found[task], gains[name]).get("final")
                cells[i] += f"; {report.as_text(gain)}" if gain is not None else ""
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _draw(found: report.Found, path: Path) -> None:
    """Mean curves of accuracy and entropy from the confident start."""
    tasks = [task for task in TASKS if task in found]
    figure = report.new_figure(4.2 * len(tasks), 5.6)
    panels = figure.subplots(2, len(tasks), sharex=True, squeeze=False)
    for column, task in enumerate(tasks):
        rows = {bonus: found[task].get(f"confident, {bonus}") for bonus in BONUSES}
        for axes, key in zip(panels[:, column], ("accuracy", "entropy"), strict=True):
            _curves(axes, rows, key)
        panels[0, column].set_title(task, loc="left", fontsize=10.5, color=INK)
        panels[1, column].set_xlabel("iteration")
    panels[0, 0].set_ylabel("turns that earn")
    panels[1, 0].set_ylabel("entropy, nats per sampled token")
    panels[0, 0].legend(fontsize=9, edgecolor=GRID, title="bonus")
    figure.suptitle("A bonus on entropy from a confident start, mean of 8 seeds", color=INK)
    report.save(figure, path)


def _curves(axes: "Axes", rows: dict[str, Any], key: str) -> None:
    for (bonus, row), color in zip(rows.items(), COLORS, strict=False):
        if row is not None:
            axes.plot(row["mean_curves"][key], color=color, lw=1.4, label=bonus)
    axes.set_ylim(bottom=0.0)
    axes.grid(color=GRID, lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
