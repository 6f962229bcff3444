"""Side by side with TRL: the same model, task, episodes and machine, without a critic.

    python -m benchmarks.trl .venv-trl/bin/python [--repeats 3] [--busy 1]

The policy is a tiny one that a warm start of 120 steps has taught the answers' form. An iteration
is 16 levels, each played eight times, and one step of the optimizer; an episode has five turns with
a picture each, or one. Both sides play `EndlessFrozenLake`, so that no episode is over early, and
neither saves checkpoints to a store. Each run is a process of its own; sides take turns.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import describe_machine, write_result

ROOT = Path(__file__).parents[2]
ENV = {
    "render_mode": "vision",
    "prompt_format": "grounding_worldmodeling",
    "prompt_detail": "brief",
    "max_actions_per_step": 1,
    "reward": "vagen-legacy",
}
OURS = (
    "preset=grpo_mask",
    "data.train_batch_size=16",
    "rollout_manager.n_trajectory=8",
    "envs.frozenlake.test_size=1",  # TRL does not evaluate before it trains
)
TASK = "envs.frozenlake.env_name=benchmarks.trl.task:EndlessFrozenLake"
ARMS: dict[str, tuple[int, float]] = {
    "five turns": (5, 0.0),
    "KL": (5, 0.001),
    "one turn": (1, 0.0),
}
"""Turns, and the weight of the KL to the reference policy."""
FIRST = 2
"""Iterations that are not counted: both sides still warm their caches."""


def vagen(outputs: Path, name: str, *words: str) -> list[str]:
    """Command of a training."""
    run = [sys.executable, "-m", "vagen.cli.main", "run", "frozenlake-tiny", "--name", name]
    return [*run, f"infra.output_dir={outputs}", *OURS, *words]


def measure(command: list[str]) -> dict[str, Any]:
    """Runs a command: its output, when it began, and its processes' memory at most, in MB."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    began = time.time()
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    most = 0

    def watch() -> None:
        nonlocal most
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(process.pid)
                family = [root, *root.children(recursive=True)]
                most = max(most, sum(member.memory_full_info().pss for member in family))
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, errors = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{output[-2000:]}\n{errors[-4000:]}")
    return {"output": output, "began": began, "memory_mb": round(most / 1e6)}


def ours(outputs: Path, name: str, model: Path, arm: str, iterations: int) -> dict[str, Any]:
    """Trains with VAGEN; an iteration lasts from its rollout's beginning to the next one's."""
    turns, beta = ARMS[arm]
    found = measure(
        vagen(
            outputs,
            name,
            TASK,
            f"actor_rollout_ref.model.path={model}",
            "warm_start.steps=0",
            f"rollout_manager.max_turns={turns}",
            f"algorithm.kl_ctrl.kl_coef={beta}",
            f"trainer.total_training_steps={iterations}",
        )
    )
    lines = (outputs / name / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    begun = [e["time"] for e in events if e["event"] == "stage_started" and e["stage"] == "rollout"]
    evaluated = [e["time"] for e in events if e.get("stage") == "evaluate"]
    last = next(
        e["time"]
        for e in reversed(events)
        if e["event"] == "stage_finished" and e["stage"] == "update"
    )
    ends = [*begun[1:], last]
    metrics = [event["metrics"] for event in events if event.get("metrics")]
    return {
        "launch": begun[0] - found["began"],
        "evaluation": evaluated[1] - evaluated[0],  # and the probe of the layout: TRL does neither
        "seconds": [end - start for start, end in zip(begun, ends, strict=True)],
        "memory_mb": found["memory_mb"],
        "tokens": [found["rollout/tokens"] for found in metrics if "rollout/tokens" in found],
    }


def theirs(python: Path, batch: int, model: Path, arm: str, iterations: int) -> dict[str, Any]:
    """Trains with TRL; an iteration is a step of its trainer."""
    turns, beta = ARMS[arm]
    found = measure(
        [
            *(str(python), "-m", "benchmarks.trl.their_side", str(model)),
            *(f"--turns={turns}", f"--beta={beta}", f"--iterations={iterations}"),
            *(f"--batch={batch}", f"--env-config={json.dumps(ENV)}"),
        ]
    )
    said = json.loads(found["output"].splitlines()[-1])
    return {
        "launch": said["first"] - found["began"],
        "seconds": said["seconds"],
        "memory_mb": found["memory_mb"],
        "tokens": said["sampled_tokens"],
    }


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Other processes take so many cores meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats; an iteration is the median of its run after the first ones."""
    found = {
        "iteration": [statistics.median(run["seconds"][FIRST:]) for run in runs],
        **{
            name: [run[name] for run in runs]
            for name in ("launch", "evaluation", "memory_mb")
            if name in runs[0]
        },
        "sampled_tokens": [statistics.median(run["tokens"]) for run in runs],
    }
    return {
        **{name: round(statistics.median(values), 2) for name, values in found.items()},
        "iterations": [round(seconds, 2) for seconds in found["iteration"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trl", type=Path, help="Python of an environment that has TRL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=8, help="of a run")
    parser.add_argument("--batch", type=int, default=128, help="rows of TRL's forward pass")
    parser.add_argument("--busy", type=int, default=0, help="cores that others keep busy")
    parser.add_argument("--model", type=Path, help="a policy's directory, in place of a warm start")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    default = ROOT / "benchmarks" / "results" / "trl.json"
    parser.add_argument("--output", type=Path, default=default)
    options = parser.parse_args()
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        arm: {"vagen": [], "trl": []} for arm in options.arms
    }
    with tempfile.TemporaryDirectory() as scratch, busy(options.busy):
        outputs = Path(scratch)
        model = options.model
        if model is None:
            words = ("warm_start.steps=120", "trainer.total_training_steps=1")
            measure(vagen(outputs, "warm", *words))
            model = outputs / "warm" / "warm_start" / "policy"
        for repeat in range(options.repeats):
            for arm, sides in runs.items():
                name = f"{arm}-{repeat}".replace(" ", "-")
                count = options.iterations
                sides["vagen"].append(ours(outputs, name, model, arm, count))
                sides["trl"].append(theirs(options.trl, options.batch, model, arm, count))
                for side, found in sides.items():
                    print(f"{arm}, {side}: {summary(found)}", flush=True)
    trl_version = subprocess.run(
        [str(options.trl), "-c", "import trl; print(trl.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    result = {
        "unit": "seconds of an iteration of 128 episodes, and from launch to the first; medians",
        "machine": describe_machine(
            busy=options.busy, trl=trl_version, transformers=version("transformers")
        ),
        "repeats": options.repeats,
        "trl_batch": options.batch,
        "arms": {
            arm: {
                **(found := {side: summary(found) for side, found in sides.items()}),
                "trl_over_vagen": round(found["trl"]["iteration"] / found["vagen"]["iteration"], 2),
            }
            for arm, sides in runs.items()
        },
    }
    write_result(options.output, result)


if __name__ == "__main__":
    main()
