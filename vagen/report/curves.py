"""Learning curves as PNG, from the rows of metrics that a run keeps per iteration."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vagen.metrics import STEP_SECONDS, SUCCESS, Metric, all_metrics, find
from vagen.panels import PANELS, SUCCESS_PANEL, Panel
from vagen.storage import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]
"""Rows with `iteration` and metrics by name; a row need not hold every metric."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#56B4E9", "#6B4FA0", "#444444")
"""Distinguishable with any colour vision (after Okabe and Ito)."""
INK, MUTED, GRID = "#1b1f24", "#5a6472", "#e3e6ea"
DPI = 110
_MEASURED_NOW_AND_THEN = ("val/", "test/")
"""Metrics drawn as joined points, not smoothed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured point beside the curve: warm start or final model on held-out levels."""

    label: str
    iteration: float
    """Position on the axis: iterations finished before the evaluation."""
    value: float
    ci95: tuple[float, float] | None = None


def write_curves(
    history: History,
    path: Path,
    *,
    title: str = "Learning curves",
    marks: Sequence[Mark] = (),
    window: int = 5,
) -> Path:
    """Draws a run's success, rewards, policy, critic and time as one PNG; returns its path.

    Args:
        history: Rows of metrics; may be short or empty, a metric that is nowhere is said to be so.
        path: The PNG file; it appears whole.
        title: Heading.
        marks: Points beside the success curve, e.g. warm start and final with their intervals.
        window: Iterations of the trailing mean drawn over the faint raw curve; 1 draws raw only.
    """
    figure = _figure(14.0, 12.8)
    # Each row has columns of its own: long numbers beside one panel take nothing from other rows.
    rows = figure.add_gridspec(4, 1)
    widths = ((2, 1, 1), (1, 1, 1), (1, 1, 1, 1), (1, 1, 1))
    places = [
        place
        for row, ratios in enumerate(widths)
        for place in rows[row].subgridspec(1, len(ratios), width_ratios=ratios)
    ]
    for panel, place in zip(PANELS, places[:-1], strict=True):
        axes = figure.add_subplot(place)
        shown = marks if panel is SUCCESS_PANEL else ()
        _draw_panel(axes, history, panel, marks=shown, window=window)
    _draw_timing(figure.add_subplot(places[-1]), history)
    figure.suptitle(title, fontsize=15, fontweight="bold", color=INK)
    return _save(figure, path)


def write_comparison_curve(
    histories: Mapping[str, Sequence[History]],
    path: Path,
    *,
    metric: str = SUCCESS,
    title: str = "Comparison",
    unit: str = "share of episodes",
    limits: tuple[float, float] | None = None,
    marks: Sequence[Mark] = (),
    window: int = 5,
) -> Path:
    """Draws one metric of several runs, grouped by name (a preset, say), as PNG.

    A group's line is the mean over its runs and its band the range from lowest to highest run,
    after each run's trailing mean of `window`, over the iterations that all its runs have.

    Args:
        histories: Runs (one per seed) by group name.
        path: The PNG file; it appears whole.
        metric: Name of the metric.
        title: Heading.
        unit: Label of the vertical axis.
        limits: Range of the vertical axis; null fits the data.
        marks: Points to add.
        window: Iterations of the trailing mean.

    Raises:
        ValueError: No run holds the metric.
    """
    figure = _figure(9.5, 5.2)
    axes = figure.add_subplot()
    names = set()
    for color, (name, runs) in zip(_colors(len(histories)), histories.items(), strict=True):
        names.update(key for run in runs for row in run for key in row)
        curves = [_series(run, metric) for run in runs]
        curves = [dict(zip(x, _smooth(y, window), strict=True)) for x, y in curves if x.size]
        if not curves:
            continue
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[x] for x in shared] for curve in curves])
        runs_text = f"{len(curves)} runs" if len(curves) > 1 else "1 run"
        axes.plot(shared, values.mean(0), color=color, lw=2, label=f"{name} ({runs_text})")
        if len(curves) > 1:
            axes.fill_between(shared, values.min(0), values.max(0), color=color, alpha=0.18, lw=0)
    if not axes.lines:
        known = ", ".join(sorted(names - {"iteration"})) or "none"
        raise ValueError(f"no run has the metric {metric!r}; their metrics are: {known}")
    _draw_marks(axes, marks)
    smoothing = f", trailing mean of {window}" if window > 1 else ""
    _style(axes, title, f"{metric}: {unit}", limits)
    axes.legend(
        title=f"mean, band lowest to highest run{smoothing}", alignment="left", **_legend_style()
    )
    return _save(figure, path)


