"""Submitters of RayJobs: the Job controller, and what their pods do, on the tests' store.

`createNewK8sJob` (rayjob_controller.go) and `BuildJobSubmitCommand` (common/job.go) of KubeRay 1.6;
`ray job submit` and `ray job logs` of Ray 2.60.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from api_store import Object, Store
from ray_heads import ENDED, Ray

BACKOFF = 2
"""The submitter is started three times at most."""
Logs = dict[tuple[str, str, bool], list[tuple[str, str]]]
"""Lines with their times, by pod, container, and whether it is the life before."""


class Submitters:
    """Kubernetes Jobs of RayJobs and their pods."""

    def __init__(
        self,
        store: Store,
        ray: Ray,
        logs: Logs,
        make_pod: Callable[[Object, str, Object, Object], None],
    ) -> None:
        self.store, self.ray, self.logs = store, ray, logs
        self.evictions = 0
        """So many of them are evicted in mid-log."""
        self._make_pod = make_pod
        self._printed: dict[str, int] = {}

    def advance(self, job: Object) -> None:
        name = job["metadata"]["name"]
        if job["metadata"].get("deletionTimestamp") or job["status"].get("finished"):
            return
        pods = self.store.all("Pod", **{"batch.kubernetes.io/job-name": name})
        active = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        if active:
            if active[0]["status"]["phase"] == "Running":
                self._submitter(job, active[0])
            return
        failed = sum(pod["status"]["phase"] == "Failed" for pod in pods)
        if any(pod["status"]["phase"] == "Succeeded" for pod in pods):
            self.store.update("Job", name, {"status": {"finished": "Complete"}}, merge=True)
        elif failed > BACKOFF:
            self.store.update("Job", name, {"status": {"finished": "Failed"}}, merge=True)
        else:
            labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
            self._make_pod(job, "submit", job["spec"]["template"], labels)

    def _submitter(self, job: Object, pod: Object) -> None:
        """Submits if Ray does not know the job, then prints its log to its end."""
        rayjob = self.store.objects["RayJob"].get(job["metadata"]["name"])
        if rayjob is None:
            return
        status, name = rayjob["status"], pod["metadata"]["name"]
        driver = self.ray.find(status["jobId"])
        if driver is None:
            heads = self.store.all(
                "Pod", **{"ray.io/cluster": status["rayClusterName"], "ray.io/node-type": "head"}
            )
            head = heads[0]["metadata"]["uid"] if heads else ""
            if head not in self.ray.heads or self._printed.get(name):
                self._end_pod(pod, "Failed")
                return
            driver = self.ray.submit(head, status["jobId"], job["metadata"]["name"])
            self._print(pod, f"Job '{status['jobId']}' submitted successfully")
        ended = driver.status in ENDED
        done = self._printed.get(name, 0)
        for line in driver.lines[done:]:
            self._print(pod, line)
        self._printed[name] = len(driver.lines)
        if self.evictions and len(driver.lines) >= 3:
            self.evictions -= 1
            self._end_pod(pod, "Failed")
        elif ended and self._printed[name] == len(driver.lines):
            # `ray job logs --follow` (Ray 2.60) ends well whatever became of the job.
            self._print(pod, f"Job '{status['jobId']}' {driver.status.lower()}")
            self._end_pod(pod, "Succeeded")

    def _print(self, pod: Object, line: str) -> None:
        container = pod["spec"]["containers"][0]["name"]
        # Milliseconds: several lines have the same time.
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        key = (pod["metadata"]["name"], container, False)
        self.logs.setdefault(key, []).append((stamp, line))

    def _end_pod(self, pod: Object, phase: str) -> None:
        name = pod["metadata"]["name"]
        code = 0 if phase == "Succeeded" else 1
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "restartCount": 0,
            "state": {"terminated": {"exitCode": code}},
        }
        status = {"phase": phase, "containerStatuses": [container]}
        self.store.update("Pod", name, {**pod, "status": status})
