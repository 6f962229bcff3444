"""KubeRay's operator 1.6, a kubelet and the Job controller, scripted on the tests' store.

Named functions are KubeRay's (ray-operator/controllers/ray). What the clients under test rely on is
kept, inconvenient parts included: `status.state` stays `ready` when pods fail; a RayJob goes on for
ever if its cluster is gone; its deadline does not stop its driver; a submitter that is started
again prints the log again, and submits again to a head that does not know the job.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from api_store import Object, Refusal, Store, now
from kuberay_rules import raycluster_fault, rayjob_fault
from kuberay_submitters import Logs, Submitters
from ray_heads import ENDED, Ray

FINALIZER = "ray.io/rayjob-finalizer"


class Operator:
    """Works on the store in a thread, in short rounds, until it is closed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ray = Ray()
        self.paused = False
        self.pod_status: Callable[[Object], Object | None] = lambda _: None
        """Status of a pod instead of running well."""
        self.refusal: Callable[[str], str] = lambda _: ""
        """Why the API server refuses a pod of a role."""
        self.admit = True
        """Kueue: whether a suspended RayCluster is admitted."""
        self.grace_rounds = 2
        """Rounds that a pod takes to end."""
        self.logs: Logs = {}
        self.submitters = Submitters(store, self.ray, self.logs, self._make_pod)
        self._dying: dict[str, int] = {}
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        self.ray.close()
        if self.error:
            raise self.error

    def read_log(self, pod: str, container: str, previous: bool) -> list[tuple[str, str]] | None:
        return self.logs.get((pod, container, previous), None if previous else [])

    def is_writing(self, pod: str) -> bool:
        found = self.store.objects["Pod"].get(pod)
        return found is not None and found.get("status", {}).get("phase") == "Running"

    def event(self, kind: str, name: str, reason: str, message: str, **extra: Any) -> None:
        key = f"{name}.{uuid.uuid5(uuid.NAMESPACE_DNS, reason + message).hex[:12]}"
        if key in self.store.objects["Event"]:
            return
        body = {
            "metadata": {"name": key},
            "involvedObject": {"kind": kind, "name": name, "namespace": "vagen"},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "lastTimestamp": now(),
            **extra,
        }
        self.store.create("Event", body)

    def restart_head(self, cluster: str, reason: str = "OOMKilled", delay: float = 0.0) -> None:
        """The head's container ends and is started anew in the same pod."""
        (head,) = self.pods(cluster, "head")
        self.ray.end_head(head["metadata"]["uid"])
        time.sleep(delay)
        status = self._running(head)
        status["containerStatuses"][0].update(
            restartCount=1, lastState={"terminated": {"reason": reason, "exitCode": 137}}
        )
        self.ray.heads[head["metadata"]["uid"]] = {}
        self.store.update("Pod", head["metadata"]["name"], {"status": status}, merge=True)

    def pods(self, cluster: str, role: str) -> list[Object]:
        return self.store.all("Pod", **{"ray.io/cluster": cluster, "ray.io/node-type": role})

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                # One round is atomic, as far as clients can see, but drivers go on.
                with self.store.lock:
                    self._round()
            except BaseException as error:
                self.error = error
                raise

    def _round(self) -> None:
        self.store.collect_garbage()
        for pod in self.store.all("Pod"):
            self._kubelet(pod)
        if self.paused:
            return
        for cluster in self.store.all("RayCluster"):
            self._raycluster(cluster)
        for job in self.store.all("RayJob"):
            with contextlib.suppress(Refusal):  # changed meanwhile: the next round sees it
                self._rayjob(job)
        for job in self.store.all("Job"):
            self.submitters.advance(job)

    # Pods

    def _kubelet(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            self._dying[uid] = self._dying.get(uid, 0) + 1
            if self._dying[uid] >= self.grace_rounds:
                self.ray.end_head(uid)
                if not pod["metadata"].get("finalizers"):
                    self.store.delete("Pod", name, {"gracePeriodSeconds": 0})
            return
        scripted = self.pod_status(pod)
        if scripted is not None:
            if scripted != pod.get("status"):
                self.store.update("Pod", name, {**pod, "status": scripted})
        elif pod.get("status", {}).get("phase") == "Pending":
            if pod["metadata"].get("labels", {}).get("ray.io/node-type") == "head":
                self.ray.heads[uid] = {}
            self.store.update("Pod", name, {**pod, "status": self._running(pod)})

    def _running(self, pod: Object) -> Object:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": stamp}},
                    "lastState": {},
                }
                for container in pod["spec"]["containers"]
            ],
        }

    def _make_pod(self, owner: Object, role: str, template: Object, labels: Object) -> None:
        metadata = template.get("metadata", {})
        self.store.create(
            "Pod",
            {
                "metadata": {
                    "generateName": f"{owner['metadata']['name']}-{role}-",
                    "labels": {**metadata.get("labels", {}), **labels},
                    "ownerReferences": [
                        {
                            "kind": owner["kind"],
                            "name": owner["metadata"]["name"],
                            "uid": owner["metadata"]["uid"],
                            "controller": True,
                            "blockOwnerDeletion": True,
                        }
                    ],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            },
        )

    # RayClusters: rayClusterReconcile, reconcilePods, calculateStatus (raycluster_controller.go)

    def _raycluster(self, cluster: Object) -> None:
        name, spec = cluster["metadata"]["name"], cluster["spec"]
        fault = raycluster_fault(cluster)
        if fault:
            self.event("RayCluster", name, fault[0], f"vagen/{name}: {fault[1]}")
            return
        if cluster["metadata"].get("deletionTimestamp"):
            return
        if spec.get("suspend") and self.admit:
            self.store.update("RayCluster", name, {"spec": {"suspend": False}}, merge=True)
            return
        failure = "" if spec.get("suspend") else self._reconcile_pods(cluster)
        status = self._cluster_status(cluster, failure)
        if status != cluster.get("status"):
            self.store.update("RayCluster", name, {"status": status}, "status", merge=False)

    def _reconcile_pods(self, cluster: Object) -> str:
        """Creates what is missing; returns what could not be created."""
        name, spec = cluster["metadata"]["name"], cluster["spec"]
        group = spec["workerGroupSpecs"][0]
        wanted = [("head", 1, spec["headGroupSpec"]["template"])]
        wanted.append(("worker", group["replicas"], group["template"]))
        for role, count, template in wanted:
            for _ in range(count - len(self.pods(name, role))):
                refusal = self.refusal(role)
                if refusal:
                    reason = f"FailedToCreate{role.capitalize()}Pod"
                    text = f"Failed to create {role} Pod vagen/{name}-{role}, {refusal}"
                    self.event("RayCluster", name, reason, text)
                    return f"FailedCreate{role.capitalize()}Pod\n{refusal}"
                labels = {"ray.io/cluster": name, "ray.io/node-type": role}
                self._make_pod(cluster, role, template, labels)
        return ""

    def _cluster_status(self, cluster: Object, failure: str) -> Object:
        old = cluster.get("status", {})
        name = cluster["metadata"]["name"]
        heads, workers = self.pods(name, "head"), self.pods(name, "worker")
        wanted = sum(group["replicas"] for group in cluster["spec"]["workerGroupSpecs"])
        running = [pod for pod in [*heads, *workers] if _is_ready(pod)]
        status = {
            **{key: old[key] for key in ("state", "stateTransitionTimes") if key in old},
            "observedGeneration": cluster["metadata"]["generation"],
            "desiredWorkerReplicas": wanted,
            "readyWorkerReplicas": sum(map(_is_ready, workers)),
        }
        if not failure and len(running) == wanted + 1 == len(heads) + len(workers):
            status["state"] = "ready"
        if cluster["spec"].get("suspend"):
            status["state"] = "suspended"
        head_ready = bool(heads) and _is_ready(heads[0])
        facts = [
            ("HeadPodReady", head_ready, "HeadPodRunningAndReady" if head_ready else "Unknown", ""),
            (
                "RayClusterSuspended",
                bool(cluster["spec"].get("suspend")),
                "RayClusterSuspended",
                "",
            ),
        ]
        if failure:
            facts.append(("ReplicaFailure", True, failure.partition("\n")[0], failure))
        stamps = {one["type"]: one["lastTransitionTime"] for one in old.get("conditions", [])}
        status["conditions"] = [
            {
                "type": kind,
                "status": str(true),
                "reason": reason,
                "message": message,
                "lastTransitionTime": stamps.get(kind, now()),
            }
            for kind, true, reason, message in facts
        ]
        return status

    # RayJobs: Reconcile (rayjob_controller.go)

    def _rayjob(self, job: Object) -> None:
        name, status = job["metadata"]["name"], dict(job.get("status", {}))
        if job["metadata"].get("deletionTimestamp"):
            self._end_rayjob(job)
            return
        fault = rayjob_fault(job)
        if fault:
            self.event("RayJob", name, fault[0], f"vagen/{name}: {fault[1]}")
            status.update(
                jobDeploymentStatus="ValidationFailed", reason="ValidationFailed", message=fault[1]
            )
        elif not status.get("jobDeploymentStatus"):
            finalizers = [*job["metadata"].get("finalizers", []), FINALIZER]
            self.store.update("RayJob", name, {"metadata": {"finalizers": finalizers}}, merge=True)
            status.update(
                jobDeploymentStatus="Initializing",
                jobId=f"{name}-{uuid.uuid4().hex[:5]}",
                rayClusterName=job["spec"]["clusterSelector"]["ray.io/cluster"],
                startTime=now(),
            )
        elif status["jobDeploymentStatus"] == "Initializing":
            self._initializing(job, status)
        elif status["jobDeploymentStatus"] == "Running":
            self._job_running(job, status)
        if status != job.get("status", {}):
            if status["jobDeploymentStatus"] in ("Complete", "Failed"):
                status["endTime"] = now()
            self.store.update("RayJob", name, {"status": status}, "status")

    def _end_rayjob(self, job: Object) -> None:
        """The driver is asked to stop; the finalizer goes whether or not it does."""
        status, metadata = job.get("status", {}), job["metadata"]
        if FINALIZER not in metadata.get("finalizers", []):
            return
        driver = self.ray.find(status.get("jobId", ""))
        if driver and status.get("jobStatus") not in ENDED:
            driver.stopping.set()
        rest = [one for one in metadata["finalizers"] if one != FINALIZER]
        self.store.update(
            "RayJob", metadata["name"], {"metadata": {"finalizers": rest}}, merge=True
        )

    def _initializing(self, job: Object, status: Object) -> None:
        if self._past_deadline(job, status):
            return
        cluster = self._cluster_of(job)
        if cluster is None or cluster.get("status", {}).get("state") != "ready":
            return
        name = job["metadata"]["name"]
        status["dashboardURL"] = self.ray.address
        if name not in self.store.objects["Job"]:
            owner = {"uid": job["metadata"]["uid"], "kind": "RayJob", "name": name}
            self.store.create(
                "Job",
                {
                    "metadata": {
                        "name": name,
                        "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
                    },
                    "spec": {"template": job["spec"]["submitterPodTemplate"]},
                    "status": {"failed": 0},
                },
            )
        status["jobDeploymentStatus"] = "Running"

    def _job_running(self, job: Object, status: Object) -> None:
        submitter = self.store.objects["Job"].get(job["metadata"]["name"])
        if self._past_deadline(job, status) or self._cluster_of(job) is None or submitter is None:
            return
        finished = submitter["status"].get("finished", "")
        if finished == "Failed":
            known = status.get("jobStatus") == "FAILED"
            status.update(
                jobDeploymentStatus="Failed", reason="AppFailed" if known else "SubmissionFailed"
            )
            if not known:
                status["message"] = "Job submission has failed. Reason: BackoffLimitExceeded."
            return
        driver = self.ray.find(status["jobId"])
        if driver is None:
            return
        status.update(jobStatus=driver.status, message=driver.message)
        if driver.begun_at:
            status["rayJobInfo"] = {"startTime": driver.begun_at}
        if driver.status in ENDED and finished:
            failed = driver.status == "FAILED"
            status["jobDeploymentStatus"] = "Failed" if failed else "Complete"
            if failed:
                status["reason"] = "AppFailed"

    def _past_deadline(self, job: Object, status: Object) -> bool:
        seconds = job["spec"].get("activeDeadlineSeconds")
        begun = datetime.fromisoformat(job["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
        if seconds is None or (datetime.now(UTC) - begun).total_seconds() < seconds:
            return False
        status.update(
            jobDeploymentStatus="Failed",
            reason="DeadlineExceeded",
            message=f"The RayJob has passed the activeDeadlineSeconds: {seconds}",
        )
        return True

    def _cluster_of(self, job: Object) -> Object | None:
        name = job["spec"]["clusterSelector"]["ray.io/cluster"]
        found = self.store.objects["RayCluster"].get(name)
        if found is None:
            text = f"RayCluster vagen/{name} set in the clusterSelector is not found."
            self.event("RayJob", job["metadata"]["name"], "RayClusterNotFound", text)
        return found


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
