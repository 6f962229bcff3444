"""Iterations of a run driven by verl's own trainer loop (`vagen.engines.verl.runner.train`)."""

from typing import Any

from vagen.stages import progress
from vagen.stages.dispatch import begin, execute
from vagen.stages.resident import WARM_START
from vagen.stages.run import Run
from vagen.stages.session import ITERATION_STAGES
from vagen.storage import claim

ITERATE = "vagen.stages.fused:iterate"

_open: dict[str, Run] = {}


def train(run: Run) -> None:
    """All iterations of a run with levels and warm start, in verl's `run_ppo`.

    The process that verl starts for its trainer takes up the run where it stands: what is committed
    is not done again.
    """
    from vagen.engines.verl.environment import configure
    from vagen.engines.verl.mapping import is_cpu

    cpu = is_cpu(run.infra)
    variables = configure(cpu=cpu)
    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.runner import train

    config = verl_config(
        run.experiment, run.infra, run.initial_model(), cpu=cpu, environment=variables
    )
    place = run.mirror.uri if run.mirror is not None else str(run.path)
    train(config, iterate=ITERATE, arguments={"run_dir": place})


def iterate(trainer: Any, iteration: int, *, run_dir: str) -> dict[str, float]:
    """One iteration on the networks that `trainer` holds; returns its metrics."""
    run = _open.get(run_dir) or _opened(trainer, run_dir)
    metrics: dict[str, float] = {}
    for stage in ITERATION_STAGES:
        with progress.step(stage, iteration) as record:
            record.metrics = execute(run, stage, iteration=iteration)["metrics"]
        metrics |= record.metrics
    if run.mirror is not None:
        run.mirror.push_files()
    return metrics


def _opened(trainer: Any, run_dir: str) -> Run:
    from vagen.engines.verl.engine import VerlEngine

    run = _open[run_dir] = Run.open(run_dir)
    claim(run.path)
    begin(run)
    progress.configure(run.path)
    progress.describe(run.experiment.name, run.experiment.trainer.total_training_steps, done=0)
    run.engine = VerlEngine(
        run.experiment, run.initial_model(), workers=trainer, version=WARM_START
    )
    return run
