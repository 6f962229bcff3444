"""Presets side by side: same warm start per seed, same number of episodes, same held-out levels.

    python benchmarks/ablation.py --experiment frozenlake-tiny --iterations 30

trains each preset with each seed and writes `benchmarks/results/ablation-<experiment>.json` and the
figure. A run that is finished is not made again, so that the command can be stopped and repeated.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine

from vagen.config import PRESETS
from vagen.config.load import load_experiment, load_infra
from vagen.report import write_comparison_curve
from vagen.run.run import Run
from vagen.stages.build import build
from vagen.stages.evaluate import read_results
from vagen.stages.warm_start import warm_start
from vagen.tracking import git_commit, package_versions, paired_bootstrap

ROOT = Path(__file__).parent.parent
MAIN_PRESETS = ("vanilla_ppo", "grpo_mask", "turn_ppo_mask", "vagen_base", "vagen_full")
EPISODES = 128
"""Episodes of an iteration, however a preset divides them into levels and trajectories."""


def warm_policy(experiment: str, seed: int, outputs: Path) -> Path:
    """The policy that every preset of a seed starts from."""
    folder = outputs / f"ablation-{experiment}-warm-{seed}"
    if folder.exists():
        run = Run.open(folder)
    else:
        infra = load_infra(None, [f"output_dir={outputs}", "threads=1"])
        run = Run.create(load_experiment(experiment, [f"seed={seed}"]), infra, folder.name)
    build(run)
    warm_start(run)
    return run.warm_start / "policy"


def train(experiment: str, preset: str, seed: int, iterations: int, outputs: Path) -> Run:
    """One run; goes on with one that was begun."""
    folder = outputs / f"ablation-{experiment}-{preset}-{seed}-{iterations}"
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "vagen.cli.main"]
        if folder.exists():
            command += ["resume", str(folder)]
        else:
            policy = outputs / f"ablation-{experiment}-warm-{seed}" / "warm_start" / "policy"
            group = PRESETS[preset].values["rollout_manager"].get("n_trajectory", 1)
            command += ["run", experiment, "--name", folder.name, f"preset={preset}"]
            command += [f"seed={seed}", f"data.train_batch_size={EPISODES // group}"]
            command += [f"actor_rollout_ref.model.path={policy}", "warm_start.steps=0"]
            command += [f"trainer.total_training_steps={iterations}"]
            command += [f"infra.output_dir={outputs}", "infra.threads=1"]
        with (outputs / f"{folder.name}.log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
    return Run.open(folder)


def by_level(run: Run, name: str) -> dict[str, float]:
    """Success per held-out level."""
    return read_results(run.evaluation(name))["by_level"]


def paired(baseline: list[dict[str, float]], candidate: list[dict[str, float]]) -> dict[str, Any]:
    """Mean difference over seeds and levels; seeds are kept apart, levels are resampled."""
    shared = [sorted(a.keys() & b.keys()) for a, b in zip(baseline, candidate, strict=True)]
    before, after = (
        [part[level] for part, levels in zip(parts, shared, strict=True) for level in levels]
        for parts in (baseline, candidate)
    )
    result = paired_bootstrap(before, after, seed=0)
    return {"gain": result.gain, "ci95": list(result.ci95)}


def summarize(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Success of each preset, its gain over the warm start, and against `vagen_full`."""
    rows = {}
    for preset, group in runs.items():
        summaries = [json.loads((run.path / "summary.json").read_text()) for run in group]
        finals = [by_level(run, "final") for run in group]
        success = [summary["final"]["success"] for summary in summaries]
        rows[preset] = {
            "success": float(np.mean(success)),
            "success_of_seeds": success,
            "ci95_of_seeds": [summary["final"]["ci95"] for summary in summaries],
            "warm_start_of_seeds": [summary["warm_start"]["success"] for summary in summaries],
            "gain": paired([by_level(run, "warm_start") for run in group], finals),
            "minutes": [summary["seconds"]["total"] / 60 for summary in summaries],
        }
        if preset != "vagen_full" and "vagen_full" in runs:
            full = [by_level(run, "final") for run in runs["vagen_full"]]
            rows[preset]["vagen_full_minus_this"] = paired(finals, full)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="frozenlake-tiny")
    parser.add_argument("--presets", nargs="+", default=list(MAIN_PRESETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, a thread each")
    parser.add_argument("--outputs", type=Path, default=ROOT / "outputs")
    parser.add_argument("--note", default="", help="how the machine was used meanwhile")
    options = parser.parse_args()
    outputs = options.outputs.absolute()
    outputs.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        warm_policy(options.experiment, seed, outputs)
    tasks = [(preset, seed) for seed in options.seeds for preset in options.presets]
    with ThreadPoolExecutor(options.jobs) as pool:
        made = pool.map(
            lambda task: train(options.experiment, *task, options.iterations, outputs), tasks
        )
        done = dict(zip(tasks, made, strict=True))
    runs = {preset: [done[preset, seed] for seed in options.seeds] for preset in options.presets}
    rows = summarize(runs)
    commit = git_commit()
    result = {
        "experiment": options.experiment,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit[0] if commit else None,
        "versions": package_versions(),
        "machine": describe_machine(),
        "note": options.note,
        "seeds": options.seeds,
        "iterations": options.iterations,
        "episodes_per_iteration": EPISODES,
        "presets": rows,
    }
    path = ROOT / "benchmarks" / "results" / f"ablation-{options.experiment}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    figure = write_comparison_curve(
        {preset: [run.iteration_metrics() for run in group] for preset, group in runs.items()},
        ROOT / "docs" / "images" / f"ablation-{options.experiment}.png",
        title=f"{options.experiment}: success in training by preset",
        limits=(0.0, 1.0),
    )
    for preset, row in rows.items():
        low, high = row["gain"]["ci95"]
        print(
            f"{preset:15} {row['success']:.3f}  gain {row['gain']['gain']:+.3f} "
            f"[{low:+.3f}, {high:+.3f}]"
        )
    print(path, figure, sep="\n")


if __name__ == "__main__":
    main()
