"""RayJobs on a run's RayCluster: one attempt at a time, followed to its end.

A stage's RayJob has a name that follows from the run, so that a launcher that is started again
finds it. States and reasons are KubeRay's (apis/ray/v1/rayjob_types.go, v1.6).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from vagen.cluster.advice import Finding, explain_pod
from vagen.cluster.clusters import Report, cluster_pods
from vagen.cluster.driver import ENDED, head_started, is_before_head, stop_driver
from vagen.cluster.errors import ApiError, ClusterError, JobFailed
from vagen.cluster.kube import EVENTS, PODS, RAYCLUSTERS, RAYJOBS, Kube, Object, wait_until
from vagen.cluster.logs import LogFollower
from vagen.cluster.names import ATTEMPT, JOB_NAME, RUN, RUN_NAME, TASK, label_value
from vagen.cluster.render import render_rayjob
from vagen.cluster.watching import follow

TERMINAL = ("Complete", "Failed", "ValidationFailed")
"""Values of `jobDeploymentStatus` that KubeRay does not leave, with clusterSelector."""
_ADVICE = {
    "DeadlineExceeded": "raise the step's time limit, or find out why it is slow; the next attempt "
    "goes on from what is committed",
    "SubmissionFailed": "its submitter could not reach Ray, or was ended",
    "ValidationFailed": "KubeRay refuses its specification: is the operator 1.6 or newer?",
    "STOPPED": "somebody has stopped it (Ray's dashboard, `ray job stop`)",
}
DEADLINE_SLACK = 120.0
"""Seconds after a deadline in which KubeRay should have acted on it itself."""


def ensure_rayjob(
    kube: Kube,
    *,
    cluster: str,
    task: str,
    run: str,
    entrypoint: Sequence[str],
    ttl_hours: float,
    active_deadline: float,
    env: Mapping[str, str] | None = None,
    submitter: Object | None = None,
    retry: bool = True,
    stop_deadline: float = 120.0,
) -> Object:
    """The RayJob of a stage: the attempt that runs or has succeeded, else a new one.

    An attempt that has failed stays as a record; the next one is `<task>-2`, `-3`, ... and begins
    only when the driver of the last has certainly ended.

    Args:
        kube: The API server.
        cluster: Name of the run's RayCluster.
        task: From `vagen.cluster.names.job_name`.
        run: Name of the run.
        entrypoint: See `render_rayjob`.
        ttl_hours: See `render_rayjob`.
        active_deadline: See `render_rayjob`.
        env: See `render_rayjob`.
        submitter: See `render_rayjob`.
        retry: Replace an attempt that has failed; otherwise it is returned.
        stop_deadline: Seconds for the driver of a failed attempt to end.

    Raises:
        ClusterError: There is no cluster, the task is another run's or does something else, or it
            cannot be made sure that the last attempt has ended.
    """
    while True:
        owner = kube.get(RAYCLUSTERS, cluster)
        if owner is None or owner["metadata"].get("deletionTimestamp"):
            raise ClusterError(
                f"run {run} has no RayCluster {cluster}: its first step makes one; run that again"
            )
        number = 1
        last = last_attempt(kube, task)
        if last is not None:
            _check_same(last, run, " ".join(entrypoint))
            if _goes_on(kube, last, owner) or (has_failed(last) and not retry):
                return last
            retire(kube, last, stop_deadline)
            number = int(last["metadata"]["labels"][ATTEMPT]) + 1
        body = render_rayjob(
            owner,
            task=task,
            run=run,
            entrypoint=entrypoint,
            ttl_hours=ttl_hours,
            active_deadline=active_deadline,
            attempt=number,
            env=env,
            submitter=submitter,
        )
        try:
            return kube.create(RAYJOBS, body)
        except ApiError as error:
            if error.status != 409:
                raise
            # Taken in between, by another launcher or our own lost request: it is found now.


def await_rayjob(
    kube: Kube,
    name: str,
    *,
    on_log: Callable[[str], Any],
    pending_deadline: float,
    running_deadline: float,
    report: Report | None = None,
) -> Object:
    """Follows a RayJob to its end.

    Args:
        kube: The API server.
        name: The RayJob's.
        on_log: Takes each line of the driver's log, once, from a thread of its own.
        pending_deadline: Seconds from now until the driver must run.
        running_deadline: Seconds from then until it must have ended.
        report: Is told what keeps it from running, whenever that changes.

    Returns:
        The RayJob, which has succeeded.

    Raises:
        JobFailed: It has not, with the end of the driver's log; or its head is lost.
        ClusterError: A deadline has passed.
    """
    follower = LogFollower(kube, name, on_log)
    follower.start()
    watch = _Vigil(kube, name, pending_deadline, running_deadline, report)
    try:
        for job in follow(kube, RAYJOBS, name):
            if follower.error:
                raise follower.error
            if job is None:
                raise JobFailed(
                    name, "Deleted", "it was deleted while it ran", list(follower.tail), ""
                )
            if job.get("status", {}).get("jobDeploymentStatus") in TERMINAL:
                # A submitter goes on if KubeRay has given up a job that runs.
                ended = job["status"].get("jobStatus") in ENDED
                follower.finish(kube.pace.timeout if ended else min(1.0, kube.pace.window))
                if follower.error:
                    raise follower.error
                return _result(kube, job, list(follower.tail))
            try:
                watch.look(job)
            except JobFailed as failure:
                follower.finish(kube.pace.first_pause)
                raise JobFailed(
                    name, failure.reason, failure.message, list(follower.tail), failure.advice
                ) from None
    finally:
        follower.finish(0.0)
    raise AssertionError("a watch does not end")


def last_attempt(kube: Kube, task: str) -> Object | None:
    """The newest RayJob of a task."""
    jobs = kube.list(RAYJOBS, f"{TASK}={task}").items
    return max(jobs, key=lambda job: int(job["metadata"]["labels"][ATTEMPT]), default=None)


def has_succeeded(job: Object) -> bool:
    """Whether a RayJob's driver ended well."""
    status = job.get("status", {})
    return (
        status.get("jobDeploymentStatus") == "Complete" and status.get("jobStatus") == "SUCCEEDED"
    )


