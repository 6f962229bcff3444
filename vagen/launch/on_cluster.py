"""Runs stages on a run's Ray cluster, which it creates, keeps and deletes, for steps of a pipeline.

result = run_on_cluster("s3://vagen/runs/lake-1", infra, "update", {"iteration": 7})
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vagen import cluster
from vagen.cluster import ApiError, ClusterError, Dashboard
from vagen.config import InfraConfig
from vagen.config.kubernetes import KubernetesConfig
from vagen.engines.verl.mapping import gpus
from vagen.launch.logs import LOGS, RAY_LOGS, keep_logs
from vagen.launch.protocol import CPU, JobFailed, Lost
from vagen.launch.ray_job import PATIENCE, Patience, StageJob
from vagen.run.layout import run_name, split_uri
from vagen.stages.interrupts import Interrupted, handle_interrupts
from vagen.storage import MANIFEST, commit_directory, open_store, parse_manifest

ENDING_MINUTES = 10.0
"""Minutes that remain of a lease when its pod is stopped."""

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
    config = _kubernetes_of(infra)
    arguments = kwargs | ({CPU: 1} if infra.device == "cpu" else {})
    job = StageJob(
        run, stage, arguments, seconds=3600 * config.step_hours, patience=patience, say=say
    )
    with lease(run, infra):
        for left in reversed(range(config.retries + 1)):
            try:
                try:
                    dashboard = bring_up(run, infra)
                except ApiError as error:
                    if error.status and error.status < 500:
                        raise
                    # An unreachable API server counts as lost infrastructure.
                    raise Lost(str(error)) from error
                result = job.perform(dashboard)
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
    kube, name = cluster.connect(namespace), run_name(run)
    if not cluster.clusters_of(kube, name):
        return
    try:
        for save in (_save_ray_logs, _save_pod_logs):
            try:
                save(run, namespace)
            # A failure of the store, the cluster or Ray must not prevent saving the other logs.
            except (ValueError, RuntimeError, OSError) as error:
                say(f"logs of {run} are not saved: {error}")
    finally:
        cluster.delete_run(kube, name)


def bring_up(run: str, infra: InfraConfig) -> Dashboard:
    """Creates the run's Ray cluster if it has none, and waits until it is ready.

    Args:
        run: URI of the run.
        infra: The run's infra.

    Returns:
        The dashboard for jobs of its head.

    Raises:
        ClusterError: It does not become ready; the message says why, and what to do.
    """
    config, name = _kubernetes_of(infra), run_name(run)
    kube = cluster.connect(config.namespace)
    manifest = cluster.render_raycluster(
        cluster.read_template(kube, config.template),
        name=cluster.cluster_name(name),
        run=name,
        workers=infra.verl.nnodes,
        gpus_per_worker=0 if infra.device == "cpu" else gpus(infra) // infra.verl.nnodes,
        lease_minutes=config.lease_minutes,
        image=config.ray_image,
        queue=config.queue,
        labels=config.cost_labels,
        priority=config.priority,
        gpu_resource=config.gpu_resource,
        gpu_claim=config.gpu_claim,
        models=config.models,
    )
    cluster_name, pending = cluster.cluster_name(name), 60 * config.pending_minutes
    begun = time.monotonic()
    cluster.ensure_raycluster(kube, manifest, deadline=pending, report=say)
    cluster.renew_lease(kube, cluster_name, config.lease_minutes)
    left = max(0.0, pending - (time.monotonic() - begun))
    ready = cluster.await_raycluster(kube, cluster_name, pending_deadline=left, report=say)
    return cluster.find_dashboard(kube, ready)


def say(text: str) -> None:
    """Prints a line to the step's log."""
    print(text, flush=True)


@contextmanager
def lease(run: str, infra: InfraConfig) -> Iterator[None]:
    """Renews the lease of the run's Ray cluster during the block, so that `gc` keeps it.

    If this process is stopped, the lease ends soon: a replacement pod renews it, while a terminated
    pipeline executes nothing else, not even its exit handler.

    Args:
        run: URI of the run.
        infra: The run's infra.
    """
    config, name = _kubernetes_of(infra), cluster.cluster_name(run_name(run))
    over = threading.Event()

    def renew(minutes: float) -> None:
        try:
            cluster.renew_lease(cluster.connect(config.namespace), name, minutes)
        except ClusterError as error:
            say(f"the lease of {name} is not renewed: {error}")

    def keep() -> None:
        while not over.wait(60 * config.lease_minutes / 4):
            renew(config.lease_minutes)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    with handle_interrupts():
        try:
            yield
        except (SystemExit, Interrupted):
            renew(min(ENDING_MINUTES, config.lease_minutes))
            raise
        finally:
            over.set()
            thread.join()


def _save_pod_logs(run: str, namespace: str) -> None:
    """Saves the logs of the Ray cluster's pods in the run's store; prints which are missing."""
    kube = cluster.connect(namespace)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for missing in cluster.harvest_logs(kube, run_name(run), partial).missing:
                say(f"not saved: {missing}")
        keep_logs(run, logs, "pods")


def _kubernetes_of(infra: InfraConfig) -> KubernetesConfig:
    """The infra's Kubernetes section; must exist for a run with a separate Ray cluster."""
    assert infra.kubernetes is not None
    return infra.kubernetes


def _check_committed(run: str, result: dict[str, Any]) -> None:
    """Checks that the store has a job's result."""
    root, name = split_uri(run)
    inner = str(result["uri"]).removeprefix(run).strip("/")
    manifest = open_store(root).read_file(f"{name}/{inner}/{MANIFEST}")
    if manifest is None or parse_manifest(manifest, result["uri"]).digest != result["sha256"]:
        raise JobFailed(f"the stage says that it wrote {result['uri']}, which is not in the store")


def _save_ray_logs(run: str, namespace: str) -> None:
    kube = cluster.connect(namespace)
    found = cluster.find_raycluster(kube, cluster.cluster_name(run_name(run)))
    if found is None or not cluster.is_ready(found):
        say("the Ray cluster is not ready: Ray's logs on its nodes are lost")
        return
    patience = replace(PATIENCE, unreachable=30.0)
    job = StageJob(run, RAY_LOGS, {}, seconds=LOGS_SECONDS, patience=patience, say=say)
    job.perform(cluster.find_dashboard(kube, found))
