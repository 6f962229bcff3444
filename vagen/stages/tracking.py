"""What the stages tell MLflow: one MLflow run per pipeline run."""

from pathlib import Path
from typing import TYPE_CHECKING

from vagen.run import layout
from vagen.run.reading import result
from vagen.run.run import Run
from vagen.storage import read_manifest

if TYPE_CHECKING:
    from vagen.tracking import Tracker


def tracker_of(run: Run) -> "Tracker":
    """The run's tracker: started at first use, attached to afterwards.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    if run.tracker is None:
        from vagen.tracking import Tracker

        file = run.path / layout.MLFLOW_RUN
        output_dir = Path(run.infra.output_dir).absolute()
        uri = run.infra.mlflow_tracking_uri
        if file.exists():
            run.tracker = Tracker.attach(
                run_id=file.read_text().strip(), run_dir=run.path, output_dir=output_dir, uri=uri
            )
        else:
            parent = run.infra.mlflow_parent_run
            run.tracker = Tracker.start(
                experiment=run.experiment.trainer.project_name,
                run_name=run.name,
                run_dir=run.path,
                output_dir=output_dir,
                uri=uri,
                tags={
                    "vagen.config_digest": run.config_digest,
                    "mlflow.note.content": _about(run),
                    **({"mlflow.parentRunId": parent} if parent else {}),
                },
            )
            file.write_text(run.tracker.run_id + "\n")
            run.tracker.log_config(run.experiment)
            run.tracker.log_artifact(run.path / layout.EXPERIMENT, "config")
            run.tracker.log_artifact(run.path / layout.INFRA, "config")
    return run.tracker


def _about(run: Run) -> str:
    """What MLflow's page of the run begins with."""
    experiment = run.experiment
    envs = ", ".join(sorted({spec.env_name for spec in experiment.envs.values()}))
    where = str(run.path) if run.mirror is None else run.mirror.uri
    return (
        f"{experiment.preset or 'no preset'} on {envs}, "
        f"{experiment.trainer.total_training_steps} iterations, seed {experiment.seed}. `{where}`"
    )


def log_iteration(run: Run, iteration: int, metrics: dict[str, float]) -> None:
    """Records the metrics of a finished iteration."""
    tracker_of(run).log_metrics(metrics, step=iteration)


def log_evaluation(run: Run, name: str) -> None:
    """Records an evaluation and its report."""
    tracker = tracker_of(run)
    step = run.last_iteration + 1
    if name == layout.WARM_START:
        step = 0
    elif name.startswith("iteration-"):
        step = int(name.rpartition("-")[2])
    folder = run.fetch(run.evaluation(name))
    tracker.log_metrics(result(folder)["metrics"], step=step)
    tracker.log_artifact(folder / layout.REPORT, f"evaluations/{name}")
    tracker.log_artifact(folder / layout.RESULTS, f"evaluations/{name}")


def log_all(run: Run) -> None:
    """Records what is committed and was not told: a process was killed in between."""
    for iteration in range(run.finished_iterations):
        history = read_manifest(run.step(iteration, "update")).payload["history"]
        tracker_of(run).log_metrics(history, step=iteration)
