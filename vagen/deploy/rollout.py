"""Brings an agent up beside the one before it, and then gives it the requests, or takes it away.

`Plain` needs nothing but Kubernetes: a Deployment per version, and a Service that points to one of
them. `KServe` has one InferenceService and shares its requests between two revisions (KServe's
serverless mode).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from vagen.cluster.advice import Finding, explain_pod
from vagen.cluster.clusters import Report, await_ready, with_logs
from vagen.cluster.errors import ApiError, ClusterError
from vagen.cluster.forward import forwarded
from vagen.cluster.kube import EVENTS, PODS, Kube, Object, Resource
from vagen.deploy.agent import AGENT, DEPLOYMENT, KSERVE, VERSION, Agent, read_template, render

DEPLOYMENTS = Resource("apps", "v1", "deployments")
SERVICES = Resource("", "v1", "services")
INFERENCE = Resource("serving.kserve.io", "v1beta1", "inferenceservices")
PORT = 8000
PATH = "vagen.dev/path"
"""Annotation of an InferenceService: path of OpenAI's API, instead of `/v1`."""
TAGGED = "serving.kserve.io/enable-tag-routing"


class Rollout(Protocol):
    """A new version beside the live one."""

    def start(self, seconds: float, report: Report) -> None:
        """Creates the version, without requests, and waits until it is ready.

        Raises:
            ClusterError: It does not start; the message says why.
        """
        ...

    def url(self) -> Any:
        """Context manager: address of the new version's API."""
        ...

    def promote(self, share: int) -> None:
        """Gives the version a share of the requests, in percent."""
        ...

    def roll_back(self) -> None:
        """Restores the state before `start`."""
        ...


def open_rollout(
    kube: Kube, agent: Agent, *, plain: bool, share: int, context: str | None
) -> Rollout:
    """KServe's where both the cluster and the templates have it, else Kubernetes' own.

    Raises:
        ClusterError: There is no usable template, or only KServe can give a share of the requests.
    """
    kserve = None if plain else read_template(kube, KSERVE)
    if kserve is not None and _knows(kube, INFERENCE):
        return KServe(kube, agent, render(kserve, KSERVE, agent))
    if share != 100:
        raise ClusterError("a share of the requests needs KServe; a Service gives all or none")
    template = read_template(kube, DEPLOYMENT)
    if template is None:
        raise ClusterError(
            f"the ConfigMap has no {DEPLOYMENT}" + ("" if plain else ", and KServe cannot be used")
        )
    return Plain(kube, agent, render(template, DEPLOYMENT, agent), context)


def undeploy(kube: Kube, name: str, *, keep: str | None = None) -> list[str]:
    """Deletes an agent, with all its versions.

    Args:
        kube: The API server, with its namespace.
        name: Name of its service, such as `agent-lake`.
        keep: Version that stays, with the service.

    Returns:
        What was deleted, such as `deployments.apps/agent-lake-v3`.
    """
    deleted = []
    for resource in (SERVICES, DEPLOYMENTS, INFERENCE):
        if resource is INFERENCE and not _knows(kube, resource):
            continue
        for item in kube.list(resource, f"{AGENT}={name}").items:
            own, labels = item["metadata"]["name"], item["metadata"]["labels"]
            if item["metadata"].get("deletionTimestamp"):
                continue
            if keep is None or labels.get(VERSION) not in (None, keep):
                kube.delete(resource, own)
                deleted.append(f"{resource.full_name}/{own}")
    return deleted


@dataclass
class Plain:
    """A Deployment and a Service per version, and the live Service."""

    kube: Kube
    agent: Agent
    body: Object
    context: str | None = None
    """Context of the kubeconfig for `kubectl port-forward`."""

    @property
    def _name(self) -> str:
        return f"{self.agent.name}-v{self.agent.version}"

    @property
    def _is_live(self) -> bool:
        live = self.kube.get(SERVICES, self.agent.name)
        return live is not None and live["spec"]["selector"].get(VERSION) == self.agent.version

    def start(self, seconds: float, report: Report) -> None:
        """See `Rollout`."""
        self.body["metadata"]["name"] = self._name
        label_pods(self.body, self.agent)
        if not _create(self.kube, DEPLOYMENTS, self.body) and not self._is_live:
            # Of an attempt before, perhaps from another template.
            self.kube.patch(DEPLOYMENTS, self._name, self.body)
        _create(self.kube, SERVICES, self._service(self._name, self.agent.labels))
        pods = self.agent.selector
        _await(self.kube, DEPLOYMENTS, self._name, pods, _is_available, seconds, report)

    @contextmanager
    def url(self) -> Iterator[str]:
        """See `Rollout`; outside the cluster through `kubectl port-forward`."""
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            yield f"http://{self._name}.{self.kube.namespace}.svc:{PORT}/v1"
            return
        with forwarded(self.kube, f"service/{self._name}", PORT, self.context) as address:
            yield f"{address}/v1"

    def promote(self, share: int) -> None:
        """See `Rollout`; all requests, and older versions are deleted."""
        labels = {key: value for key, value in self.agent.labels.items() if key != VERSION}
        if not _create(self.kube, SERVICES, self._service(self.agent.name, labels)):
            change = {"spec": {"selector": self.agent.selector}}
            self.kube.patch(SERVICES, self.agent.name, change)
        undeploy(self.kube, self.agent.name, keep=self.agent.version)

    def roll_back(self) -> None:
        """See `Rollout`; a version that was live before stays."""
        if not self._is_live:
            self.kube.delete(SERVICES, self._name)
            self.kube.delete(DEPLOYMENTS, self._name)

    def _service(self, name: str, labels: dict[str, str]) -> Object:
        ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": self.agent.selector, "ports": ports},
        }


