"""The sweep's folder: what it was begun with, and what came of it.

sweep.json       the sweep, and a digest of its experiments
study.db         its trials (`vagen.sweep.study`)
runs/, logs/     of the trials on this machine (`vagen.sweep.processes`)
mlflow_run_id    the MLflow run that is the parent of theirs
results.json     the trials with what they achieved
compare.html     the page that compares them
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.base import ConfigError
from vagen.run import layout
from vagen.run.run import Run
from vagen.storage import storage_errors
from vagen.sweep.schema import SweepConfig
from vagen.sweep.study import Trial
from vagen.tracking import Tracker

SWEEP, RESULTS = "sweep.json", "results.json"


def open_folder(folder: Path, config: SweepConfig, digest: str) -> None:
    """Begins a sweep in a folder, or finds it begun with the same words.

    Args:
        folder: Exists.
        config: The sweep.
        digest: Of its experiments (`vagen.sweep.schema.check_sweep`).

    Raises:
        ConfigError: Another sweep was begun there, or it is a run's folder.
        StorageError: It cannot be written.
    """
    wanted = {"sweep": config.model_dump(mode="json"), "experiments": digest}
    path = folder / SWEEP
    if (folder / layout.EXPERIMENT).exists():
        raise ConfigError(f"{folder} is a run's folder: choose another --name for the sweep")
    if not path.exists():
        _write(path, wanted)
        return
    begun = json.loads(path.read_text())
    if begun["sweep"] != wanted["sweep"]:
        raise ConfigError(
            f"{folder} holds a sweep of other words: give those that it was begun with, or choose "
            "another --name"
        )
    if begun["experiments"] != digest:
        raise ConfigError(
            f"an experiment of the sweep in {folder} was changed since it began: restore its file, "
            "or choose another --name"
        )


def parent_run(
    folder: Path, config: SweepConfig, infra: InfraConfig, example: ExperimentConfig
) -> Tracker:
    """The MLflow run whose children are the trials' runs.

    Args:
        folder: The sweep's.
        config: The sweep.
        infra: Where MLflow is.
        example: An experiment of the sweep.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    file = folder / layout.MLFLOW_RUN
    where: dict[str, Any] = {
        "run_dir": folder,
        "output_dir": Path(infra.output_dir).absolute(),
        "uri": infra.mlflow_tracking_uri,
    }
    if file.exists():
        return Tracker.attach(run_id=file.read_text().strip(), **where)
    tracker = Tracker.start(
        experiment=example.trainer.project_name,
        run_name=config.name,
        tags={"mlflow.note.content": f"A sweep of {config.size} trials. `{folder}`"},
        **where,
    )
    file.write_text(tracker.run_id + "\n")
    tracker.log_config(config)
    return tracker


def write_results(folder: Path, trials: Sequence[Trial], runs: Mapping[int, Run]) -> Path:
    """Writes what the trials achieved.

    Args:
        folder: The sweep's.
        trials: All of it.
        runs: Those that were made, by the trial's number.
    """
    rows = [_row(trial, runs.get(trial.number)) for trial in trials]
    return _write(folder / RESULTS, {"trials": rows})


def _row(trial: Trial, run: Run | None) -> dict[str, Any]:
    summary = run.path / layout.SUMMARY if run is not None else None
    found = json.loads(summary.read_text()) if summary is not None and summary.exists() else {}
    return {
        "number": trial.number,
        "parameters": dict(trial.parameters),
        "state": trial.state,
        "success": trial.value,
        "validations": {str(step): value for step, value in sorted(trial.validations.items())},
        "test": found["final"]["success"] if trial.state == "complete" and found else None,
        "paired_gain": found.get("paired_gain") if trial.state == "complete" else None,
        "iterations": run.finished_iterations if run is not None else 0,
        "reason": trial.reason,
        "run": trial.made,
    }


def _write(path: Path, content: Any) -> Path:
    partial = path.with_suffix(".partial")
    with storage_errors(path.parent):
        partial.write_text(json.dumps(content, indent=2) + "\n")
        partial.replace(path)
    return path
