"""Evaluates a run's newest policy on held-out levels, even during training."""

from typing import Any

from vagen.run.folder import result
from vagen.run.run import Run
from vagen.stages.evaluate import evaluate_model
from vagen.stages.tracking import log_evaluation


def measure(run: Run, name: str, split: str, count: int = 0) -> dict[str, Any]:
    """Evaluates the newest policy with the local engine in this process.

    Args:
        run: The run.
        name: Unique name of the evaluation.
        split: `val` or `test`.
        count: Levels per environment; 0 for all.

    Raises:
        ConfigError: The run has no policy yet.
    """
    folder = run.evaluation(name)
    infra = run.infra.model_copy(update={"engine": "local"})
    evaluate_model(run.newest_policy(), run.experiment, infra, split, count or None, folder)
    log_evaluation(run, name)
    return result(folder)
