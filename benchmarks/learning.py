"""Does it learn: an experiment over several seeds, before and after, on the same held-out levels.

    python benchmarks/learning.py --experiment frozenlake-tiny --seeds 0 1 2

runs the whole pipeline once per seed and writes `benchmarks/results/learning-<experiment>.json` and
the curves (`-verl` in their names with `infra.engine=verl`), or both into `--out`. `--collect RUN
... --out DIR` takes finished runs instead of starting new ones; they may differ in their seed only.
"""

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from machine import header

from vagen.config import config_digest
from vagen.report import Mark, write_comparison_curve
from vagen.run.run import Run
from vagen.tracking import paired_seeds

ROOT = Path(__file__).parent.parent
KEYS = (
    "seed",
    "config_digest",
    "warm_start",
    "final",
    "paired_gain",
    "levels",
    "iterations",
    "seconds",
    "preset",
)


def train(experiment: str, seed: int, outputs: Path, words: list[str]) -> Path:
    """Runs the pipeline for one seed; returns the run's folder."""
    name = f"bench-{experiment}-{seed}-{datetime.now(UTC):%Y%m%d%H%M%S}"
    command = [sys.executable, "-m", "vagen.cli.main", "run", experiment, f"seed={seed}"]
    command += ["--name", name, f"infra.output_dir={outputs}", *words]
    subprocess.run(command, check=True)
    return outputs / name


def differing(runs: list[Run]) -> str:
    """What keeps runs from being seeds of one experiment; empty if nothing does."""
    seeds = [run.experiment.seed for run in runs]
    if len({*seeds}) < len(seeds):
        return f"the runs have the seeds {seeds}: each may be there once"
    same = {"seed": 0, "name": ""}
    digests = {config_digest(run.experiment.model_copy(update=same)) for run in runs}
    names = ", ".join(run.name for run in runs)
    return f"{names} are no seeds of one experiment: other options differ" * (len(digests) > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="frozenlake-tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--collect", type=Path, nargs="+", help="finished runs")
    parser.add_argument("--out", type=Path, help="folder for the result and the picture")
    parser.add_argument("--outputs", type=Path, default=ROOT / "outputs")
    parser.add_argument("--note", default="", help="how the machine was used meanwhile")
    options, words = parser.parse_known_args()
    if options.collect and not options.out:
        parser.error("--collect needs --out: the project's own results are not written over")
    folders = options.collect or [
        train(options.experiment, seed, options.outputs, words) for seed in options.seeds
    ]
    runs = [Run.open(folder) for folder in folders]
    if problem := differing(runs):
        parser.error(problem)
    summaries = [json.loads((run.path / "summary.json").read_text()) for run in runs]
    gain = paired_seeds(
        *([summary[part]["success"] for summary in summaries] for part in ("warm_start", "final"))
    )
    engine = runs[0].infra.engine
    name = runs[0].experiment.name + ("" if engine == "local" else f"-{engine}")
    result = {
        "experiment": runs[0].experiment.name,
        "engine": engine,
        **header(options.note),
        "threads": runs[0].infra.threads,
        "gain_of_seeds": gain._asdict(),
        "runs": [{key: summary[key] for key in KEYS} for summary in summaries],
    }
    results, images = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
    if options.out:
        results = images = options.out
        options.out.mkdir(parents=True, exist_ok=True)
    path = results / f"learning-{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    last = max(summary["iterations"] for summary in summaries)
    marks = [
        Mark(f"seed {summary['seed']}, {part}", place, summary[part]["success"])
        for summary in summaries
        for part, place in (("warm_start", 0), ("final", last))
    ]
    figure = write_comparison_curve(
        {runs[0].experiment.preset or name: [run.iteration_metrics() for run in runs]},
        images / f"learning-{name}.png",
        title=f"{name}: success in training, and on {summaries[0]['levels']} held-out levels",
        limits=(0.0, 1.0),
        marks=marks,
    )
    for summary in summaries:
        own = summary["paired_gain"]
        print(
            f"seed {summary['seed']}: {summary['warm_start']['success']:.3f} to "
            f"{summary['final']['success']:.3f}, gain {own['gain']:+.3f} "
            f"[{own['ci95'][0]:+.3f}, {own['ci95'][1]:+.3f}], "
            f"{summary['seconds']['total'] / 60:.1f} min"
        )
    if gain.ci95 is not None:
        print(f"all seeds: {gain.gain:+.3f} [{gain.ci95[0]:+.3f}, {gain.ci95[1]:+.3f}]")
    print(path, figure, sep="\n")


if __name__ == "__main__":
    main()
