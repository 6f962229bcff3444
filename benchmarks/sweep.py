"""Does a sweep that is killed end as one that is left alone: 3 presets, 3 seeds, 2 environments.

    python benchmarks/sweep.py

runs 18 small trainings undisturbed, and the same 18 in a sweep whose process gets SIGKILL in the
middle of a training and is started again. Writes `benchmarks/results/sweep.json`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import yaml
from machine import describe_machine, header

from vagen.progress import read_events
from vagen.storage import read_manifest

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = {"lake": "FrozenLake", "boxes": "Sokoban"}
PRESETS = ["vagen_full", "vagen_base", "token_ppo"]
SAME = ("parameters", "state", "success", "validations", "test", "paired_gain", "config_digest")


def experiment(name: str, env_name: str) -> dict[str, Any]:
    """A training of seconds: two iterations of eight episodes in text."""
    env_config = {"render_mode": "text", "prompt_detail": "brief", "max_actions_per_step": 1}
    levels = {"train_size": 24, "val_size": 4, "test_size": 6}
    return {
        "name": name,
        "envs": {"game": {"env_name": env_name, "env_config": env_config, **levels}},
        "data": {
            "train_batch_size": 8,
            "max_prompt_length": 256,
            "max_response_length": 48,
            "max_trajectory_length": 640,
        },
        "rollout_manager": {"max_turns": 2},
        "actor_rollout_ref": {
            "model": {"path": "tiny:text"},
            "actor": {"optim": {"lr": 1.0e-3}, "ppo_mini_batch_size": 4},
            "rollout": {"temperature": 1.0},
        },
        "critic": {"optim": {"lr": 1.0e-3}},
        "warm_start": {"steps": 8, "batch_size": 4},
        "trainer": {"total_training_steps": 2, "test_freq": 1},
    }


def sweep(place: Path, name: str, jobs: int) -> "subprocess.Popen[bytes]":
    """Begins a sweep, or goes on with it."""
    words = ["sweep", "sweep.yaml", "--name", name, "--jobs", str(jobs), "infra.threads=1"]
    return subprocess.Popen([sys.executable, "-m", "vagen.cli.main", *words], cwd=place)


def finished_steps(run: Path) -> Counter[tuple[str, int | None, str | None]]:
    """How often each step of a run was done; closing a run may be done again."""
    return Counter(
        (event["stage"], event["iteration"], event.get("label"))
        for event in read_events(run / "events.jsonl")
        if event["event"] == "stage_finished" and event["stage"] != "finalize"
    )


def complete(folder: Path) -> list[str]:
    """Names of the trials that the sweep has recorded as done."""
    storage = f"sqlite:///{folder / 'study.db'}"
    study = optuna.load_study(study_name=folder.name, storage=storage)
    trials = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    return [f"{folder.name}-{trial.number:03d}" for trial in trials]


def kill_in_the_middle(process: "subprocess.Popen[bytes]", folder: Path, after: int) -> None:
    """Kills the sweep's process in an iteration once so many trials are done."""
    while True:
        assert process.poll() is None, "the sweep ended before it was killed"
        whole = len(list(folder.glob("runs/*/summary.json")))
        if whole >= after and any(
            (run / "iterations").exists() and not (run / "evaluations" / "final").exists()
            for run in folder.glob(f"runs/{folder.name}-*")
        ):
            process.kill()
            process.wait()
            return
        time.sleep(0.2)


def digests(run: Path) -> dict[str, str]:
    """Digest of everything that was committed, but the registration, which names an MLflow run."""
    return {
        path.parent.relative_to(run).as_posix(): read_manifest(path.parent).digest
        for path in sorted(run.rglob("manifest.json"))
        if not path.is_relative_to(run / "registration")
    }


def results(folder: Path) -> list[dict[str, Any]]:
    """The trials of a sweep."""
    return json.loads((folder / "results.json").read_text())["trials"]


def timed(process: "subprocess.Popen[bytes]") -> float:
    """Seconds until it ends, which it must do well."""
    begun = time.monotonic()
    assert process.wait() == 0, f"exit code {process.returncode}"
    return round(time.monotonic() - begun, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kill-after", type=int, default=7, help="trials that are done by then")
    parser.add_argument("--note", default="", help="how the machine was used meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, env_name in ENVIRONMENTS.items():
            (place / f"{name}.yaml").write_text(yaml.safe_dump(experiment(name, env_name)))
        varied = {
            "experiment": [f"{name}.yaml" for name in ENVIRONMENTS],
            "preset": PRESETS,
            "seed": "0-2",
        }
        tree = {"name": "sweep", "parameters": varied}
        (place / "sweep.yaml").write_text(yaml.safe_dump(tree))
        outputs = place / "outputs"
        seconds = timed(sweep(place, "alone", options.jobs))
        killed, alone = outputs / "killed", outputs / "alone"
        kill_in_the_middle(sweep(place, "killed", options.jobs), killed, options.kill_after)
        done = complete(killed)
        logs = {name: (killed / "runs" / name / "events.jsonl").read_bytes() for name in done}
        begun = len(list((killed / "runs").glob("killed-*")))
        resumed = timed(sweep(place, "killed", options.jobs))
        pairs = [
            (a, b, digests(alone / "runs" / a["run"]), digests(killed / "runs" / b["run"]))
            for a, b in zip(results(alone), results(killed), strict=True)
        ]
        steps = [finished_steps(killed / "runs" / b["run"]) for _, b, _, _ in pairs]
        result = {
            **header(options.note),
            "machine": describe_machine(),
            "presets": PRESETS,
            "environments": list(ENVIRONMENTS.values()),
            "seeds": 3,
            "trials": len(pairs),
            "jobs": options.jobs,
            "done_when_killed": len(done),
            "at_work_when_killed": begun - len(done),
            "done_trials_run_again": sum(
                (killed / "runs" / name / "events.jsonl").read_bytes() != log
                for name, log in logs.items()
            ),
            "steps": sum(step.total() for step in steps),
            "steps_done_twice": sum(step.total() - len(step) for step in steps),
            "same_results": sum(all(a[key] == b[key] for key in SAME) for a, b, _, _ in pairs),
            "same_digests": sum(first == second for _, _, first, second in pairs),
            "folders_compared": sum(len(first) for _, _, first, _ in pairs),
            "different_experiments": len({a["config_digest"] for a, _, _, _ in pairs}),
            "pages": sorted(
                path.relative_to(outputs).as_posix()
                for path in outputs.glob("killed/compare/*/index.html")
            ),
            "seconds": {"alone": seconds, "after_the_kill": resumed},
            "results": [{key: a[key] for key in SAME} for a, _, _, _ in pairs],
        }
    path = ROOT / "benchmarks" / "results" / "sweep.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
