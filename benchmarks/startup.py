"""Start-up: seconds from `vagen run` to the first rollout, without a warm start.

    python benchmarks/startup.py --runs 5 --other ../vagen-of-before

With `--other` a second checkout is measured in turn: a machine whose speed drifts slows both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import describe_machine

ROOT = Path(__file__).parent.parent
SMALL = (
    *("warm_start.steps=0", "trainer.total_training_steps=1", "data.train_batch_size=8"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "critic.ppo_mini_batch_size=8"),
    *(
        "envs.frozenlake.train_size=200",
        "envs.frozenlake.val_size=4",
        "envs.frozenlake.test_size=4",
    ),
)


def seconds_to_first_rollout(tree: Path) -> float:
    """Starts a training of a checkout and ends it when its first rollout begins."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "outputs" / "run" / "events.jsonl"
        command = [
            sys.executable,
            "-m",
            "vagen.cli.main",
            "run",
            "frozenlake-tiny",
            "--name",
            "run",
        ]
        begun = time.time()
        process = subprocess.Popen(
            [*command, *SMALL],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while True:
            lines = events.read_text().splitlines() if events.exists() else []
            for event in map(json.loads, lines):
                if event["event"] == "stage_started" and event["stage"] == "rollout":
                    os.killpg(process.pid, 9)
                    process.wait()
                    return event["time"] - begun
            if process.poll() is not None:
                raise SystemExit(f"the training of {tree} ended before its first rollout")
            time.sleep(0.05)


def main() -> None:
    """Measures, prints and writes `benchmarks/results/startup.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--other", type=Path, help="a second checkout, measured in turn")
    options = parser.parse_args()
    trees = {"this": ROOT, **({"other": options.other.absolute()} if options.other else {})}
    found: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(options.runs + 1):
        for name, tree in trees.items():
            found[name].append(seconds_to_first_rollout(tree))
    # The first run of each reads files that the others find in memory.
    result: dict[str, Any] = {
        name: {"seconds": [round(s, 2) for s in runs[1:]], "median": statistics.median(runs[1:])}
        for name, runs in found.items()
    }
    result["machine"] = describe_machine()
    if options.other:
        pairs = zip(found["other"][1:], found["this"][1:], strict=True)
        result["other_over_this"] = [round(other / this, 2) for other, this in pairs]
    text = json.dumps(result, indent=2)
    (ROOT / "benchmarks" / "results" / "startup.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
