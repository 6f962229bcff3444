"""The hack of `judge_hacking.py` with a language model: the same judges, a real training.

Two runs of a tiny text model on FrozenLake from one warm start, in which a share of the expert's
state texts is one template that names every place; rollout, judge, advantages and PPO update are
those of any training.

- `open`: `judge.gate=false`. Rules pay for recall alone: the template is worth the full score in
  every state, and more than an honest reading earns.
- `guarded`: the gate, information score and repetition charge on.

The statements' weights are high against success on purpose: talk is worth more than arriving, if
talk alone is paid. What is asked: does the template take over, does success fall, and does the
alarm sound - in the first run, and not in the second.

    python benchmarks/judge_hacking_model.py [--iterations 24] [--seed 0]

writes `results/judge_hacking_model.json` and `docs/images/judge-hacking-model.png`; finished
iterations in `outputs/` are not made again.
"""

import argparse
import datetime
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from judge_hacking import RUNS, TEMPLATE
from machine import describe_machine

from vagen.envs.base import State
from vagen.envs.frozenlake.env import FrozenLakeEnv
from vagen.experiment.load import load_experiment, load_infra
from vagen.rollout.batch import TrajectoryBatch
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import build
from vagen.stages.judge import judge
from vagen.stages.rollout import rollout
from vagen.stages.update import update
from vagen.stages.warm_start import warm_start

ROOT = Path(__file__).parent.parent
TEMPLATE_SHARE = 0.3
WINDOW = 8
EXPERIMENT: dict[str, Any] = {
    "name": "judge-hacking",
    "preset": "vagen_full",
    "envs": {
        "lake": {
            "env_name": "FrozenLake",
            "env_config": {
                "render_mode": "text",
                "prompt_format": "grounding_worldmodeling",
                "prompt_detail": "brief",
                "max_actions_per_step": 1,
                "max_distance": 3,
            },
            "train_size": 600,
            "val_size": 4,
            "test_size": 8,
        }
    },
    "data": {
        "train_batch_size": 64,
        "max_prompt_length": 128,
        "max_response_length": 80,
        "max_trajectory_length": 900,
    },
    "judge": {"observation_weight": 4.0, "prediction_weight": 4.0, "alarm": {"window": WINDOW}},
    "rollout_manager": {"max_turns": 4},
    "actor_rollout_ref": {
        "model": {"path": "tiny:text"},
        "actor": {"optim": {"lr": 2.0e-4}, "ppo_mini_batch_size": 32},
        "rollout": {"temperature": 1.0, "top_p": 1.0},
    },
    "critic": {"optim": {"lr": 1.0e-3}, "ppo_mini_batch_size": 16},
    "warm_start": {"steps": 400, "batch_size": 16, "lr": 3.0e-3},
}


def templated(text: Any) -> Any:
    """`FrozenLakeEnv.state_text` that says the template in a fixed share of the states."""

    def state_text(self: FrozenLakeEnv, state: State) -> str:
        digest = hashlib.sha256(repr(sorted(state.items())).encode()).digest()
        return TEMPLATE if digest[0] < 256 * TEMPLATE_SHARE else text(self, state)

    return state_text


def make(outputs: Path, name: str, seed: int, overrides: list[str]) -> Run:
    """A run's folder, with its levels; the one that is there already, if it is."""
    folder = outputs / f"judge-hacking-{name}-{seed}"
    if folder.exists():
        return Run.open(folder)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "judge-hacking.yaml"
        path.write_text(yaml.safe_dump(EXPERIMENT))
        experiment = load_experiment(path, [f"seed={seed}", *overrides])
    infra = load_infra(None, [f"output_dir={outputs}", "device=cpu", "threads=1"])
    return Run.create(experiment, infra, folder.name)


