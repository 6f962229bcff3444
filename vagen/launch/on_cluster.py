"""Runs stages on a run's Ray cluster, for steps of a pipeline.

result = run_on_cluster("s3://vagen/runs/lake-1", infra, "update", {"iteration": 7})
"""

import time
from dataclasses import replace
from typing import Any

from vagen.cluster import ApiError, Dashboard
from vagen.config import InfraConfig
from vagen.launch.bring_up import (
    bring_up,
    delete_clusters,
    has_cluster,
    kubernetes_of,
    lease,
    ready_dashboard,
    save_pod_logs,
    say,
)
from vagen.launch.errors import JobFailed, Lost
from vagen.launch.logs import RAY_LOGS
from vagen.launch.protocol import CPU
from vagen.launch.ray_job import PATIENCE, Patience, StageJob
from vagen.run.layout import split_uri
from vagen.storage import MANIFEST, open_store, parse_manifest

LOGS_SECONDS = 300.0
"""Timeout for saving Ray's logs, since the idle cluster costs money."""


def run_on_cluster(
    run: str,
    infra: InfraConfig,
    stage: str,
    kwargs: dict[str, Any],
    *,
    patience: Patience = PATIENCE,
) -> dict[str, Any]:
    """Runs a stage in the run's Ray cluster, and prints its output.

    Args:
        run: URI of the run.
        infra: The run's infra.
        stage: A stage, or `train` with `start` and `stop`.
        kwargs: Arguments of the stage: numbers and strings.
        patience: Timeouts.

    Returns:
        `uri`, `sha256` and `metrics` of the stage's commit, which is in the store.

    Raises:
        JobRefused: The stage rejected the user's input.
        ClusterError: The cluster does not become ready.
        JobFailed: The stage failed, timed out, or the infrastructure kept failing.
        StoreAway: The run's store does not respond.
    """
    config = kubernetes_of(infra)
    arguments = kwargs | ({CPU: 1} if infra.device == "cpu" else {})
    job = StageJob(
        run, stage, arguments, seconds=3600 * config.step_hours, patience=patience, say=say
    )
    with lease(run, infra):
        for left in reversed(range(config.retries + 1)):
            try:
                result = job.perform(_brought_up(run, infra))
                _check_committed(run, result)
                return result
            except Lost as loss:
                if not left:
                    raise JobFailed(
                        f"{stage}: given up after {config.retries + 1} attempts, the last of which "
                        f"ended so: {loss}"
                    ) from loss
                tried = config.retries - left
                pause = min(patience.longest_backoff, patience.backoff * 2**tried)
                say(f"{loss}\n{stage} is tried again in {pause:.0f} s, {left} more times at most")
                time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def tear_down(run: str, namespace: str) -> None:
    """Deletes the run's Ray clusters, after saving available logs in the store.

    Finds them without the run's folder or store.

    Args:
        run: URI of the run.
        namespace: Namespace of its Ray clusters.

    Raises:
        ClusterError: A cluster cannot be deleted.
    """
    if has_cluster(run, namespace):
        try:
            save_logs(run, namespace)
        finally:
            delete_clusters(run, namespace)


def save_logs(run: str, namespace: str) -> None:
    """Saves logs of Ray and its pods in the run's store; prints what is missing."""
    for save in (_save_ray_logs, save_pod_logs):
        try:
            save(run, namespace)
        # A failure of the store, the cluster or Ray must not prevent saving the other logs.
        except (ValueError, RuntimeError, OSError) as error:
            say(f"logs of {run} are not saved: {error}")


def _brought_up(run: str, infra: InfraConfig) -> Dashboard:
    """Like `bring_up`; an unreachable API server counts as lost infrastructure."""
    try:
        return bring_up(run, infra)
    except ApiError as error:
        if error.status and error.status < 500:
            raise
        raise Lost(str(error)) from error


def _check_committed(run: str, result: dict[str, Any]) -> None:
    """Checks that the store has a job's result."""
    root, name = split_uri(run)
    inner = str(result["uri"]).removeprefix(run).strip("/")
    manifest = open_store(root).read_file(f"{name}/{inner}/{MANIFEST}")
    if manifest is None or parse_manifest(manifest, result["uri"]).digest != result["sha256"]:
        raise JobFailed(f"the stage says that it wrote {result['uri']}, which is not in the store")


def _save_ray_logs(run: str, namespace: str) -> None:
    dashboard = ready_dashboard(run, namespace)
    if dashboard is None:
        say("the Ray cluster is not ready: Ray's logs on its nodes are lost")
        return
    patience = replace(PATIENCE, unreachable=30.0)
    job = StageJob(run, RAY_LOGS, {}, seconds=LOGS_SECONDS, patience=patience, say=say)
    job.perform(dashboard)
