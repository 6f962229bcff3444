"""What summaries and dropped observations are worth: a code that is shown once and asked for later.

    python -m benchmarks.method contexts --seeds 0 1 2 3

Each arm is a whole training of `recall-tiny.yaml` by the package, in a context of its own: warm
start, evaluation on test levels, iterations, evaluation. A finished one is a file under `outputs`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method.report import ROOT
from vagen.experiment.load import load_experiment, load_infra
from vagen.run.run import Run
from vagen.storage import write_whole
from vagen.tracking import paired_seeds
from vagen.train import train

ARMS = {
    "concat": ("rollout_manager.context=concat",),
    "window": ("rollout_manager.context=window", "rollout_manager.window_size=2"),
    "compact": ("rollout_manager.context=compact", "rollout_manager.window_size=2"),
    "gate": (
        "rollout_manager.context=gate",
        "rollout_manager.window_size=2",
        "rollout_manager.keep_cost=0.5",
        "data.max_response_length=24",
    ),
}
EXPERIMENT = ROOT / "benchmarks" / "method" / "recall-tiny.yaml"
FILES = "contexts"
RESULT = ROOT / "benchmarks" / "results" / "method-contexts.json"


def run(outputs: Path, seed: int) -> None:
    """Every arm of a seed that is not finished."""
    for arm in ARMS:
        run_arm(arm, seed, outputs / FILES)


def run_arm(arm: str, seed: int, outputs: Path) -> None:
    """Trains an arm and writes what came of it."""
    path = outputs / f"{arm}-{seed}.json"
    if path.exists():
        return
    infra = load_infra(None, [f"output_dir={outputs / 'runs'}", "threads=1", "device=cpu"])
    words = [*ARMS[arm], f"seed={seed}"]
    config = load_experiment(EXPERIMENT, words)
    run = Run.create(config, infra, f"{arm}-{seed}")
    train(run)
    summary = json.loads((run.path / "summary.json").read_text())
    metrics = run.iteration_metrics()
    found = {
        "warm_start": summary["warm_start"]["success"],
        "final": summary["final"]["success"],
        "curve": [row["train/success"] for row in metrics],
        "tokens": [row["rollout/tokens"] for row in metrics],
    }
    with write_whole(path) as partial:
        partial.write_text(json.dumps(found) + "\n")
    print(arm, seed, found["warm_start"], found["final"], flush=True)


def write(outputs: Path, note: str) -> None:
    """The result of all that is finished; differences are paired over seeds."""
    arms: dict[str, dict[str, Any]] = {}
    for arm in ARMS:
        files = sorted((outputs / FILES).glob(f"{arm}-[0-9]*.json"))
        rows = {path.stem.rpartition("-")[2]: json.loads(path.read_text()) for path in files}
        arms[arm] = {"seeds": rows} | {
            key: float(np.mean([row[key] for row in rows.values()]))
            for key in ("warm_start", "final")
            if rows
        }
    gains = {}
    for name, before, after in (
        ("compact: final minus warm start", ("compact", "warm_start"), ("compact", "final")),
        ("compact minus window, final", ("window", "final"), ("compact", "final")),
        ("compact minus concat, final", ("concat", "final"), ("compact", "final")),
    ):
        shared = sorted(set(arms[before[0]]["seeds"]) & set(arms[after[0]]["seeds"]))
        pair = [[arms[arm]["seeds"][s][key] for s in shared] for arm, key in (before, after)]
        if len(shared) > 1:
            gain = paired_seeds(*pair)
            gains[name] = {"gain": gain.gain, "ci95": gain.ci95, "t": gain.t, "seeds": shared}
    write_result(
        RESULT, {**header(note), "machine": describe_machine(), "arms": arms, "contrasts": gains}
    )
    print(json.dumps(gains, indent=1))
