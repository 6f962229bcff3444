"""The manifests as kustomize renders them, and the pods in them, for the tests beside this file."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from vagen.deploy.agent import DEPLOYMENT, KSERVE, Agent
from vagen.deploy.agent import render as render_agent
from vagen.deploy.rollout import label_pods

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("cpu", "h100", "h100-multinode")
EVERY = "every-component"
"""All components at once (`tests/k8s/every-component`)."""
RENDERINGS = (*OVERLAYS, EVERY)
TEMPLATE = "raycluster.yaml"

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]
AGENT = Agent("lake", "3", "s3://vagen/runs/lake-1", "s3://vagen/runs/lake-1/checkpoints/0029")


def kustomize(folder: Path) -> str:
    """What `kubectl kustomize` renders."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl 1.27 or newer renders k8s/, and is not here", allow_module_level=True)
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(text: str) -> list[Object]:
    """Objects of a rendering, with the RayCluster of each template and an agent of each kind."""
    found = [document for document in yaml.load_all(text, _LOADER) if document]
    for document in list(found):
        data = document["data"] if document["kind"] == "ConfigMap" else {}
        if TEMPLATE in data:
            found.append(yaml.load(data[TEMPLATE], _LOADER))
        for key in sorted(data.keys() & {DEPLOYMENT, KSERVE}):
            agent = render_agent(data[key], key, AGENT)
            agent["metadata"].update(name=AGENT.name, namespace="vagen")
            if key == DEPLOYMENT:
                label_pods(agent, AGENT)
            found.append(agent)
    return found


@cache
def render(name: str) -> tuple[Object, ...]:
    """Objects of one of `RENDERINGS`."""
    folder = ROOT / "tests/k8s" / name if name == EVERY else K8S / "overlays" / name
    return tuple(load(kustomize(folder)))


def of_kind(name: str, kind: str) -> list[Object]:
    """Objects of a kind."""
    return [found for found in render(name) if found["kind"] == kind]


@dataclass(frozen=True)
class Pod:
    """A pod that something will start, with the labels that it will have."""

    owner: str
    """Kind/name of what starts it."""
    namespace: str
    labels: dict[str, str]
    spec: Object

    @property
    def containers(self) -> list[Object]:
        """All of them, those of the beginning first."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


@cache
def pods(name: str) -> tuple[Pod, ...]:
    """Pods of a rendering, those of its Ray clusters as KubeRay labels them."""
    return tuple(pod for found in render(name) for pod in _pods(found))


def _pods(found: Object) -> Iterator[Pod]:
    namespace = found["metadata"].get("namespace", "")
    owner = f"{found['kind']}/{found['metadata']['name']}"
    if found["kind"] == "RayCluster":
        head, *workers = groups(found)
        yield from (
            Pod(
                f"{owner}/{kind}",
                namespace,
                {
                    **group["template"]["metadata"]["labels"],
                    "ray.io/is-ray-node": "yes",
                    "ray.io/node-type": kind,
                    "ray.io/cluster": found["metadata"]["name"],
                    # The launcher's: vagen.cluster.render.
                    "vagen.dev/run": "a-run",
                },
                group["template"]["spec"],
            )
            for kind, group in [("head", head), *(("worker", group) for group in workers)]
        )
    elif found["kind"] == "InferenceService":
        yield Pod(owner, namespace, found["metadata"]["labels"], found["spec"]["predictor"])
    elif template := _template(found):
        yield Pod(owner, namespace, template["metadata"]["labels"], template["spec"])


def _template(found: Object) -> Object | None:
    spec = found.get("spec", {})
    return (
        spec["jobTemplate"]["spec"]["template"] if "jobTemplate" in spec else spec.get("template")
    )


def groups(cluster: Object) -> list[Object]:
    """Head group and worker groups of a RayCluster."""
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "m": 1e-3, "": 1}


def quantity(text: Any) -> float:
    """Cores, bytes or a count of Kubernetes' notation."""
    text = str(text)
    digits = text.rstrip("KMGTim")
    return float(digits) * _UNITS[text[len(digits) :]]


def needs(pod: Pod, part: str, resource: str) -> float:
    """What the scheduler counts of a pod: its containers together, or an initial one alone."""
    amounts = [
        quantity(container["resources"].get(part, {}).get(resource, 0))
        for container in pod.spec["containers"]
    ]
    first = [
        quantity(container["resources"].get(part, {}).get(resource, 0))
        for container in pod.spec.get("initContainers", [])
    ]
    return max([sum(amounts), *first])
