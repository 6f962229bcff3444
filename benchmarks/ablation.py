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
from vagen.stages.warm_start import warm_start
from vagen.tracking import git_commit, package_versions, paired_seeds

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


def summarize(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Success of each preset by seed, on the same held-out levels, and what `compare` adds."""
    rows = {}
    for preset, group in runs.items():
        summaries = [json.loads((run.path / "summary.json").read_text()) for run in group]
        success = [summary["final"]["success"] for summary in summaries]
        rows[preset] = {
            "success": float(np.mean(success)),
            "success_of_seeds": success,
            "ci95_of_seeds": [summary["final"]["ci95"] for summary in summaries],
            "warm_start_of_seeds": [summary["warm_start"]["success"] for summary in summaries],
            "minutes": [summary["seconds"]["total"] / 60 for summary in summaries],
        }
    compare(rows)
    return rows


def compare(rows: dict[str, Any]) -> None:
    """Adds to each preset its gain over the warm start and its distance from `vagen_full`."""
    full = rows.get("vagen_full")
    for row in rows.values():
        found = row["success_of_seeds"]
        row["gain"] = paired_seeds(row["warm_start_of_seeds"], found)._asdict()
        if full is not None and row is not full:
            distance = paired_seeds(found, full["success_of_seeds"])
            row["vagen_full_minus_this"] = distance._asdict()


def as_text(found: dict[str, Any]) -> str:
    """A gain with its interval over seeds, if there are several."""
    interval = found["ci95"]
    text = f"{found['gain']:+.3f}"
    return text if interval is None else f"{text} [{interval[0]:+.3f}, {interval[1]:+.3f}]"


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
        print(f"{preset:15} {row['success']:.3f}  gain {as_text(row['gain'])}")
    print(path, figure, sep="\n")


if __name__ == "__main__":
    main()
