"""KubeRay's operator 1.6 and a kubelet, scripted on the tests' store.

Named functions are KubeRay's (ray-operator/controllers/ray). What the clients under test rely on is
kept, inconvenient parts included: `status.state` stays `ready` when pods fail.
"""

import threading
import uuid
from collections.abc import Callable

from api_store import Object, Store, now

Logs = dict[tuple[str, str, bool], list[tuple[str, str]]]
"""Lines with their times, by pod, container and whether it is the previous one's."""


class Operator:
    """Works on the store in a thread, in short rounds, until it is closed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.head = ("127.0.0.1", "8265")
        """Address and port of every cluster's dashboard."""
        self.pod_status: Callable[[Object], Object | None] = lambda _: None
        """Status of a pod instead of running well."""
        self.refusal: Callable[[str], str] = lambda _: ""
        """Why the API server refuses a pod; the beginning of its name is all that is known then."""
        self.admit = True
        """Kueue: whether a suspended RayCluster is admitted."""
        self.grace_rounds = 2
        """Rounds that a pod takes to end."""
        self.logs: Logs = {}
        self._dying: dict[str, int] = {}
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        if self.error:
            raise self.error

    def read_log(self, pod: str, container: str, previous: bool) -> list[tuple[str, str]] | None:
        return self.logs.get((pod, container, previous), None if previous else [])

    def event(self, kind: str, name: str, reason: str, message: str) -> None:
        key = f"{name}.{uuid.uuid5(uuid.NAMESPACE_DNS, reason + message).hex[:12]}"
        if key in self.store.objects["Event"]:
            return
        body = {
            "metadata": {"name": key},
            "involvedObject": {"kind": kind, "name": name, "namespace": "vagen"},
            "reason": reason,
            "message": message,
            "type": "Warning",
            # Kueue's bear the time of their only occurrence, KubeRay's that of the last one.
            "eventTime" if kind == "Workload" else "lastTimestamp": now(),
        }
        self.store.create("Event", body)

    def restart_head(self, cluster: str) -> None:
        """The head's container ends and is started anew in the same pod."""
        (head,) = self.pods(cluster, "head")
        status = self._running(head)
        status["containerStatuses"][0].update(
            restartCount=1, lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}}
        )
        self.store.update("Pod", head["metadata"]["name"], {"status": status}, merge=True)

    def pods(self, cluster: str, role: str) -> list[Object]:
        return self.store.all("Pod", **{"ray.io/cluster": cluster, "ray.io/node-type": role})

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                # One round is atomic, as far as clients can see.
                with self.store.lock:
                    self._round()
            except BaseException as error:
                self.error = error
                raise

    def _round(self) -> None:
        self.store.collect_garbage()
        for pod in self.store.all("Pod"):
            self._kubelet(pod)
        for cluster in self.store.all("RayCluster"):
            self._raycluster(cluster)

    # Pods

    def _kubelet(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            self._dying[uid] = self._dying.get(uid, 0) + 1
            over = self._dying[uid] >= self.grace_rounds
            if over and not pod["metadata"].get("finalizers"):
                self.store.delete("Pod", name, {"gracePeriodSeconds": 0})
            return
        scripted = self.pod_status(pod)
        if scripted is not None:
            if scripted != pod.get("status"):
                self.store.update("Pod", name, {**pod, "status": scripted})
        elif pod.get("status", {}).get("phase") == "Pending":
            self.store.update("Pod", name, {**pod, "status": self._running(pod)})

    def _running(self, pod: Object) -> Object:
        return {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now()}},
                    "lastState": {},
                }
                for container in pod["spec"]["containers"]
            ],
        }

    def _make_pod(self, owner: Object, prefix: str, template: Object, labels: Object) -> None:
        metadata = template.get("metadata", {})
        self.store.create(
            "Pod",
            {
                "metadata": {
                    "generateName": prefix,
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
        wanted = [("head", 1, f"{name}-head-", spec["headGroupSpec"]["template"])]
        prefix = f"{name}-{group['groupName']}-worker-"
        wanted.append(("worker", group["replicas"], prefix, group["template"]))
        for role, count, prefix, template in wanted:
            for _ in range(count - len(self.pods(name, role))):
                refusal = self.refusal(prefix)
                if refusal:
                    where = "vagen/" if role == "head" else f"for the cluster vagen/{name}"
                    text = f"Failed to create {role} Pod {where}, {refusal}"
                    self.event("RayCluster", name, f"FailedToCreate{role.capitalize()}Pod", text)
                    return f"FailedCreate{role.capitalize()}Pod\n{refusal}"
                labels = {"ray.io/cluster": name, "ray.io/node-type": role}
                self._make_pod(cluster, prefix, template, labels)
        return ""

    def _cluster_status(self, cluster: Object, failure: str) -> Object:
        old = cluster.get("status", {})
        name = cluster["metadata"]["name"]
        heads, workers = self.pods(name, "head"), self.pods(name, "worker")
        wanted = sum(group["replicas"] for group in cluster["spec"]["workerGroupSpecs"])
        running = [pod for pod in [*heads, *workers] if _is_ready(pod)]
        status = {
            **({"state": old["state"]} if "state" in old else {}),
            "observedGeneration": cluster["metadata"]["generation"],
            "readyWorkerReplicas": sum(map(_is_ready, workers)),
            "head": {"serviceIP": self.head[0]},
            "endpoints": {"dashboard": self.head[1]},
        }
        if not failure and len(running) == wanted + 1 == len(heads) + len(workers):
            status["state"] = "ready"
        if cluster["spec"].get("suspend"):
            status["state"] = "suspended"
        head_ready = bool(heads) and _is_ready(heads[0])
        reason = "HeadPodRunningAndReady" if head_ready else "HeadPodNotFound"
        facts = [("HeadPodReady", head_ready, reason, "")]
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


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
