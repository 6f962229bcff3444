"""Writes the summary and the curves of a run and closes its MLflow run."""

import json
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.report.curves import Mark, write_curves
from vagen.run import layout
from vagen.run.folder import committed, extensions, read_results
from vagen.run.run import Run
from vagen.run.spent import spent, step_seconds, working_seconds
from vagen.stages.tracking import log_all, tracker_of
from vagen.storage import CorruptArtifact, write_whole
from vagen.tracking import Tracker, paired_bootstrap
from vagen.tracking.tracker import EndStatus

CANCELLED = "CANCELLED"
"""Kubeflow's state of a cancelled pipeline."""


def finalize(run: Run, state: str = "", message: str = "") -> dict[str, Any]:
    """Writes `summary.json` and the learning curves, and closes the MLflow run.

    A run is finished when its model is registered, whatever the pipeline's state.

    Args:
        run: The run.
        state: Final state of the pipeline, in Kubeflow's terms.
        message: Error message of a failed pipeline.

    Raises:
        CorruptArtifact: An evaluation was changed; the MLflow run is still closed.
    """
    finished = run.is_current(run.registration)
    status: EndStatus = "FINISHED" if finished else "KILLED" if state == CANCELLED else "FAILED"
    summary = curves = problem = None
    try:
        summary, curves = summarize(run), write_run_curves(run)
    except CorruptArtifact as error:
        status, problem = "FAILED", error
    progress.event("run_ended", status=status, state=state, message=message or str(problem or ""))
    being_opened = run.tracker is not None and not run.tracker.lost
    if being_opened or (run.path / layout.MLFLOW_RUN).exists():
        tracker = tracker_of(run)
        log_all(run)
        tracker.tell(Tracker.log_metrics, spent(run), step=run.last_iteration + 1)
        if curves is not None:
            tracker.tell(Tracker.log_artifact, curves)
        if summary is not None:
            tracker.tell(Tracker.log_artifact, run.path / layout.SUMMARY)
            gain, (low, high) = summary["paired_gain"]["gain"], summary["paired_gain"]["ci95"]
            tracker.tell(Tracker.set_tag, "vagen.gain", f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]")
        tracker.tell(Tracker.finish, status)
        tracker.close()
    if problem is not None:
        raise problem
    return {"uri": str(run.path), "sha256": "", "metrics": {}}


def summarize(run: Run) -> dict[str, Any] | None:
    """Writes `summary.json` if both evaluations exist; returns its content."""
    before, after = run.evaluation(steps.WARM_START), run.evaluation(layout.FINAL)
    if committed(before) is None or not run.is_current(after):
        return None
    start, final = read_results(run.fetch(before)), read_results(run.fetch(after))
    shared = sorted(start["by_level"].keys() & final["by_level"].keys())
    paired = paired_bootstrap(
        [start["by_level"][level] for level in shared],
        [final["by_level"][level] for level in shared],
        seed=run.experiment.seed,
    )
    registration: dict[str, Any] = {}
    if run.is_current(run.registration):
        registration = json.loads((run.fetch(run.registration) / "registration.json").read_text())
    summary = {
        "experiment": run.experiment.name,
        "preset": run.experiment.preset,
        "seed": run.experiment.seed,
        "config_digest": run.config_digest,
        "warm_start": _part(start),
        "final": _part(final) | {"iteration": run.final_iteration + 1},
        "levels": len(shared),
        "paired_gain": {"gain": paired.gain, "ci95": list(paired.ci95)},
        "iterations": run.finished_iterations,
        "extended": extensions(run.path),
        "stopped_early": stop.reason if (stop := run.stop) else None,
        "seconds": _seconds(run),
        "gpu_hours": spent(run).get("run/gpu_hours", 0.0),
        "cost": spent(run).get("run/cost"),
        "model_uri": registration.get("model_uri"),
        "alias": registration.get("alias"),
        "mlflow_run_id": registration.get("mlflow_run_id"),
    }
    with write_whole(run.path / layout.SUMMARY) as partial:
        partial.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def _part(results: dict[str, Any]) -> dict[str, Any]:
    return {key: results[key] for key in ("success", "ci95", "levels", "split")}


def _seconds(run: Run) -> dict[str, float]:
    """Seconds per step and in total."""
    events = progress.read_events(run.events)
    return {
        **{stage: round(value, 1) for stage, value in step_seconds(events).items()},
        "total": round(working_seconds(events), 1),
    }


def write_run_curves(run: Run) -> Path | None:
    """Draws the learning curves; None before the first iteration is finished."""
    history = run.iteration_metrics()
    if not history:
        return None
    marks = []
    for name, place in ((steps.WARM_START, 0), (layout.FINAL, run.last_iteration + 1)):
        if run.is_current(run.evaluation(name)):
            results = read_results(run.fetch(run.evaluation(name), layout.RESULTS))
            ci95 = tuple(results["ci95"]) if results["ci95"] else None
            marks.append(Mark(f"test, {name}", place, results["success"], ci95))
    path = run.path / layout.CURVES
    path.parent.mkdir(exist_ok=True)
    if run.drawn != (history, marks):
        write_curves(history, path, title=run.name, marks=marks)
        run.drawn = (history, marks)
    return path
