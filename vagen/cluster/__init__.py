"""A run's RayCluster on Kubernetes, through KubeRay's operator."""

from vagen.cluster.clusters import (
    Leftover,
    await_raycluster,
    cluster_pods,
    clusters_of,
    delete_raycluster,
    delete_run,
    ensure_raycluster,
    find_raycluster,
    gc,
    is_ready,
    renew_lease,
)
from vagen.cluster.dashboard import Dashboard, find_dashboard, forwarded_dashboard
from vagen.cluster.describe import Harvest, describe_run, harvest_logs
from vagen.cluster.errors import ApiError, ClusterError
from vagen.cluster.kube import Kube, Pace, connect
from vagen.cluster.names import cluster_name, run_labels, shortened
from vagen.cluster.render import read_template, render_raycluster

__all__ = [
    "ApiError",
    "ClusterError",
    "Dashboard",
    "Harvest",
    "Kube",
    "Leftover",
    "Pace",
    "await_raycluster",
    "cluster_name",
    "cluster_pods",
    "clusters_of",
    "connect",
    "delete_raycluster",
    "delete_run",
    "describe_run",
    "ensure_raycluster",
    "find_dashboard",
    "find_raycluster",
    "forwarded_dashboard",
    "gc",
    "harvest_logs",
    "is_ready",
    "read_template",
    "render_raycluster",
    "renew_lease",
    "run_labels",
    "shortened",
]
