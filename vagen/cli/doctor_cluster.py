"""The doctor's checks of a Kubernetes cluster: what a run needs there, before it is submitted."""

import json
from collections.abc import Iterator

from vagen.cli.findings import CheckResult, Findings, bad, good, warning
from vagen.cluster import ClusterError, Kube, connect, read_template, render_raycluster
from vagen.cluster.dashboard import read_token
from vagen.cluster.errors import ApiError
from vagen.cluster.kube import CONFIG_MAPS, EVENTS, PODS, RAYCLUSTERS, SECRETS, Resource
from vagen.config import InfraConfig
from vagen.config.kubernetes import KubernetesConfig

RIGHTS: tuple[tuple[Resource, str, tuple[str, ...]], ...] = (
    (RAYCLUSTERS, "", ("get", "list", "watch", "create", "patch", "delete")),
    (PODS, "", ("get", "list")),
    (PODS, "log", ("get",)),
    (EVENTS, "", ("list",)),
    (CONFIG_MAPS, "", ("get",)),
)
"""Permissions that `vagen.cluster` needs."""
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
DEPLOY = "`make deploy` brings it"


def cluster(infra: InfraConfig) -> Findings:
    """All checks of the cluster that the kubeconfig, or the pod's service account, leads to."""
    settings = infra.kubernetes or KubernetesConfig()
    try:
        kube = connect(settings.namespace)
        version = json.loads(kube.request("GET", "/version").data)["gitVersion"]
    except ClusterError as error:
        yield bad("kubernetes", str(error), "see docs/kubernetes.md")
        return
    yield good("kubernetes", f"{version} at {kube.host}, namespace {kube.namespace}")
    yield from _checked(kube, settings)


def _checked(kube: Kube, settings: KubernetesConfig) -> Findings:
    for subject, check in (
        ("kuberay", _kuberay(kube)),
        ("template", _template(kube, settings)),
        ("token", _token(kube, settings)),
        ("rights", _rights(kube)),
        ("queue", _queue(kube, settings)),
        ("gpus", _gpus(kube, settings)),
        ("secrets", _secrets(kube, settings)),
    ):
        try:
            yield from check
        except ApiError as error:
            # What may not be looked at may still be well.
            make = warning if error.status == 403 else bad
            yield make(subject, str(error), "have somebody look who may")


def _kuberay(kube: Kube) -> Iterator[CheckResult]:
    try:
        answer = json.loads(kube.request("GET", "/apis/ray.io/v1").data)
    except ApiError as error:
        if error.status != 404:
            raise
        yield bad("kuberay", "not installed", "install the KubeRay operator, 1.6 or newer")
        return
    kinds = {resource["name"] for resource in answer["resources"]}
    if "rayclusters" not in kinds:
        yield bad("kuberay", f"ray.io/v1 has only {', '.join(sorted(kinds))}", "install its CRDs")
    elif "raycronjobs" not in kinds:  # which 1.6 has brought
        yield warning("kuberay", "its definitions are older than 1.6", "upgrade CRDs and operator")
    else:
        yield good("kuberay", "ray.io/v1 of 1.6 or newer")


def _template(kube: Kube, settings: KubernetesConfig) -> Iterator[CheckResult]:
    try:
        template = read_template(kube, settings.template)
        rendered = render_raycluster(
            template, name="doctor", run="doctor", workers=1, gpus_per_worker=0, lease_minutes=60
        )
    except ApiError:
        raise
    except ClusterError as error:
        yield bad("template", str(error), "see k8s/base and docs/kubernetes.md")
        return
    head = rendered["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    image = settings.ray_image or head["image"]
    version = template["spec"].get("rayVersion", "?")
    yield good("template", f"{settings.template}: Ray {version}, image {image}")


def _token(kube: Kube, settings: KubernetesConfig) -> Iterator[CheckResult]:
    try:
        template = read_template(kube, settings.template)
        read_token(kube, template)
    except ApiError:
        raise
    except ClusterError as error:
        yield bad("token", str(error), "create it: docs/kubernetes.md")
    else:
        yield good("token", f"secret {template['spec']['authOptions']['secretName']}")


def _rights(kube: Kube) -> Iterator[CheckResult]:
    lacking = []
    for resource, subresource, verbs in RIGHTS:
        name = resource.full_name + (f"/{subresource}" if subresource else "")
        missing = [verb for verb in verbs if not kube.may(verb, resource, subresource)]
        if missing:
            lacking.append(f"{', '.join(missing)} {name}")
    if lacking:
        yield bad("rights", f"may not {'; '.join(lacking)}", "see the Role in k8s/base")
    else:
        yield good("rights", "these credentials may do what a step does")


def _queue(kube: Kube, settings: KubernetesConfig) -> Iterator[CheckResult]:
    if settings.queue is None:
        return
    try:
        found = kube.get(LOCAL_QUEUES, settings.queue)
    except ApiError as error:
        if error.reason != "UnknownKind":
            raise
        yield bad(
            "queue", "Kueue is not installed", "install it, or set infra.kubernetes.queue=null"
        )
        return
    if found is None:
        yield bad("queue", f"there is no LocalQueue {settings.queue}", DEPLOY)
    else:
        yield good("queue", f"LocalQueue {settings.queue}")


def _gpus(kube: Kube, settings: KubernetesConfig) -> Iterator[CheckResult]:
    if settings.gpu_claim is not None:
        name = f"ResourceClaimTemplate {settings.gpu_claim}"
        fault = bad("gpus", f"there is no {name}", "add the component gpu-claim to the overlay")
        yield good("gpus", f"by {name}") if kube.get(CLAIM_TEMPLATES, settings.gpu_claim) else fault
        return
    gpu = settings.gpu_resource
    nodes = json.loads(kube.request("GET", "/api/v1/nodes").data)["items"]
    counts = [int(node["status"].get("allocatable", {}).get(gpu, 0)) for node in nodes]
    with_gpus = [count for count in counts if count]
    if not with_gpus:
        yield warning("gpus", f"none on {len(nodes)} nodes", "fine for trials on CPUs only")
    else:
        yield good("gpus", f"{sum(with_gpus)} on {len(with_gpus)} of {len(nodes)} nodes")


def _secrets(kube: Kube, settings: KubernetesConfig) -> Iterator[CheckResult]:
    """Checks that they exist, without reading them."""
    names = [*settings.secrets, *settings.pull_secrets]
    missing = [name for name in names if kube.metadata(SECRETS, name) is None]
    if missing:
        yield bad("secrets", f"missing: {', '.join(missing)}", "create them: docs/kubernetes.md")
    elif names:
        yield good("secrets", ", ".join(names))
