"""From the files of finished arms to `method.json`, the tables of `docs/method.md`, the figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method.arms import CONTRASTS, TASKS, Contrast
from vagen.report.curves import COLORS, DPI, GRID, INK, MUTED
from vagen.storage import write_whole
from vagen.tracking import GainOfSeeds, paired_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
LAST = 10
"""Iterations that the final accuracy is the mean of."""

Found = dict[str, dict[str, dict[str, Any]]]
"""What the files hold, by task (or study) and arm."""


def measures(curves: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Area under each seed's accuracy curve, as a share of the whole, and final accuracy."""
    values_SI = np.asarray(curves, np.float64)
    return {
        "auc": values_SI.mean(1).tolist(),
        "final": values_SI[:, -LAST:].mean(1).tolist(),
    }


def compare(found: Mapping[str, Mapping[str, Any]], contrast: Contrast) -> dict[str, GainOfSeeds]:
    """Candidate minus baseline of one task, paired over seeds; {} if an arm is not there.

    Of trainings also their success on held-out levels.
    """
    if not {contrast.baseline, contrast.candidate} <= set(found):
        return {}
    baseline, candidate = found[contrast.baseline], found[contrast.candidate]
    measured = [key for key in ("auc", "final", "success") if key in baseline]
    return {key: paired_seeds(baseline[key], candidate[key]) for key in measured}


def read(folder: Path) -> Found:
    """All files of a part: `task/arm.json`."""
    found: Found = {}
    for path in sorted(folder.glob("*/*.json")):
        row = json.loads(path.read_text())
        if "curves" in row:
            row |= measures(row.pop("curves"))
        found.setdefault(path.parent.name, {})[path.stem] = row
    return found


def as_text(gain: GainOfSeeds | None) -> str:
    """`+.094 ± .023 (t 9)`; bold where the interval leaves out 0."""
    if gain is None:
        return ""
    if gain.ci95 is None or gain.t is None:
        return f"{number(gain.gain)}"
    half = (gain.ci95[1] - gain.ci95[0]) / 2
    text = f"{number(gain.gain)} ± {number(half)[1:]} (t {gain.t:.1f})".replace("-", "−")
    return f"**{text}**" if abs(gain.gain) > half else text


def number(x: float) -> str:
    """Three digits with sign, no leading 0."""
    return f"{x:+.3f}".replace("0.", ".", 1).replace("-", "−")


def contrast_table(found: Found, measure: str) -> str:
    """A row per contrast, a column per task."""
    tasks = [task for task in TASKS if task in found]
    lines = ["| " + " | ".join(["contrast", *tasks]) + " |", "|" + "---|" * (len(tasks) + 1)]
    for contrast in CONTRASTS:
        cells = [as_text(compare(found[task], contrast).get(measure)) for task in tasks]
        if any(cells):
            lines.append("| " + " | ".join([contrast.claim, *cells]) + " |")
    return "\n".join(lines)


def arm_table(found: Found) -> str:
    """Final accuracy of every arm, mean over seeds."""
    tasks = [task for task in TASKS if task in found]
    lines = ["| " + " | ".join(["arm", *tasks]) + " |", "|" + "---|" * (len(tasks) + 1)]
    for arm in dict.fromkeys(arm for task in tasks for arm in found[task]):
        cells = [
            f"{np.mean(found[task][arm]['auc']):.3f}, {np.mean(found[task][arm]['final']):.3f}"
            if arm in found[task]
            else ""
            for task in tasks
        ]
        lines.append("| " + " | ".join([arm, *cells]) + " |")
    return "\n".join(lines).replace("0.", ".")


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