def has_failed(job: Object) -> bool:
    """Whether a RayJob has ended otherwise."""
    return job.get("status", {}).get("jobDeploymentStatus") in TERMINAL and not has_succeeded(job)


def retire(kube: Kube, job: Object, seconds: float) -> None:
    """Makes sure that an attempt has ended, for good.

    One that KubeRay still works on is deleted, with its submitter, which would start it again.

    Raises:
        ClusterError: It cannot be made sure.
    """
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    if not job["metadata"].get("deletionTimestamp"):
        stop_driver(kube, job, seconds)
        if job.get("status", {}).get("jobDeploymentStatus") in TERMINAL:
            return
        kube.delete(RAYJOBS, name, foreground=True, uid=uid)

    def gone() -> bool:
        found = kube.get(RAYJOBS, name)
        return found is None or found["metadata"]["uid"] != uid

    if not wait_until(gone, seconds, min(1.0, kube.pace.window)):
        raise ClusterError(
            f"RayJob {name} is being deleted and still there after {seconds:.0f} s: does the "
            "KubeRay operator run? It has to remove its finalizer"
        )
    stop_driver(kube, job, seconds)


def delete_rayjobs(kube: Kube, run: str) -> list[str]:
    """Deletes the RayJobs of a run; returns their names."""
    jobs = kube.list(RAYJOBS, f"{RUN}={label_value(run)}").items
    names = [job["metadata"]["name"] for job in jobs]
    return [name for name in names if kube.delete(RAYJOBS, name)]


def _goes_on(kube: Kube, job: Object, cluster: Object) -> bool:
    """Whether an attempt has succeeded, or can still do so."""
    if has_succeeded(job):
        return True
    if has_failed(job) or job["metadata"].get("deletionTimestamp"):
        return False
    owners = [owner["uid"] for owner in job["metadata"].get("ownerReferences", [])]
    return cluster["metadata"]["uid"] in owners and not _lost_head(kube, job)


def _lost_head(kube: Kube, job: Object) -> bool:
    """Whether the driver's head is gone for so long that its submitter will not start it again."""
    if not is_before_head(kube, job):
        return False
    started = head_started(kube, job["status"]["rayClusterName"])
    return started is not None and ((datetime.now(UTC) - started).total_seconds() > kube.pace.grace)


def _check_same(job: Object, run: str, entrypoint: str) -> None:
    name = job["metadata"]["name"]
    if job["metadata"]["labels"].get(RUN) != label_value(run):
        other = job["metadata"].get("annotations", {}).get(RUN_NAME)
        raise ClusterError(f"RayJob {name} belongs to run {other}: choose another name for {run}")
    if job["spec"]["entrypoint"] != entrypoint and not has_failed(job):
        raise ClusterError(
            f"RayJob {name} executes `{job['spec']['entrypoint']}`, not `{entrypoint}`: delete it "
            "if it is no longer wanted"
        )


