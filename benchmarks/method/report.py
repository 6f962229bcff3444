"""From the files of finished arms to `method.json`, the tables of `docs/method.md`, the figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method.arms import COMPARED, CROSSED, LEVELS, STUDIES, Contrast
from benchmarks.method.lab import TURNS
from vagen.report.curves import COLORS, DPI, GRID, INK, MUTED
from vagen.storage import write_whole
from vagen.tracking import GainOfSeeds, paired_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "method.md"
MARGIN = 0.02
"""Differences that matter to nobody."""
LAST = 10
"""Iterations that the final accuracy is the mean of."""

Found = dict[str, dict[str, dict[str, Any]]]
"""What the files hold, by task (or study) and arm."""


def measures(curves: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Area under each seed's accuracy curve, as a share of the whole, and final accuracy."""
    values_SI = np.asarray(curves, np.float64)
    return {"auc": values_SI.mean(1).tolist(), "final": values_SI[:, -LAST:].mean(1).tolist()}


def compare(found: Mapping[str, Mapping[str, Any]], contrast: Contrast) -> dict[str, GainOfSeeds]:
    """Candidate minus baseline of one task, paired over seeds; {} if an arm is not there.

    Of trainings also their success on held-out levels.
    """
    if not {contrast.baseline, contrast.candidate} <= set(found):
        return {}
    baseline, candidate = found[contrast.baseline], found[contrast.candidate]
    measured = [key for key in ("auc", "final", "success") if key in baseline]
    if all(baseline[key] == candidate[key] for key in measured):
        return {}  # one arm under two names: of a single reward at the end there are no turns
    return {key: paired_seeds(baseline[key], candidate[key]) for key in measured}