@dataclass
class KServe:
    """One InferenceService; the new version is its latest revision."""

    kube: Kube
    agent: Agent
    body: Object
    _before: Object | None = field(default=None, init=False)

    def start(self, seconds: float, report: Report) -> None:
        """See `Rollout`."""
        name, metadata = self.agent.name, self.body["metadata"]
        metadata["name"] = name
        metadata["annotations"] = {**(metadata.get("annotations") or {}), TAGGED: "true"}
        self._before = self.kube.get(INFERENCE, name)
        if self._before is None:
            self.kube.create(INFERENCE, self.body)
        else:
            predictor = {**self.body["spec"]["predictor"], "canaryTrafficPercent": 0}
            self._replace(self.body["metadata"], {**self.body["spec"], "predictor": predictor})
        pods = {"serving.kserve.io/inferenceservice": name}
        _await(self.kube, INFERENCE, name, pods, _is_rolled_out, seconds, report)

    @contextmanager
    def url(self) -> Iterator[str]:
        """See `Rollout`: the tag `latest` of the new revision."""
        found = self._read()
        status = found.get("status", {})
        traffic = status.get("components", {}).get("predictor", {}).get("traffic", [])
        tagged = [each["url"] for each in traffic if each.get("tag") == "latest"]
        if not tagged and self._before is not None:
            raise ClusterError(
                f"InferenceService {self.agent.name} has no address for its latest revision: this "
                "needs KServe's serverless mode; `--plain` takes a Deployment"
            )
        path = found["metadata"].get("annotations", {}).get(PATH, "/v1")
        yield (tagged[0] if tagged else status["url"]).rstrip("/") + path

    def promote(self, share: int) -> None:
        """See `Rollout`."""
        percent = None if share == 100 else share  # null: all
        body = {"spec": {"predictor": {"canaryTrafficPercent": percent}}}
        self.kube.patch(INFERENCE, self.agent.name, body)

    def roll_back(self) -> None:
        """See `Rollout`."""
        if self._before is None:
            self.kube.delete(INFERENCE, self.agent.name)
        else:
            self._replace(self._before["metadata"], self._before["spec"])

    def _read(self) -> Object:
        found = self.kube.get(INFERENCE, self.agent.name)
        if found is None:
            raise ClusterError(f"InferenceService {self.agent.name} was deleted meanwhile")
        return found

    def _replace(self, metadata: Object, spec: Object) -> None:
        found = self._read()
        kept = {key: metadata.get(key) or {} for key in ("labels", "annotations")}
        self.kube.replace(
            INFERENCE,
            self.agent.name,
            {**found, "metadata": {**found["metadata"], **kept}, "spec": spec},
        )


def label_pods(deployment: Object, agent: Agent) -> None:
    """Labels the pods of a version's Deployment, and selects them."""
    spec = deployment.setdefault("spec", {})
    spec["selector"] = {"matchLabels": agent.selector}
    pod = spec.setdefault("template", {}).setdefault("metadata", {})
    pod["labels"] = {**(pod.get("labels") or {}), **agent.labels}


def _knows(kube: Kube, resource: Resource) -> bool:
    """Whether the API server has a kind."""
    try:
        kube.request("GET", resource.root)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def _create(kube: Kube, resource: Resource, body: Object) -> bool:
    """Creates an object; False if there is one, from an earlier try."""
    try:
        kube.create(resource, body)
    except ApiError as error:
        if error.status != 409:
            raise
        return False
    return True


def _is_available(found: Object) -> bool:
    status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return seen and status.get("availableReplicas", 0) >= wanted


def _is_rolled_out(found: Object) -> bool:
    status = found.get("status", {})
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    predictor = status.get("components", {}).get("predictor", {})
    newest = predictor.get("latestCreatedRevision")
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    same = newest is not None and newest == predictor.get("latestReadyRevision")
    return seen and same and conditions.get("Ready") == "True"


def _await(
    kube: Kube,
    resource: Resource,
    name: str,
    pods: dict[str, str],
    is_ready: Callable[[Object], bool],
    seconds: float,
    report: Report,
) -> None:
    """Waits until an object is ready; `pods` are the labels of its pods."""
    selector = ",".join(f"{key}={value}" for key, value in pods.items())
    where = f"{resource.full_name}/{name}"

    def diagnose(_: Object) -> list[Finding]:
        events = kube.list(EVENTS).items
        own = kube.list(PODS, selector).items
        return with_logs(kube, [finding for pod in own for finding in explain_pod(pod, events)])

    def not_ready(_: Object, found: list[Finding], late: bool) -> str:
        said = "; ".join(dict.fromkeys(finding.text for finding in found)) or "it waits"
        return f"{where} is not ready{f' within {seconds:g} s' if late else ''}: {said}"

    await_ready(
        kube,
        resource,
        name,
        is_ready=is_ready,
        diagnose=diagnose,
        seconds=seconds,
        gone=f"{where} was deleted while it was awaited",
        not_ready=not_ready,
        report=report,
    )
