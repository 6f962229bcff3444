"""G10: the local engine learns on the GPU what it learns on the CPU: a tiny agent on FrozenLake."""

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import Meter, Setup
from vagen.config import ExperimentConfig, config_digest
from vagen.engines.columns import add_columns
from vagen.engines.make import configure_torch, helpers_of, make_engine
from vagen.experiment.load import load_experiment, load_infra
from vagen.judge.batch import score
from vagen.rollout.episodes import evaluation_specs, training_specs
from vagen.rollout.levels import SPLITS, draw_levels

EXPERIMENT = "frozenlake-tiny"
ITERATIONS = 8
DEVIATIONS = 2.5
"""How many standard errors of a difference the two successes may lie apart."""


def check(setup: Setup) -> dict[str, Any]:
    """Passes if success on the held-out levels is the CPU's, from the same warm start."""
    options = [option for option in setup.options if not option.startswith("infra.")]
    config = load_experiment(EXPERIMENT, options)
    folder = prepare(config, setup.scratch)
    prepared = json.loads((folder / "cpu.json").read_text())
    name = "cpu again" if setup.device == "cpu" else setup.device
    here, there = prepared["cpu"], _learn(config, folder / "policy", setup.device)
    levels = here["levels"]
    share = (here["success"][-1] + there["success"][-1]) / 2
    error = max((2 * share * (1 - share) / levels) ** 0.5, 1 / levels)
    apart = abs(here["success"][-1] - there["success"][-1])
    return {
        "passed": apart <= DEVIATIONS * error,
        "iterations": _iterations(config),
        "difference": apart,
        "standard_error": error,
        "phases": prepared["phases"],
        "devices": {"cpu": here, name: there},
    }


def prepare(config: ExperimentConfig, scratch: Path) -> Path:
    """The part for which no GPU is needed; made once for each experiment.

    Returns:
        A folder in `scratch` with the warm-started agent (`policy`) and what it learns on the CPU
        (`cpu.json`).
    """
    from vagen.engines.local.supervised import learn_from_experts
    from vagen.models.loading import load_model
    from vagen.models.tiny_policy import build_tiny_policy
    from vagen.stages.warm_start import ExpertEpisodes

    folder = scratch / f"g10-{config_digest(config)[:12]}"
    if (folder / "cpu.json").exists():
        return folder
    infra, meter = load_infra(None, ["device=cpu"]), Meter("cpu")
    configure_torch(infra)
    with meter.phase("warm start"):
        levels = draw_levels(config, dict.fromkeys(SPLITS))
        build_tiny_policy(config, levels, folder / "built")
        model = load_model(folder / "built")
        experts = ExpertEpisodes(config, levels, model.processor)
        learn_from_experts(model, experts.batch, config.warm_start, helpers=helpers_of(infra))
        model.save(folder / "policy")
    shutil.rmtree(folder / "built")
    course = _learn(config, folder / "policy", "cpu")
    (folder / "cpu.json").write_text(json.dumps({"phases": meter.report(), "cpu": course}))
    return folder


def _iterations(config: ExperimentConfig) -> int:
    return min(ITERATIONS, config.trainer.total_training_steps)


def _learn(config: ExperimentConfig, policy: Path, device: str) -> dict[str, Any]:
    """Success on the test levels before and after the iterations."""
    levels, iterations = draw_levels(config, dict.fromkeys(SPLITS)), _iterations(config)
    infra = load_infra(None, [f"device={device}"])
    engine = make_engine(config, infra, str(policy), version="warm start")
    meter = Meter(device)
    success, metrics = [], {}
    specs = evaluation_specs(config, levels, "test")
    sampling = config.actor_rollout_ref.rollout
    for iteration in range(iterations + 1):
        if iteration in (0, iterations):
            played, _ = engine.play(specs, sampling=sampling.val_kwargs, split="test")
            success.append(sum(trajectory.success for trajectory in played) / len(played))
        if iteration == iterations:
            break
        with meter.phase("rollout"):
            trajectories, images = engine.play(
                training_specs(config, levels, iteration), sampling=sampling, split="train"
            )
        score(config, trajectories)
        with meter.phase("advantage"):
            metrics = add_columns(config, engine, trajectories, images)
        rows = [row for t in trajectories for row in t.rows if row.loss_mask.any()]
        with meter.phase("update"):
            engine.update(rows, images, seed=iteration)
    engine.close()
    agreement = {name: value for name, value in metrics.items() if name.startswith("rollout/")}
    return {
        "success": success,
        "levels": len(specs),
        "agreement_at_the_end": agreement,
        "phases": meter.report(),
    }