def judged(gains: Sequence[GainOfSeeds], seeds: int) -> list[dict[str, Any]]:
    """Each with its p value, the same corrected for their number (Holm), and what it says.

    `better` and `worse` are significant after the correction; `equal` has its interval within
    `MARGIN`, which is a test of equivalence, and comes first; anything else is `open`.
    """
    from scipy.special import stdtr

    p = np.array([2 * stdtr(seeds - 1, -abs(gain.t)) if gain.t else 1.0 for gain in gains])
    order = np.argsort(p)
    holm = np.empty_like(p)
    holm[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    rows = []
    for gain, raw, corrected in zip(gains, p.tolist(), holm.tolist(), strict=True):
        low, high = gain.ci95 or (-1.0, 1.0)
        verdict = "open"
        if low >= -MARGIN and high <= MARGIN:
            verdict = "equal"
        elif corrected < 0.05:
            verdict = "better" if gain.gain > 0 else "worse"
        rows.append({**gain._asdict(), "p": raw, "p_holm": corrected, "verdict": verdict})
    return rows


def contrasts_of(found: Found, contrasts: Sequence[Contrast]) -> list[dict[str, Any]]:
    """Each contrast, and by task what it came to.

    Corrected over all of a measure, for each length of episodes apart: a table has one length.
    """
    cells = {
        (contrast, task): gains
        for contrast in contrasts
        for task in found
        if (gains := compare(found[task], contrast))
    }
    seeds = len(next(iter(next(iter(found.values())).values()))["seeds"])
    rows = {contrast: contrast._asdict() for contrast, _ in cells}
    families: dict[tuple[str, int], dict[tuple[Contrast, str], GainOfSeeds]] = {}
    for (contrast, task), gains in cells.items():
        turns = CROSSED[task].turns if task in CROSSED else 0
        for measure, gain in gains.items():
            families.setdefault((measure, turns), {})[contrast, task] = gain
    for (measure, _), of in families.items():
        for (contrast, task), result in zip(of, judged(list(of.values()), seeds), strict=True):
            rows[contrast].setdefault(task, {})[measure] = result
    return list(rows.values())


def read(folder: Path) -> Found:
    """All files of a part: `task/arm.json`."""
    found: Found = {}
    for path in sorted(folder.glob("*/*.json")):
        row = json.loads(path.read_text())
        if "curves" in row:
            row |= measures(row.pop("curves"))
        found.setdefault(path.parent.name, {})[path.stem] = row
    return found


def number(x: float) -> str:
    """Three digits with sign, no leading 0."""
    return f"{x:+.3f}".replace("0.", ".", 1).replace("-", "−")


def cell(result: Mapping[str, Any] | None) -> str:
    """Bold if better or worse, `=` if equal."""
    if result is None:
        return ""
    form = {"open": "{}", "equal": "{} ="}.get(result["verdict"], "**{}**")
    return form.format(number(result["gain"]))


def contrast_table(rows: Sequence[Mapping[str, Any]], measure: str, turns: int = TURNS) -> str:
    """A row per contrast, a column per task of this length."""
    of = [name for name, task in CROSSED.items() if task.turns == turns] + [LEVELS]
    tasks = [task for task in of if any(task in row for row in rows)]
    rows = [row for row in rows if any(task in row for task in tasks)]
    lines = ["| " + " | ".join(["contrast", *tasks]) + " |", "|" + "---|" * (len(tasks) + 1)]
    for row in rows:
        cells = [cell(row.get(task, {}).get(measure)) for task in tasks]
        lines.append("| " + " | ".join([row["claim"], *cells]) + " |")
    return "\n".join(lines)


def arm_table(found: Found) -> str:
    """Of every arm: area, final accuracy (means over seeds), and the best rates."""
    lines = ["| task | arm | area | final | actor, critic |", "|---|---|---|---|---|"]
    for task, arms in found.items():
        for arm, row in arms.items():
            means = [f"{np.mean(row[key]):.3f}" for key in ("auc", "final")]
            rates = f"{row['actor_lr']:.3g}, {row['critic_lr']:.3g}"
            lines.append("| " + " | ".join([task, arm, *means, rates]) + " |")
    return "\n".join(lines)


def gradient_table(found: Found) -> str:
    """Signal to noise and cosine of every estimator, mean over seeds and its standard error."""
    lines = [
        "| arm | " + " | ".join(f"{task}: SNR | cosine" for task in found) + " |",
        "|---" * (1 + 2 * len(found)) + "|",
    ]
    first = next(iter(found.values()))
    for arm in sorted(first, key=lambda arm: -useful(first[arm])):
        cells = [
            _mean_and_error(found[task][arm][key]) if arm in found[task] else ""
            for task in found
            for key in ("snr", "cosine")
        ]
        lines.append("| " + " | ".join([arm, *cells]) + " |")
    return "\n".join(lines)


def useful(row: Mapping[str, Sequence[float]]) -> float:
    """Signal to noise along the true gradient, mean over seeds."""
    return float(np.mean(np.nan_to_num(np.multiply(row["snr"], row["cosine"]))))


def _mean_and_error(values: Sequence[float]) -> str:
    """Seeds whose signal is lost in noise have no cosine (NaN) and are left out."""
    kept = [value for value in values if np.isfinite(value)]
    if not kept:
        return "–"
    error = np.std(kept, ddof=1) / len(kept) ** 0.5 if len(kept) > 1 else np.nan
    seeds = "" if len(kept) == len(values) else f" ({len(kept)} seeds)"
    return f"{np.mean(kept):.2f} ± {error:.2f}{seeds}"


def draw_crossed(found: Found, path: Path) -> None:
    """Area of each method on each task, and a frame around those that none beats (paired)."""
    lengths = sorted({task.turns for name, task in CROSSED.items() if name in found})
    figure = new_figure(1.8 + 4.2 * len(lengths), 4.6)
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for axes, turns in zip(panels, lengths, strict=True):
        tasks = [name for name, task in CROSSED.items() if task.turns == turns and name in found]
        values = np.full((len(COMPARED), len(tasks)), np.nan)
        for column, task in enumerate(tasks):
            rows = {arm: found[task][arm] for arm in COMPARED if arm in found[task]}
            best = max(rows, key=lambda arm: np.mean(rows[arm]["auc"]))
            for row, arm in enumerate(COMPARED):
                if arm not in rows:
                    continue
                values[row, column] = np.mean(rows[arm]["auc"])
                behind = paired_seeds(rows[arm]["auc"], rows[best]["auc"])
                unbeaten = arm == best or behind.ci95 is None or behind.ci95[0] <= 0
                axes.text(
                    column,
                    row,
                    f"{values[row, column]:.2f}".lstrip("0"),
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=INK if values[row, column] > 0.45 else "white",
                    fontweight="bold" if unbeaten else "normal",
                )
        axes.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=1)
        labels = [task.removesuffix(f", {turns} turns") for task in tasks]
        axes.set_xticks(range(len(tasks)), labels, fontsize=8, rotation=40, ha="right")
        axes.set_yticks(range(len(COMPARED)), COMPARED, fontsize=9)
        axes.set_title(f"{turns} turns", loc="left", fontsize=10.5, color=INK)
    figure.suptitle(
        "Area under the accuracy curve at the best rates; bold: none is better", color=INK
    )
    save(figure, path)


