"""What is sent to KubeRay: per-run fields laid on the platform's RayCluster, and RayJobs on it."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence

import yaml

from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import CONFIG_MAPS, Kube, Object
from vagen.cluster.names import (
    ATTEMPT,
    EXPIRES_AT,
    QUEUE,
    RAY_CLUSTER,
    RUN_NAME,
    TASK,
    TTL,
    attempt_name,
    expiry,
    run_labels,
)
from vagen.cluster.rules import check_raycluster, check_rayjob

TEMPLATE = "vagen-raycluster"
TEMPLATE_KEY = "raycluster.yaml"
GPU = "nvidia.com/gpu"
SUBMITTER = "ray-job-submitter"
_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def read_template(kube: Kube, name: str = TEMPLATE) -> Object:
    """The RayCluster that the platform's people have laid down in a ConfigMap.

    Raises:
        ClusterError: The ConfigMap, its key or a RayCluster in it is missing.
    """
    found = kube.get(CONFIG_MAPS, name)
    if found is None:
        raise ClusterError(
            f"there is no ConfigMap {name} in namespace {kube.namespace}: `make deploy` brings it"
        )
    text = found.get("data", {}).get(TEMPLATE_KEY)
    if text is None:
        raise ClusterError(f"ConfigMap {name} has no key {TEMPLATE_KEY}")
    try:
        template = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ClusterError(f"{TEMPLATE_KEY} of ConfigMap {name} is no YAML: {error}") from error
    if not isinstance(template, dict) or template.get("kind") != "RayCluster":
        raise ClusterError(f"{TEMPLATE_KEY} of ConfigMap {name} is no RayCluster")
    return template


def render_raycluster(
    template: Object,
    *,
    name: str,
    run: str,
    workers: int,
    gpus_per_worker: int,
    ttl_hours: float,
    image: str | None = None,
    env: Mapping[str, str] | None = None,
    env_from: Iterable[Object] = (),
    labels: Mapping[str, str] | None = None,
    queue: str | None = None,
    owner: Object | None = None,
    service_account: str | None = None,
) -> Object:
    """A run's RayCluster: the template with what differs per run; nothing of it is dropped.

    Args:
        template: The platform's RayCluster with one worker group.
        name: Its name: see `vagen.cluster.names.cluster_name`.
        run: Name of the run that owns it.
        workers: Worker pods.
        gpus_per_worker: GPUs of each, as request and limit; 0 takes the template's away.
        ttl_hours: From now until `gc` may remove it.
        image: Of all Ray containers, instead of the template's.
        env: Variables of all Ray containers; they replace the template's of the same names.
        env_from: Further `envFrom` sources, after the template's.
        labels: Further labels of the cluster and its pods.
        queue: Kueue's local queue, which admits head and workers as a whole.
        owner: An object in the same namespace with whose deletion the cluster goes, too.
        service_account: Of all Ray pods, instead of the template's.

    Raises:
        ClusterError: KubeRay would not work on the result: says why.
    """
    manifest = copy.deepcopy(template)
    manifest["apiVersion"], manifest["kind"] = "ray.io/v1", "RayCluster"
    every = {**run_labels(run), **(labels or {})}
    metadata = manifest.setdefault("metadata", {})
    metadata["name"] = name
    metadata["labels"] = {**(metadata.get("labels") or {}), **every, TTL: "true"}
    if queue:
        metadata["labels"][QUEUE] = queue
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        RUN_NAME: run,
        EXPIRES_AT: expiry(ttl_hours),
    }
    if owner:
        # An owner elsewhere does not count as one, and the cluster would be collected at once; a
        # namespace that is not the request's is refused.
        metadata["namespace"] = owner["metadata"]["namespace"]
        metadata["ownerReferences"] = [owner_reference(owner)]
    spec = manifest.setdefault("spec", {})
    groups = spec.get("workerGroupSpecs") or []
    if len(groups) != 1:
        raise ClusterError(
            f"the RayCluster template has {len(groups)} worker groups: it must have one"
        )
    groups[0].update(replicas=workers, minReplicas=workers, maxReplicas=workers)
    for group in (spec.get("headGroupSpec") or {}, groups[0]):
        _lay_on(group, every, image, env or {}, list(env_from), service_account)
    _set_gpus(groups[0], gpus_per_worker)
    check_raycluster(manifest)
    return manifest


def render_rayjob(
    cluster: Object,
    *,
    task: str,
    run: str,
    entrypoint: Sequence[str],
    ttl_hours: float,
    active_deadline: float,
    attempt: int = 1,
    env: Mapping[str, str] | None = None,
    submitter: Object | None = None,
) -> Object:
    """A RayJob on a run's RayCluster, owned by it: it goes when the cluster goes.

    It is submitted by a Kubernetes Job and never started a second time by KubeRay: attempts are
    the launcher's, one after the other.

    Args:
        cluster: The RayCluster, as the API server has it.
        task: Name of the first attempt: see `vagen.cluster.names.job_name`.
        run: Name of the run.
        entrypoint: Command line on the head; words that need no quoting.
        ttl_hours: From now until `gc` may remove it.
        active_deadline: Seconds from its creation until KubeRay fails it.
        attempt: 1, 2, ...
        env: Variables of the driver.
        submitter: Pod template of the submitter, instead of `submitter_template(cluster)`.

    Raises:
        ClusterError: A word or a value that the shells on its way would change, or a broken rule.
    """
    _check_words(entrypoint, env or {})
    spec: Object = {
        "clusterSelector": {RAY_CLUSTER: cluster["metadata"]["name"]},
        "submissionMode": "K8sJobMode",
        "entrypoint": " ".join(entrypoint),
        "activeDeadlineSeconds": max(1, round(active_deadline)),
        "submitterPodTemplate": _with_labels(submitter or submitter_template(cluster), run),
    }
    if env:
        spec["runtimeEnvYAML"] = yaml.safe_dump({"env_vars": dict(env)})
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": attempt_name(task, attempt),
            "labels": {**run_labels(run), TASK: task, ATTEMPT: str(attempt), TTL: "true"},
            "annotations": {RUN_NAME: run, EXPIRES_AT: expiry(ttl_hours)},
            "ownerReferences": [owner_reference(cluster)],
        },
        "spec": spec,
    }
    check_rayjob(manifest)
    return manifest


def submitter_template(cluster: Object) -> Object:
    """A small pod for `ray job submit` that Pod Security `restricted` admits.

    Image, pull secrets, user, service account and placement are the head's: Ray's versions must
    agree, and what may run the head may run this.
    """
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    inherited = {
        key: copy.deepcopy(head[key])
        for key in (
            "imagePullSecrets",
            "nodeSelector",
            "tolerations",
            "affinity",
            "serviceAccountName",
            "priorityClassName",
        )
        if key in head
    }
    container = {
        "name": SUBMITTER,
        "image": head["containers"][0]["image"],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        },
        "env": [{"name": "HOME", "value": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pull_policy = head["containers"][0].get("imagePullPolicy")
    if pull_policy:
        container["imagePullPolicy"] = pull_policy
    return {
        "spec": {
            **inherited,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
                **copy.deepcopy(head.get("securityContext") or {}),
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}],
        }
    }


def owner_reference(owner: Object) -> Object:
    """A reference by which the garbage collector deletes an object after its owner.

    It does not block the owner's deletion: that would need the right to change its finalizers.
    """
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def _lay_on(
    group: Object,
    labels: Mapping[str, str],
    image: str | None,
    env: Mapping[str, str],
    env_from: list[Object],
    service_account: str | None,
) -> None:
    """Per-run fields of a group's pods; the Ray container is the first, as KubeRay has it."""
    template = group.setdefault("template", {})
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    pod = template.setdefault("spec", {})
    if service_account:
        pod["serviceAccountName"] = service_account
    for container in pod.get("containers", [])[:1]:
        if image:
            container["image"] = image
        # A list keyed by name: the API server refuses a name twice.
        kept = [entry for entry in container.get("env") or [] if entry["name"] not in env]
        container["env"] = [*kept, *({"name": key, "value": env[key]} for key in env)]
        container["envFrom"] = [*(container.get("envFrom") or []), *env_from]


def _set_gpus(group: Object, count: int) -> None:
    for container in group["template"]["spec"].get("containers", [])[:1]:
        resources = container.setdefault("resources", {})
        for part in ("requests", "limits"):
            amounts = resources.setdefault(part, {})
            amounts.pop(GPU, None)
            if count:
                amounts[GPU] = str(count)


def _with_labels(template: Object, run: str) -> Object:
    labelled = copy.deepcopy(template)
    metadata = labelled.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **run_labels(run)}
    return labelled


def _check_words(entrypoint: Sequence[str], env: Mapping[str, str]) -> None:
    """The entrypoint passes through two shells and `ray job submit`, variables through one."""
    for word in entrypoint:
        if not _WORD.fullmatch(word):
            raise ClusterError(f"entrypoint: {word!r} would have to be quoted; pass it in a file")
    for key, value in env.items():
        if "$" in value or "`" in value:
            raise ClusterError(f"env.{key}: a shell on the way would expand $ or ` in {value!r}")
