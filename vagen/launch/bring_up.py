"""A run's Ray cluster on Kubernetes: made, awaited and kept, its logs saved, deleted."""

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
from vagen.run.uris import run_name
from vagen.stages.interrupts import Interrupted, handle_interrupts
from vagen.storage import commit_directory

ENDING_MINUTES = 10.0
"""What is left of a lease when the pod that renews it is told to end."""


def bring_up(run: str, infra: InfraConfig) -> Dashboard:
    """Makes the run's Ray cluster if it has none, and waits until all of it is ready.

    Args:
        run: URI of the run.
        infra: Of the run.

    Returns:
        Where its head takes jobs.

    Raises:
        ClusterError: It cannot be had: says why, and what to do.
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
    asked, pending = cluster.cluster_name(name), 60 * config.pending_minutes
    begun = time.monotonic()
    cluster.ensure_raycluster(kube, manifest, deadline=pending, report=say)
    cluster.renew_lease(kube, asked, config.lease_minutes)
    left = max(0.0, pending - (time.monotonic() - begun))
    ready = cluster.await_raycluster(kube, asked, pending_deadline=left, report=say)
    return cluster.find_dashboard(kube, ready)


def say(text: str) -> None:
    """Tells whoever reads the step's log."""
    print(text, flush=True)


@contextmanager
def lease(run: str, infra: InfraConfig) -> Iterator[None]:
    """Keeps `make gc` from removing the run's Ray cluster for as long as the block takes.

    If this process is told to end, the lease ends soon: the pod that takes its place renews it, and
    of a pipeline that was terminated nothing else is executed, not even its exit handler.

    Args:
        run: URI of the run.
        infra: Of the run.
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
    """Where the head of the run's Ray cluster takes jobs; None if there is none, or it is not well.

    Raises:
        ClusterError: The token cannot be had.
    """
    kube = cluster.connect(namespace)
    found = cluster.find_raycluster(kube, cluster.cluster_name(run_name(run)))
    if found is None or not cluster.is_ready(found):
        return None
    return cluster.find_dashboard(kube, found)


def has_cluster(run: str, namespace: str) -> bool:
    """Whether a Ray cluster bears the run's label."""
    return bool(cluster.clusters_of(cluster.connect(namespace), run_name(run)))


def delete_clusters(run: str, namespace: str) -> list[str]:
    """Deletes the Ray clusters that bear the run's label; returns their names."""
    return cluster.delete_run(cluster.connect(namespace), run_name(run))


def save_pod_logs(run: str, namespace: str) -> None:
    """Puts the logs of the Ray cluster's pods into the run's store; says which cannot be had."""
    kube = cluster.connect(namespace)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / LOGS
        with commit_directory(logs, kind=LOGS) as partial:
            for missing in cluster.harvest_logs(kube, run_name(run), partial).missing:
                say(f"not saved: {missing}")
        keep_logs(run, logs, "pods")


def kubernetes_of(infra: InfraConfig) -> KubernetesConfig:
    """The infra's Kubernetes section, which a run with a Ray cluster of its own has."""
    assert infra.kubernetes is not None
    return infra.kubernetes