def draw_rates(found: Found, path: Path) -> None:
    """Area over the actor's rate, on the tuning seeds: how much a method depends on it."""
    tasks = ("dependent, dense", "dependent, noisy", "independent, sparse")
    shown = ("gae, no loss mask", *COMPARED)
    figure = new_figure(11.0, 3.9)
    for axes, task in zip(figure.subplots(1, len(tasks), sharey=True), tasks, strict=True):
        for arm, color in zip(shown, COLORS * 2, strict=False):
            if (row := found.get(task, {}).get(arm)) is None:
                continue
            first = row["tuning"][0]["critic_lr"]
            tried = [each for each in row["tuning"] if each["critic_lr"] == first]
            areas = sorted((each["actor_lr"], np.mean(each["auc"])) for each in tried)
            axes.plot(*zip(*areas, strict=True), "o-", ms=3, lw=1.3, color=color, label=arm)
        axes.set_xscale("log")
        axes.set_xticks([0.005, 0.02, 0.08], [".005", ".02", ".08"], minor=False)
        axes.minorticks_off()
        axes.set_title(task, loc="left", fontsize=10.5, color=INK)
        axes.set_xlabel("learning rate of the policy", color=MUTED)
        axes.grid(color=GRID, lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("area", color=MUTED)
    lines, names = figure.axes[0].get_legend_handles_labels()
    legend = figure.axes[-1].legend(lines, names, fontsize=8, loc="upper left")
    legend.set_bbox_to_anchor((1, 1))
    legend.get_frame().set_edgecolor(GRID)
    save(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: "Figure", path: Path) -> None:
    """Writes it as PNG."""
    with write_whole(path) as partial:
        figure.savefig(partial, format="png", dpi=DPI, metadata={"Software": None})


def write(outputs: Path, studies: Mapping[str, Sequence[Contrast]], note: str) -> None:
    """Everything that there is to report.

    Args:
        outputs: Where the parts' files are.
        studies: Contrasts of the pipeline's studies.
        note: How the machine was used meanwhile.
    """
    tokens, gradients = read(outputs / "tokens"), read(outputs / "gradients")
    about = {**header(note), "machine": describe_machine()}
    path = RESULTS / "method-pipeline.json"
    studied = json.loads(path.read_text())
    for study, arms in read(outputs / "pipeline").items():
        contrasts = contrasts_of({study: arms}, studies[study])
        studied[study] = {**about, "arms": arms, "contrasts": contrasts}
        write_result(path, studied)  # studies of other days stay
        print(path)
    if not tokens and not gradients:
        return
    contrasts = {name: contrasts_of(tokens, asked) for name, asked in STUDIES.items()}
    # They are of fixed policies, so that those of another day stay.
    gradients = gradients or json.loads((RESULTS / "method.json").read_text())["gradients"]
    result = {**about, "tokens": tokens, "contrasts": contrasts, "gradients": gradients}
    write_result(RESULTS / "method.json", result)
    images = ROOT / "docs" / "images"
    draw_crossed(tokens, images / "method-crossed.png")
    draw_rates(tokens, images / "method-rates.png")
    write_tables(tables())
    print(RESULTS / "method.json")


def tables() -> dict[str, str]:
    """Every table that can be made of `method.json`, by its name in `docs/method.md`."""
    result = json.loads((RESULTS / "method.json").read_text())
    made = {"arms": arm_table(result["tokens"])}
    for study, rows in result["contrasts"].items():
        for measure in ("auc", "final"):
            made[f"{study}, {measure}"] = contrast_table(rows, measure)
            for turns in {task.turns for task in CROSSED.values()} - {TURNS}:
                made[f"{study}, {measure}, {turns} turns"] = contrast_table(rows, measure, turns)
    if result["gradients"]:
        made["gradients"] = gradient_table(result["gradients"])
    return made


def every_table() -> str:
    """All of them, to read."""
    return "\n\n".join(f"## {name}\n\n{table}" for name, table in tables().items())


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with each table between the marks of its name, if the page has them."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by `make bench-method` -->", f"<!-- /{name} -->"
        if begin in page:
            before, _, rest = page.partition(begin)
            page = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return page


def write_tables(tables: Mapping[str, str]) -> None:
    """Fills them into `docs/method.md`."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
