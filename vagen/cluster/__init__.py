"""Ray on Kubernetes: a run's RayCluster and RayJobs, through KubeRay's operator."""

from vagen.cluster.clusters import (
    await_raycluster,
    cluster_pods,
    delete_raycluster,
    ensure_raycluster,
    find_raycluster,
    is_ready,
)
from vagen.cluster.collect import Leftover, gc
from vagen.cluster.describe import RunState, describe_run
from vagen.cluster.errors import ApiError, ClusterError, JobFailed
from vagen.cluster.harvest import Harvest, harvest_logs
from vagen.cluster.jobs import await_rayjob, delete_rayjobs, ensure_rayjob, has_succeeded
from vagen.cluster.kube import Kube, Pace, connect
from vagen.cluster.names import cluster_name, job_name, run_labels
from vagen.cluster.render import read_template, render_raycluster, render_rayjob

__all__ = [
    "ApiError",
    "ClusterError",
    "Harvest",
    "JobFailed",
    "Kube",
    "Leftover",
    "Pace",
    "RunState",
    "await_raycluster",
    "await_rayjob",
    "cluster_name",
    "cluster_pods",
    "connect",
    "delete_raycluster",
    "delete_rayjobs",
    "describe_run",
    "ensure_raycluster",
    "ensure_rayjob",
    "find_raycluster",
    "gc",
    "harvest_logs",
    "has_succeeded",
    "is_ready",
    "job_name",
    "read_template",
    "render_raycluster",
    "render_rayjob",
    "run_labels",
]