def _series(history: History, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Iterations and finite values of one metric, both float64 [N], in order of iteration."""
    points = [
        (float(row["iteration"]), float(row[metric]))
        for row in history
        if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])
    ]
    points.sort(key=lambda point: point[0])
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return x, y


def _smooth(y: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of each point and up to `window - 1` before it."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    end = np.arange(1, len(y) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def _names(history: History, metrics: Iterable[Metric]) -> list[str]:
    """Names in the history that are one of the metrics, in their order, then by name."""
    names = sorted({name for row in history for name in row})
    return [name for metric in metrics for name in names if find(name) is metric]


def _draw_panel(
    axes: "Axes", history: History, panel: Panel, *, marks: Sequence[Mark], window: int
) -> None:
    names = _names(history, (metric for metric in all_metrics() if metric.panel is panel))
    if panel.training_only:
        names = [name for name in names if not name.startswith(_MEASURED_NOW_AND_THEN)]
    label = str if panel.full_names else _labels(names)
    smoothed = False
    for name, color in zip(names, _colors(len(names)), strict=True):
        x, y = _series(history, name)
        if not x.size:
            continue
        if name.startswith(_MEASURED_NOW_AND_THEN):
            axes.plot(x, y, color=color, lw=1.4, marker="o", ms=5, label=label(name))
        elif window > 1 and x.size > window:
            smoothed = True
            axes.plot(x, y, color=color, lw=0.9, alpha=0.35)
            axes.plot(x, _smooth(y, window), color=color, lw=2, label=label(name))
        else:
            axes.plot(x, y, color=color, lw=2, marker="o", ms=3, label=label(name))
    _draw_marks(axes, marks)
    title = panel.title
    if panel is SUCCESS_PANEL and smoothed:
        title += f"  (bold: trailing mean of {window} iterations)"
    if not axes.lines and not marks:
        _empty(axes, title)
        return
    _style(axes, title, panel.unit, panel.limits)
    axes.legend(**_legend_style())


def _draw_marks(axes: "Axes", marks: Sequence[Mark]) -> None:
    for index, mark in enumerate(marks):
        low, high = mark.ci95 or (mark.value, mark.value)
        error = [[mark.value - low], [high - mark.value]]
        interval = f" [{low:.2f}, {high:.2f}]" if mark.ci95 else ""
        axes.errorbar(
            [mark.iteration],
            [mark.value],
            yerr=error if mark.ci95 else None,
            fmt="Ds^vP"[index % 5],
            ms=7,
            color=INK,
            mfc="white" if index % 2 == 0 else INK,
            capsize=4,
            lw=1.5,
            zorder=5,
            label=f"{mark.label} {mark.value:.2f}{interval}",
        )
    if marks:
        axes.axhline(marks[0].value, color=INK, lw=0.8, ls=":", zorder=1)


def _draw_timing(axes: "Axes", history: History) -> None:
    """Seconds per step of each iteration, stacked: which step takes the time."""
    names = _names(history, (metric for metric in all_metrics() if metric.name == STEP_SECONDS))
    rows = sorted((row for row in history if any(name in row for name in names)), key=_iteration)
    title = "Time per iteration"
    if not rows:
        _empty(axes, title)
        return
    x = [float(row["iteration"]) for row in rows]
    seconds = np.array([[float(row.get(name) or 0.0) for row in rows] for name in names])
    seconds = np.nan_to_num(seconds, posinf=0.0, neginf=0.0)
    order = np.argsort(-seconds.sum(1))
    share = seconds.sum(1) / max(seconds.sum(), 1e-12)
    axes.stackplot(
        x,
        seconds[order],
        labels=[f"{names[i].rpartition('/')[2]} {share[i]:.0%}" for i in order],
        colors=_colors(len(names)),
        alpha=0.85,
        step="mid" if len(x) > 1 else None,
    )
    if len(x) == 1:
        bottom = 0.0
        for color, i in zip(_colors(len(names)), order, strict=True):
            axes.bar(x, seconds[i], bottom=bottom, color=color, width=0.5)
            bottom += float(seconds[i, 0])
    _style(axes, title, "seconds", None)
    axes.set_ylim(bottom=0.0)
    handles, texts = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], texts[::-1], **_legend_style())


def _iteration(row: Mapping[str, Any]) -> float:
    return float(row["iteration"])


def _labels(names: Sequence[str]) -> Callable[[str], str]:
    """Last part of a name where that is unambiguous, else the whole name."""
    short = [name.removesuffix("/mean").rsplit("/", 1)[-1] for name in names]
    tails = dict(zip(names, short, strict=True))
    return lambda name: tails[name] if short.count(tails[name]) == 1 else name


def _colors(count: int) -> list[str]:
    return [COLORS[index % len(COLORS)] for index in range(count)]


def _style(axes: "Axes", title: str, unit: str, limits: tuple[float, float] | None) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, loc="left", fontsize=11.5, color=INK)
    axes.set_xlabel("iteration", color=MUTED)
    axes.set_ylabel(unit, color=MUTED)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aab2bd")
    if limits is not None:
        pad = 0.03 * (limits[1] - limits[0])
        axes.set_ylim(limits[0] - pad, limits[1] + pad)


def _empty(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11.5, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(GRID)
    axes.text(0.5, 0.5, "not recorded in this run", ha="center", va="center", color=MUTED)


def _legend_style() -> dict[str, Any]:
    return {
        "fontsize": 9,
        "title_fontsize": 9,
        "framealpha": 0.85,
        "edgecolor": GRID,
        "loc": "best",
    }


def _figure(width: float, height: float) -> "Figure":
    """A figure of its own, in inches, apart from pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), DPI, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr]
    FigureCanvasAgg(figure)
    return figure


def _save(figure: "Figure", path: Path) -> Path:
    # Once and no more: `savefig` would draw all of it for nothing to find the same places.
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine(None)
    with write_whole(path) as partial:
        figure.savefig(partial, format="png", dpi=DPI, metadata={"Software": None})
    return Path(path)
