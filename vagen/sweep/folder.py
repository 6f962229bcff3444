"""The sweep's folder: its configuration and results.

sweep.json       the sweep, and a digest of its experiments
study.db         its trials (`vagen.sweep.study`)
runs/, logs/     of the trials on this machine (`vagen.sweep.processes`)
mlflow_run_id    id of their parent MLflow run
results.json     results of the trials
compare/         the page that compares them
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vagen.compare import compare
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.base import ConfigError
from vagen.run import layout
from vagen.storage import write_text
from vagen.sweep.schema import EXPERIMENT, SweepConfig
from vagen.sweep.study import Trial
from vagen.tracking import Tracker

SWEEP, RESULTS = "sweep.json", "results.json"
COMPARISON = "compare"
LOGS = "logs"
"""Output of each trial."""


def open_folder(folder: Path, config: SweepConfig, digest: str) -> None:
    """Starts a sweep in a folder, or checks that it has the same one (`digest`: of `check_sweep`).

    Raises:
        ConfigError: It has another sweep, or is a run's folder.
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
            f"{folder} has a different sweep: use the file it was started with, or choose "
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
    """The parent MLflow run of the trials' runs.

    Args:
        folder: The sweep's folder.
        config: The sweep.
        infra: Location of MLflow; `MLFLOW_TRACKING_URI` takes precedence for a cluster,
            whose server may not be reachable from here.
        example: An experiment of the sweep.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    file = folder / layout.MLFLOW_RUN
    forwarded = os.environ.get("MLFLOW_TRACKING_URI") if infra.kubernetes else None
    where: dict[str, Any] = {
        "run_dir": folder,
        "output_dir": folder.parent,
        "uri": forwarded or infra.mlflow_tracking_uri,
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


def write_results(folder: Path, trials: Sequence[Trial]) -> Path:
    """Writes the results of the trials."""
    rows = [_row(trial, folder / layout.RUNS / trial.name) for trial in trials]
    return _write(folder / RESULTS, {"trials": rows})


def compare_trials(folder: Path, config: SweepConfig, trials: Sequence[Trial]) -> list[Path]:
    """Compares the trials that did not fail over seeds, on a page per experiment with its levels.

    Raises:
        ComparisonError: The runs cannot be compared, e.g. two have the same values.
    """
    runs: dict[str, list[Path]] = {}
    for trial in trials:
        if trial.state in ("complete", "pruned"):
            experiment = Path(str(trial.parameters.get(EXPERIMENT) or config.experiment)).stem
            runs.setdefault(experiment, []).append(folder / layout.RUNS / trial.name)
    return [
        compare(
            found,
            by=[key for key in config.parameters if key not in (EXPERIMENT, "seed")],
            folder=folder / COMPARISON / (experiment if EXPERIMENT in config.parameters else ""),
            title=f"{config.name}: {experiment}",
        )
        for experiment, found in runs.items()
    ]


def _row(trial: Trial, path: Path) -> dict[str, Any]:
    """Results of a trial; `test` and `paired_gain` exist if it is complete."""
    row: dict[str, Any] = {
        "number": trial.number,
        "run": trial.name,
        "parameters": dict(trial.parameters),
        "state": trial.state,
        "success": trial.value,
        "validations": {str(step): value for step, value in sorted(trial.validations.items())},
        "reason": trial.reason,
    }
    if trial.state == "complete":
        summary = json.loads((path / layout.SUMMARY).read_text())
        row |= {"test": summary["final"]["success"], "paired_gain": summary["paired_gain"]}
        row |= {key: summary[key] for key in ("iterations", "config_digest", "seconds")}
    return row


def _write(path: Path, content: Any) -> Path:
    return write_text(path, json.dumps(content, indent=2) + "\n")
