"""What the stages tell MLflow: one MLflow run per pipeline run."""

from pathlib import Path
from typing import TYPE_CHECKING

from vagen.stages.run import Run

if TYPE_CHECKING:
    from vagen.tracking import Tracker

RUN_ID = "mlflow_run_id"
"""File of the run's folder that holds the MLflow run's id."""


def tracker_of(run: Run) -> "Tracker":
    """The run's tracker: started at first use, attached to afterwards.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    if run.tracker is None:
        from vagen.tracking import Tracker

        file = run.path / RUN_ID
        output_dir = Path(run.infra.output_dir).absolute()
        uri = run.infra.mlflow_tracking_uri
        if file.exists():
            run.tracker = Tracker.attach(
                run_id=file.read_text().strip(), run_dir=run.path, output_dir=output_dir, uri=uri
            )
        else:
            run.tracker = Tracker.start(
                experiment=run.experiment.trainer.project_name,
                run_name=run.name,
                run_dir=run.path,
                output_dir=output_dir,
                uri=uri,
                tags={"vagen.config_digest": run.config_digest},
            )
            file.write_text(run.tracker.run_id + "\n")
            run.tracker.log_config(run.experiment)
            run.tracker.log_artifact(run.path / "config" / "experiment.yaml", "config")
            run.tracker.log_artifact(run.path / "config" / "infra.yaml", "config")
    return run.tracker


def log_iteration(run: Run, iteration: int, metrics: dict[str, float]) -> None:
    """Records the metrics of a finished iteration."""
    tracker_of(run).log_metrics(metrics, step=iteration)


def log_evaluation(run: Run, name: str, metrics: dict[str, float]) -> None:
    """Records an evaluation and its report."""
    tracker = tracker_of(run)
    step = run.last_iteration + 1
    if name == "warm_start":
        step = 0
    elif name.startswith("iteration-"):
        step = int(name.rpartition("-")[2])
    tracker.log_metrics(metrics, step=step)
    folder = run.fetch(run.evaluation(name))
    tracker.log_artifact(folder / "report.html", f"evaluations/{name}")
    tracker.log_artifact(folder / "results.json", f"evaluations/{name}")
