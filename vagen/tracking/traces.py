"""Sample episodes of an evaluation as MLflow traces: a span per turn."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Trajectory
from vagen.tracking.server import mlflow_at

if TYPE_CHECKING:
    from mlflow import MlflowClient

OF_EACH = 2
"""Number of successful episodes, and of failed ones."""


def log_traces(client: "MlflowClient", uri: str, run_id: str, folder: Path, name: str) -> None:
    """Records a few episodes with a run: observations, responses and rewards.

    Args:
        client: Client of the server.
        uri: Address of the server.
        run_id: The run.
        folder: A committed evaluation.
        name: Name of the evaluation.
    """
    trajectories = TrajectoryBatch.load(folder).trajectories
    experiment = client.get_run(run_id).info.experiment_id
    with mlflow_at(uri) as mlflow:
        for success in (True, False):
            for item in [t for t in trajectories if t.success is success][:OF_EACH]:
                _log(client, item, experiment, run_id, name)
        mlflow.flush_trace_async_logging()


def _log(client: "MlflowClient", item: Trajectory, experiment: str, run_id: str, name: str) -> None:
    outcome = "solved" if item.success else "not solved"
    root = client.start_trace(
        f"{name}: {item.config_id}, {outcome}",
        span_type="AGENT",
        inputs={"environment": item.env_name, "level": item.level_hash, "seed": str(item.seed)},
        tags={"evaluation": name, "success": str(item.success).lower()},
        experiment_id=experiment,
        run_id=run_id,
    )
    for number, turn in enumerate(item.turns, 1):
        span = client.start_span(
            f"turn {number}",
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type="CHAT_MODEL",
            inputs={"observation": turn.observation_text, "images": len(turn.images)},
        )
        outputs = {"response": turn.response_text, "rewards": asdict(turn.rewards)}
        client.end_span(root.trace_id, span.span_id, outputs=outputs)
    client.end_trace(root.trace_id, outputs={"success": item.success, "score": float(item.score)})