def train(outputs: Path, name: str, seed: int, policy: Path, iterations: int) -> Run:
    """One run, iteration by iteration; goes on with one that was begun."""
    run = make(
        outputs,
        name,
        seed,
        [
            *RUNS[name],
            "warm_start.steps=0",
            f"actor_rollout_ref.model.path={policy}",
            f"trainer.total_training_steps={iterations}",
        ],
    )
    build(run)
    warm_start(run)
    for iteration in range(iterations):
        for stage in (rollout, judge, advantage, update):
            metrics = stage(run, iteration)["metrics"]
            if stage is judge:
                print(name, iteration, json.dumps(_curve(metrics)), flush=True)
    return run


def _curve(metrics: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in metrics.items() if key.startswith("judge/")}


def curves(run: Run, iterations: int) -> dict[str, list[float]]:
    """Judge score, success, share of the template and the alarm, by iteration."""
    history = run.iteration_metrics()
    found: dict[str, list[float]] = {"judge": [], "success": [], "template": [], "alarm": []}
    for iteration in range(iterations):
        batch = TrajectoryBatch.load(run.step(iteration, "judge"), kind="judge")
        texts = [
            getattr(turn.parsed, part)
            for trajectory in batch.trajectories
            for turn in trajectory.turns
            if turn.verdict is not None
            for part in ("observation", "prediction")
        ]
        row = history[iteration]
        found["judge"].append((row["judge/observation"] + row["judge/prediction"]) / 2)
        found["success"].append(row["train/success"])
        found["template"].append(float(np.mean([text == TEMPLATE for text in texts])))
        found["alarm"].append(row.get("judge/alarm", 0.0))
    return found


def figure(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Both runs side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(1, len(found), figsize=(10, 3.6), sharey=True)
    titles = {"open": "Judge without a gate", "guarded": "Gate, information, repetition"}
    names = {"judge": "judge score", "success": "success", "template": "share of the template"}
    for axis, (name, curve) in zip(axes, found.items(), strict=True):
        for key, label in names.items():
            axis.plot(curve[key], label=label)
        for iteration, alarm in enumerate(curve["alarm"]):
            if alarm:
                axis.axvline(iteration, color="red", alpha=0.25, linewidth=4)
        axis.set_title(titles[name])
        axis.set_xlabel("iteration")
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.3)
    axes[0].legend()
    drawing.suptitle("red: the alarm sounds", fontsize=9, color="red", x=0.98, ha="right")
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)


def main() -> None:
    """Trains, measures, draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", type=Path, default=ROOT / "outputs")
    options = parser.parse_args()
    outputs = options.outputs.absolute()
    outputs.mkdir(parents=True, exist_ok=True)
    plain = FrozenLakeEnv.state_text
    FrozenLakeEnv.state_text = templated(plain)
    warm = make(outputs, "warm", options.seed, [])
    build(warm)
    warm_start(warm)
    FrozenLakeEnv.state_text = plain
    policy = warm.warm_start / "policy"
    runs = {name: train(outputs, name, options.seed, policy, options.iterations) for name in RUNS}
    found = {name: curves(run, options.iterations) for name, run in runs.items()}
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "seed": options.seed,
        "iterations": options.iterations,
        "template": TEMPLATE,
        "template_share_of_warm_start": TEMPLATE_SHARE,
        "alarm_window": WINDOW,
        "runs": {
            name: {
                "alarms": int(sum(curve["alarm"])),
                **{f"{key}_first_5": round(float(np.mean(curve[key][:5])), 3) for key in curve},
                **{f"{key}_last_5": round(float(np.mean(curve[key][-5:])), 3) for key in curve},
                "curves": {k: [round(v, 4) for v in values] for k, values in curve.items()},
            }
            for name, curve in found.items()
        },
    }
    (ROOT / "benchmarks/results/judge_hacking_model.json").write_text(
        json.dumps(result, indent=2) + "\n"
    )
    figure(found, ROOT / "docs/images/judge-hacking-model.png")
    for name, row in result["runs"].items():
        print(name, {key: value for key, value in row.items() if key != "curves"})


if __name__ == "__main__":
    main()
