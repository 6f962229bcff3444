"""A run's Ray cluster on Kubernetes: creates, awaits and keeps it, saves logs, deletes it."""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vagen import cluster
from vagen.cluster import ClusterError, Dashboard
from vagen.config import InfraConfig
from vagen.config.kubernetes import KubernetesConfig
from vagen.engines.verl.mapping import gpus
from vagen.launch.logs import LOGS, keep_logs
from vagen.run.layout import run_name
from vagen.stages.interrupts import Interrupted, handle_interrupts
from vagen.storage import commit_directory

ENDING_MINUTES = 10.0
"""Minutes that remain of a lease when its pod is stopped."""


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
    config, name = kubernetes_of(infra), run_name(run)
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
    config, name = kubernetes_of(infra), cluster.cluster_name(run_name(run))
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


def ready_dashboard(run: str, namespace: str) -> Dashboard | None:
    """The dashboard of the run's Ray cluster; None if there is none, or it is not ready.

    Raises:
        ClusterError: The token is not available.
    """
    kube = cluster.connect(namespace)
    found = cluster.find_raycluster(kube, cluster.cluster_name(run_name(run)))
    if found is None or not cluster.is_ready(found):
        return None
    return cluster.find_dashboard(kube, found)


def has_cluster(run: str, namespace: str) -> bool:
    """Whether a Ray cluster has the run's label."""
    return bool(cluster.clusters_of(cluster.connect(namespace), run_name(run)))


def delete_clusters(run: str, namespace: str) -> list[str]:
    """Deletes the Ray clusters with the run's label; returns their names."""
    return cluster.delete_run(cluster.connect(namespace), run_name(run))


def save_pod_logs(run: str, namespace: str) -> None:
    """Saves the logs of the Ray cluster's pods in the run's store; prints which are missing."""
    kube = cluster.connect(namespace)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for missing in cluster.harvest_logs(kube, run_name(run), partial).missing:
                say(f"not saved: {missing}")
        keep_logs(run, logs, "pods")


def kubernetes_of(infra: InfraConfig) -> KubernetesConfig:
    """The infra's Kubernetes section; must exist for a run with a separate Ray cluster."""
    assert infra.kubernetes is not None
    return infra.kubernetes