def draw_contrasts(found: Found, path: Path) -> None:
    """Gain in area under the curve with its interval: a row per contrast, a colour per task."""
    tasks = [task for task in TASKS if task in found]
    rows = [c for c in CONTRASTS if any(compare(found[task], c) for task in tasks)]
    figure = new_figure(10.5, 0.34 * len(rows) + 1.6)
    axes = figure.add_subplot()
    for index, task in enumerate(tasks):
        for row, contrast in enumerate(rows):
            gain = compare(found[task], contrast).get("auc")
            if gain is None or gain.ci95 is None:
                continue
            axes.errorbar(
                gain.gain,
                row + (index - (len(tasks) - 1) / 2) * 0.13,
                xerr=[[gain.gain - gain.ci95[0]], [gain.ci95[1] - gain.gain]],
                fmt="os"[TASKS[task].dependent],
                color=COLORS[index],
                ms=4,
                lw=1.3,
                label=task if row == 0 or task not in axes.get_legend_handles_labels()[1] else None,
            )
    for row in range(len(rows)):
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color=GRID, alpha=0.4, lw=0)
    axes.axvline(0.0, color=INK, lw=0.9)
    claims = [contrast.claim.replace("`", "") for contrast in rows]
    axes.set_yticks(range(len(rows)), claims, fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("difference of the area under the accuracy curve, 8 seeds, 95 %", color=MUTED)
    axes.set_title("What the token task tells apart", loc="left", color=INK, fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, edgecolor=GRID, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, path)


def draw_gradients(found: Found, path: Path) -> None:
    """Signal to noise of one batch's gradient by arm, and the cosine with the true gradient."""
    figure = new_figure(11.0, 8.0)
    figure.suptitle(
        "Gradient of one batch of 64 episodes at a fixed policy", fontsize=12, color=INK
    )
    first = next(iter(found.values()))
    names = sorted(first, key=lambda arm: useful(first[arm]))
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("signal to noise, |E g| / sd(g)", "cosine of E g with the true gradient")
    for axes, key, title in zip(panels, ("snr", "cosine"), titles, strict=True):
        for index, (task, arms) in enumerate(found.items()):
            for row, arm in enumerate(names):
                values = np.array(arms.get(arm, {}).get(key, []), np.float64)
                values = values[np.isfinite(values)]
                if not values.size:
                    continue
                axes.errorbar(
                    values.mean(),
                    row + (index - 0.5) * 0.25,
                    xerr=values.std(ddof=1) / values.size**0.5 if values.size > 1 else 0,
                    fmt="os"[index % 2],
                    color=COLORS[index],
                    ms=4,
                    lw=1.3,
                    label=task if row == 0 else None,
                )
        axes.set_title(title, loc="left", fontsize=10.5, color=INK)
        axes.set_xlim(left=0.0)
        axes.grid(color=GRID, lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names, fontsize=9)
    panels[0].legend(fontsize=9, edgecolor=GRID, loc="center right")
    panels[1].axvline(1.0, color=INK, lw=0.9)
    save(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: "Figure", path: Path) -> None:
    """Writes it as PNG."""
    with write_whole(path) as partial:
        figure.savefig(partial, format="png", dpi=DPI, metadata={"Software": None})


def contrasts_of(found: Found, contrasts: Sequence[Contrast]) -> list[dict[str, Any]]:
    """Each contrast, and by task what it came to."""
    return [
        contrast._asdict()
        | {
            task: {key: gain._asdict() for key, gain in gains.items()}
            for task in found
            if (gains := compare(found[task], contrast))
        }
        for contrast in contrasts
    ]


def write(outputs: Path, studies: Mapping[str, Sequence[Contrast]], note: str) -> None:
    """Everything that there is to report.

    Args:
        outputs: Where the parts' files are.
        studies: Contrasts of the pipeline's studies.
        note: How the machine was used meanwhile.
    """
    tokens, gradients = read(outputs / "tokens"), read(outputs / "gradients")
    about = {**header(note), "machine": describe_machine()}
    results = ROOT / "benchmarks" / "results"
    path = results / "method-pipeline.json"
    studied = json.loads(path.read_text())
    for study, arms in read(outputs / "pipeline").items():
        contrasts = contrasts_of({study: arms}, studies[study])
        studied[study] = {**about, "arms": arms, "contrasts": contrasts}
        write_result(path, studied)  # studies of other days stay
        print(path)
    if not tokens and not gradients:
        return
    result = {
        **about,
        "tokens": tokens,
        "contrasts": contrasts_of(tokens, CONTRASTS),
        "gradients": gradients,
    }
    path = results / "method.json"
    write_result(path, result)
    images = ROOT / "docs" / "images"
    tables = {"arms": arm_table(tokens)}
    if tokens:
        draw_contrasts(tokens, images / "method-contrasts.png")
        tables |= {key: contrast_table(tokens, key) for key in ("auc", "final")}
    if gradients:
        draw_gradients(gradients, images / "method-gradients.png")
        tables["gradients"] = gradient_table(gradients)
    write_tables(tables)
    print(path)


def write_tables(tables: Mapping[str, str]) -> None:
    """Puts each table between the marks of its name in `docs/method.md`, if the page has them."""
    page = ROOT / "docs" / "method.md"
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by `make bench-method` -->", f"<!-- /{name} -->"
        if begin not in text:
            continue
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")
