"""Records an evaluation in MLflow: a child run per row, and a parent run with the table."""

import hashlib
from dataclasses import asdict
from pathlib import Path

from vagen.config.evaluation_options import EvaluationConfig
from vagen.config.infra import InfraConfig
from vagen.evaluation.evaluate import PAGE, ROWS, TABLE, Evaluated
from vagen.evaluation.rows import EvaluationRow
from vagen.evaluation.table import Line
from vagen.run import layout
from vagen.run.folder import read_results
from vagen.storage import read_manifest
from vagen.tracking import Tracker

FOLDER = "mlflow"
"""File of the evaluation with its MLflow runs by row and digest, and what they lack."""
DONE = "done"


def record(evaluated: Evaluated, options: EvaluationConfig, infra: InfraConfig) -> None:
    """Records results next to the trainings of the same project.

    Skips recorded rows; a replayed row becomes a new run. Its levels are the run's data set: rows
    with equal digests of data sets played the same levels.

    Raises:
        TrackingError: MLflow cannot be reached; a repeated call continues.
    """
    place = evaluated.folder / FOLDER
    project = evaluated.rows[0].config.trainer.project_name
    about = f"{len(evaluated.rows)} rows, {options.levels} levels. `{evaluated.folder}`"
    parent = _open(place / "all", infra, project, f"evaluation: {options.name}", about)
    lines = {(line.environment, line.model): line for line in evaluated.lines}
    for row in evaluated.rows:
        named = row.folder.relative_to(evaluated.folder / ROWS)
        own = place / ROWS / named / read_manifest(row.folder).digest[:12]
        line = lines[row.environment, row.entry.label]
        if not (own / DONE).exists():
            _record_row(own, row, line, options, infra, parent.run_id)
            (own / DONE).touch()
    for file in (PAGE, TABLE):
        parent.log_artifact(evaluated.folder / file)
    parent.finish()


def _record_row(
    place: Path,
    row: EvaluationRow,
    line: Line,
    options: EvaluationConfig,
    infra: InfraConfig,
    parent: str,
) -> None:
    name = f"{line.model} on {line.environment}"
    project = row.config.trainer.project_name
    tracker = _open(place, infra, project, name, f"`{row.folder}`", parent)
    facts = {"model": line.spec, "environment": line.environment, "levels": options.levels}
    tracker.log_config({**facts, "count": line.levels, "attempts": options.attempts})
    by_level = read_results(row.folder)["by_level"]
    tracker.log_dataset(
        line.environment,
        digest=hashlib.sha256("".join(sorted(by_level)).encode()).hexdigest()[:16],
        source={name: spec.env_config for name, spec in row.config.envs.items()},
        rows=line.levels,
    )
    low, high = line.ci95 or (None, None)
    used = asdict(line.tokens) if line.tokens is not None else {}
    found = {
        **{"success_low": low, "success_high": high, "failed": line.failed},
        **{"unplayed": line.unplayed, "cost": line.cost, "cost_per_solved": line.cost_per_solved},
        **{f"{kind}_tokens": count for kind, count in used.items()},
    }
    metrics = read_manifest(row.folder).payload["metrics"]
    tracker.log_metrics(metrics | {f"evaluation/{key}": x for key, x in found.items()}, step=0)
    tracker.log_artifact(row.folder / layout.REPORT)
    tracker.log_episodes(row.folder, name)
    tracker.finish()


def _open(
    place: Path, infra: InfraConfig, project: str, name: str, about: str, parent: str | None = None
) -> Tracker:
    """The MLflow run of a folder."""
    output_dir, uri = Path(infra.output_dir), infra.mlflow_tracking_uri
    file = place / layout.MLFLOW_RUN
    if file.exists():
        run_id = file.read_text().strip()
        return Tracker.attach(run_id=run_id, run_dir=place, output_dir=output_dir, uri=uri)
    tags = {"mlflow.note.content": about} | ({"mlflow.parentRunId": parent} if parent else {})
    tracker = Tracker.start(
        experiment=project, run_name=name, run_dir=place, output_dir=output_dir, uri=uri, tags=tags
    )
    place.mkdir(parents=True, exist_ok=True)
    file.write_text(tracker.run_id + "\n")
    return tracker