def _result(kube: Kube, job: Object, tail: list[str]) -> Object:
    if has_succeeded(job):
        return job
    name, status = job["metadata"]["name"], job["status"]
    reason = status.get("reason") or status.get("jobStatus") or status["jobDeploymentStatus"]
    advice = _ADVICE.get(reason, "")
    if reason == "SubmissionFailed":
        found = submitter_findings(kube, name) + _head_findings(kube, status["rayClusterName"])
        advice = "; ".join([advice, *(finding.text for finding in found)])
    # Ray puts the end of the log into its message, which `tail` has.
    message = status.get("message", "").partition(", last available logs")[0].strip()
    raise JobFailed(name, reason, message, tail, advice)


def _head_findings(kube: Kube, cluster: str) -> list[Finding]:
    return [
        finding for head in cluster_pods(kube, cluster, "head") for finding in explain_pod(head)
    ]


def submitter_findings(kube: Kube, name: str) -> list[Finding]:
    """What is wrong with the submitter's pods."""
    events = kube.list(EVENTS).items
    pods = kube.list(PODS, f"{JOB_NAME}={name}").items
    return [finding for pod in pods for finding in explain_pod(pod, events)]


class _Vigil:
    """What the RayJob itself does not tell while it goes on: deadlines, and the loss of its head.

    With clusterSelector, KubeRay tries for ever if the cluster is gone (`getOrCreateRayCluster
    Instance`), and goes on asking a head that has no such job.
    """

    def __init__(
        self, kube: Kube, name: str, pending: float, running: float, report: Report | None
    ) -> None:
        self._kube = kube
        self._name = name
        self._begun = time.monotonic()
        self._pending, self._running = pending, running
        self._running_since: float | None = None
        self._headless_since: float | None = None
        self._looked = 0.0
        self._report = report
        self._told: list[Finding] = []

    def look(self, job: Object) -> None:
        """Raises if there is nothing to wait for any more."""
        now = time.monotonic()
        if now - self._looked < min(1.0, self._kube.pace.window):
            return
        self._looked = now
        state = job.get("status", {}).get("jobStatus", "")
        self._check_head(job, now)
        if state in ("RUNNING", *ENDED):
            self._running_since = self._running_since or now
            if now - self._running_since > self._running + DEADLINE_SLACK:
                raise ClusterError(
                    f"RayJob {self._name} is {state} for {now - self._running_since:.0f} s, longer "
                    f"than {self._running:.0f} s, and KubeRay has not ended it: does the operator "
                    "run?"
                )
            return
        self._check_pending(job, now)

    def _check_head(self, job: Object, now: float) -> None:
        name = job["spec"]["clusterSelector"]["ray.io/cluster"]
        cluster = self._kube.get(RAYCLUSTERS, name)
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            raise JobFailed(
                self._name,
                "HeadLost",
                f"its RayCluster {name} was deleted",
                [],
                "run the pipeline's first step again: it makes a new one",
            )
        started = job.get("status", {}).get("rayJobInfo", {}).get("startTime")
        lost = bool(started) and (
            head_started(self._kube, name) is None or is_before_head(self._kube, job)
        )
        if not lost:
            self._headless_since = None
            return
        self._headless_since = self._headless_since or now
        if now - self._headless_since < self._kube.pace.grace:
            return
        why = [finding.text for finding in _head_findings(self._kube, name)]
        raise JobFailed(
            self._name,
            "HeadLost",
            f"the head of RayCluster {name} has ended or was started anew, and the driver with it",
            [],
            "; ".join(why) or "its node may be gone: `vagen cluster status` shows the pods",
        )

    def _check_pending(self, job: Object, now: float) -> None:
        found = submitter_findings(self._kube, self._name)
        if self._report and found != self._told:
            for finding in found:
                self._report(finding.text)
        self._told = found
        if now - self._begun < self._pending:
            return
        status = job.get("status", {})
        texts = [finding.text for finding in found]
        if not status.get("jobDeploymentStatus"):
            texts.append("KubeRay has not taken notice of it: does the operator run?")
        raise ClusterError(
            "\n".join(
                [
                    f"RayJob {self._name} does not run after {self._pending:.0f} s "
                    f"({status.get('jobDeploymentStatus') or 'new'})",
                    *(f"- {text}" for text in texts),
                ]
            )
        )
