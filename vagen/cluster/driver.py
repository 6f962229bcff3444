"""The driver of a RayJob: whether it still runs, and how to stop it.

KubeRay's status does not always tell: it fails a RayJob at its deadline, or when its submitter
fails, while the driver goes on, and deletes a RayJob whether or not its driver could be stopped
(rayjob_controller.go, v1.6: `checkActiveDeadlineAndUpdateStatusIfNeeded`, `Reconcile` on a deletion
timestamp). Whoever starts another attempt has to know.
"""

import json
import os
import urllib.error
import urllib.request
from datetime import datetime

from vagen.cluster.clusters import cluster_pods
from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import JOBS, RAYCLUSTERS, Kube, Object, wait_until
from vagen.cluster.names import parse_time

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""States of a Ray job whose driver has ended."""
ASSUMED = "JobDeploymentStatusTransitionGracePeriodExceeded"
"""Reason with which KubeRay calls a Ray job failed that it has lost sight of."""
TIMEOUT = 5.0
"""Seconds for an answer of Ray's dashboard."""


def stop_driver(kube: Kube, job: Object, seconds: float) -> None:
    """Makes sure that a RayJob's driver has ended, and stops it if it has not.

    Raises:
        ClusterError: It still runs, or nobody can tell.
    """
    if has_ended(kube, job):
        return
    _ask(job, "/stop", method="POST")
    if wait_until(lambda: has_ended(kube, job), seconds):
        return
    name = job["metadata"]["name"]
    raise ClusterError(
        f"RayJob {name} has failed ({job.get('status', {}).get('reason')}), but its driver may "
        f"still run: Ray's dashboard at {job.get('status', {}).get('dashboardURL')} says "
        f"{_state(job) or 'nothing'}. No second attempt is started beside it. Check that the "
        "network policies let step pods reach port 8265 of the head, or delete the RayCluster "
        f"(`vagen cluster delete`), and run the step again"
    )


def has_ended(kube: Kube, job: Object) -> bool:
    """Whether a RayJob's driver has certainly ended, or has never begun."""
    status = job.get("status", {})
    if status.get("jobDeploymentStatus") == "ValidationFailed" or not status.get("jobId"):
        return True
    if not status.get("dashboardURL") and kube.get(JOBS, job["metadata"]["name"]) is None:
        return True  # it has waited for its cluster, and has no submitter
    if status.get("jobStatus") in ENDED and status.get("reason") != ASSUMED:
        return True
    cluster = status.get("rayClusterName", "")
    if kube.get(RAYCLUSTERS, cluster) is None and not cluster_pods(kube, cluster):
        return True
    return is_before_head(kube, job) or _state(job) in ("", *ENDED)


def is_before_head(kube: Kube, job: Object) -> bool:
    """Whether a RayJob's driver began before its head did: it has ended with the head before."""
    begun = job.get("status", {}).get("rayJobInfo", {}).get("startTime")
    head = head_started(kube, job.get("status", {}).get("rayClusterName", ""))
    return bool(begun and head and parse_time(begun) < head)


def head_started(kube: Kube, cluster: str) -> datetime | None:
    """When the Ray container of a cluster's head was started; None if none runs."""
    for pod in cluster_pods(kube, cluster, "head"):
        ray = pod["spec"]["containers"][0]["name"]
        for container in pod.get("status", {}).get("containerStatuses", []):
            running = container.get("state", {}).get("running")
            if container["name"] == ray and running:
                return parse_time(running["startedAt"])
    return None


def _state(job: Object) -> str | None:
    """The driver's state as Ray has it; empty if Ray does not know it, None without an answer."""
    answer = _ask(job)
    return None if answer is None else str(answer.get("status", ""))


def _ask(job: Object, action: str = "", method: str = "GET") -> Object | None:
    """Asks the Ray Jobs API of the job's head; `{}` if it does not know the job.

    Source: Ray Jobs REST API, `/api/jobs/{submission_id}` and `/api/jobs/{submission_id}/stop`.
    """
    status = job.get("status", {})
    address, job_id = status.get("dashboardURL"), status.get("jobId")
    if not address or not job_id:
        return None
    url = address if "://" in address else f"http://{address}"
    request = urllib.request.Request(f"{url}/api/jobs/{job_id}{action}", method=method)
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return {} if error.code == 404 else None
    except (OSError, ValueError):
        return None
