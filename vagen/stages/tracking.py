"""Sends metrics of the stages to MLflow and additional trackers; one MLflow run per run."""

import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.config.base import ConfigError
from vagen.experiment.load import load_experiment, named_files
from vagen.run import layout
from vagen.run.folder import committed, result
from vagen.run.run import Run
from vagen.tracking import Tracker
from vagen.tracking.background import BackgroundTracker
from vagen.tracking.extra import open_extra_tracker
from vagen.tracking.tracker import flatten


def tracker_of(run: Run) -> BackgroundTracker:
    """The run's tracker in the background: started on first use, attached to afterwards.

    A copy of a run, or one that was moved away from its database, is recorded again with everything
    that is committed.

    Raises:
        TrackingError: MLflow is already known to be unreachable.
    """
    if run.tracker is None or run.tracker.lost:
        file = run.path / layout.MLFLOW_RUN
        known = file.read_text().strip() if file.exists() else ""
        if known and not _is_ours(run, known):
            known = ""
        run.tracker = BackgroundTracker(partial(_open, run, known))
    return run.tracker


def _open(run: Run, known: str) -> Tracker:
    """Attaches to the MLflow run of that id; starts one if it is empty."""
    where: dict[str, Any] = {
        "run_dir": run.path,
        "output_dir": Path(run.infra.output_dir),
        "uri": run.infra.mlflow_tracking_uri,
    }
    if known:
        tracker = Tracker.attach(run_id=known, **where)
    else:
        parent = run.infra.mlflow_parent_run
        tracker = Tracker.start(
            experiment=run.experiment.trainer.project_name,
            run_name=_name(run),
            tags={
                "vagen.config_digest": run.config_digest,
                "vagen.run": run.name,
                "vagen.changed": changed_options(run),
                "mlflow.note.content": _about(run),
                **({"mlflow.parentRunId": parent} if parent else {}),
            },
            **where,
        )
        (run.path / layout.MLFLOW_RUN).write_text(tracker.run_id + "\n")
        tracker.log_config(run.experiment)
        tracker.log_artifact(run.path / layout.EXPERIMENT, "config")
        tracker.log_artifact(run.path / layout.INFRA, "config")
        for metrics, step in _recorded(run):
            tracker.log_metrics(metrics, step=step)
    _open_extra_trackers(run, tracker)
    return tracker


def _open_extra_trackers(run: Run, tracker: Tracker) -> None:
    """Opens the trackers of `infra.trackers` and sends committed metrics."""
    tracker.extra_trackers = [
        open_extra_tracker(
            name, run_dir=run.path, run_name=run.name, project=run.experiment.trainer.project_name
        )
        for name in run.infra.trackers
    ]
    for extra in tracker.extra_trackers:
        extra.log_config(run.experiment.model_dump(mode="json"))
        for metrics, step in _recorded(run):
            extra.log_metrics(metrics, step)


def _is_ours(run: Run, run_id: str) -> bool:
    """Whether the MLflow run in a run's folder belongs to it, and not to another folder."""
    uri = run.infra.mlflow_tracking_uri
    if uri is not None and run.mirror is not None:
        return True
    folder = Tracker.folder_of(run_id, output_dir=Path(run.infra.output_dir), uri=uri)
    if folder is None:
        return uri is not None  # report an error of a server
    another = folder / layout.MLFLOW_RUN
    if folder == run.path or not another.is_file() or another.read_text().strip() != run_id:
        return True
    progress.note(f"this is a copy of {folder}: it gets a separate MLflow run")
    return False


def _name(run: Run) -> str:
    """The run's name; its distinguishing part comes first, since lists truncate names."""
    experiment = run.experiment
    return f"{experiment.preset or 'no preset'}, seed {experiment.seed}: {run.name}"


def _about(run: Run) -> str:
    """Description for MLflow's page of the run."""
    experiment = run.experiment
    envs = ", ".join(sorted({spec.env_name for spec in experiment.envs.values()}))
    where = str(run.path) if run.mirror is None else run.mirror.uri
    return (
        f"{experiment.preset or 'no preset'} on {envs}, "
        f"{experiment.trainer.total_training_steps} iterations, seed {experiment.seed}. `{where}`"
    )


def changed_options(run: Run) -> str:
    """Options whose values differ from those of the experiment's file, as `key=value` pairs.

    Empty if no file of that name is at hand.
    """
    file = named_files("experiments").get(run.experiment.name)
    if file is None:
        return ""
    try:
        shipped = flatten(load_experiment(file, check=False).model_dump(mode="json"))
    except ConfigError:
        return ""
    given = flatten(run.experiment.model_dump(mode="json"))
    changed = [f"{key}={value}" for key, value in given.items() if shipped.get(key) != value]
    return textwrap.shorten(" ".join(changed), 1_000, placeholder=" …")


def log_iteration(run: Run, iteration: int, metrics: dict[str, float]) -> None:
    """Records the metrics of a finished iteration."""
    tracker_of(run).tell(Tracker.log_metrics, metrics, step=iteration)


def log_evaluation(run: Run, name: str) -> None:
    """Records an evaluation and its report."""
    tracker = tracker_of(run)
    folder = run.fetch(run.evaluation(name))
    tracker.tell(Tracker.log_metrics, result(folder)["metrics"], step=_step_of(run, name))
    tracker.tell(Tracker.log_artifact, folder / layout.REPORT, f"evaluations/{name}")
    tracker.tell(Tracker.log_artifact, folder / layout.RESULTS, f"evaluations/{name}")
    if name in (steps.WARM_START, layout.FINAL):
        tracker.tell(Tracker.log_episodes, folder, name)


def log_all(run: Run) -> None:
    """Records committed results that are missing because a process was killed."""
    for metrics, step in _recorded(run):
        tracker_of(run).tell(Tracker.log_metrics, metrics, step=step)


def _recorded(run: Run) -> Iterator[tuple[dict[str, float], int]]:
    """All committed metrics with their steps."""
    count = run.finished_iterations
    names = (steps.WARM_START, *map(layout.validation, range(1, count + 1)), layout.FINAL)
    for row in run.iteration_metrics():
        yield {k: v for k, v in row.items() if k != "iteration"}, int(row["iteration"])
    for name in names:
        if committed(run.evaluation(name)) is not None:
            yield result(run.evaluation(name))["metrics"], _step_of(run, name)


def _step_of(run: Run, name: str) -> int:
    """Step of an evaluation: the number of iterations of its policy."""
    if name == steps.WARM_START:
        return 0
    iteration = layout.validated_iteration(name)
    return (run.last_iteration if iteration is None else iteration) + 1
