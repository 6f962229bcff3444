"""G10: the local engine learns on the GPU what it learns on the CPU: a tiny agent on FrozenLake."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.common import Meter, Setup
from vagen.engines.columns import add_columns
from vagen.engines.local.engine import LocalEngine
from vagen.experiment.load import load_experiment, load_infra
from vagen.judge.batch import score
from vagen.rollout.episodes import evaluation_specs, training_specs
from vagen.run.run import Run
from vagen.stages.build import build, load_levels
from vagen.stages.warm_start import warm_start

EXPERIMENT = "frozenlake-tiny"
ITERATIONS = 8
DEVIATIONS = 2.5
"""How many standard errors of a difference the two successes may lie apart."""


def check(setup: Setup) -> dict[str, Any]:
    """Passes if success on the held-out levels is the CPU's, from the same warm start."""
    options = [option for option in setup.options if not option.startswith("infra.")]
    config = load_experiment(EXPERIMENT, options)
    iterations = min(ITERATIONS, config.trainer.total_training_steps)
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        infra = load_infra(None, [f"output_dir={folder}", f"device={setup.device}"])
        run = Run.create(config, infra, name="learning")
        build(run)
        meter = Meter(setup.device)
        with meter.phase("warm start"):
            warm_start(run)
        for device in ("cpu", setup.device):
            name = device if device not in found else f"{device} again"
            found[name] = _learn(run, Path(run.initial_model()), device, iterations)
    (_, here), (_, there) = found.items()
    levels = here["levels"]
    share = (here["success"][-1] + there["success"][-1]) / 2
    error = max((2 * share * (1 - share) / levels) ** 0.5, 1 / levels)
    apart = abs(here["success"][-1] - there["success"][-1])
    return {
        "passed": apart <= DEVIATIONS * error,
        "iterations": iterations,
        "difference": apart,
        "standard_error": error,
        "phases": meter.report(),
        "devices": found,
    }


def _learn(run: Run, model: Path, device: str, iterations: int) -> dict[str, Any]:
    """Success on the test levels before and after so many iterations."""
    config, levels = run.experiment, load_levels(run)
    engine = LocalEngine(config, model, device=torch.device(device))
    meter = Meter(device)
    success = []
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
    agreement = {name: value for name, value in metrics.items() if name.startswith("rollout/")}
    return {
        "success": success,
        "levels": len(specs),
        "agreement_at_the_end": agreement,
        "phases": meter.report(),
    }
