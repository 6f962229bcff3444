"""The real API server, KubeRay and scheduler: what they say, and what we make of it."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from place import kubectl
from test_kube import test_a_deletion_with_conditions, test_selectors_select
from test_rayclusters import (
    test_a_cluster_of_another_size_is_not_taken,
    test_a_field_that_kuberay_does_not_have_is_refused,
    test_a_quota_that_is_used_up_is_waited_for,
    test_a_second_launcher_finds_it_and_extends_its_time,
    test_another_runs_cluster_is_not_taken,
)

from vagen import cluster
from vagen.cluster import ClusterError
from vagen.cluster.kube import Kube

__all__ = [  # as they are asked of the imitation of tests/cluster
    "test_a_cluster_of_another_size_is_not_taken",
    "test_a_deletion_with_conditions",
    "test_a_field_that_kuberay_does_not_have_is_refused",
    "test_a_quota_that_is_used_up_is_waited_for",
    "test_a_second_launcher_finds_it_and_extends_its_time",
    "test_another_runs_cluster_is_not_taken",
    "test_selectors_select",
]


@pytest.fixture
def namespace(cluster) -> Iterator[str]:
    """A namespace of its own, in which no pod gets far."""
    name = f"vagen-e2e-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name)


@pytest.fixture
def kube(namespace: str) -> Kube:
    return cluster.connect(namespace)


@pytest.fixture
def room_for_one(namespace: str) -> None:
    limit = "--hard=count/rayclusters.ray.io=1"
    kubectl("--namespace", namespace, "create", "quota", "vagen", limit)


@pytest.fixture
def manifest(place) -> Any:
    """A Ray cluster of the deployed template, as a run asks for it."""
    template = cluster.read_template(cluster.connect("vagen"))
    template["metadata"].pop("namespace", None)

    def make(run: str = "lake", **changes: Any) -> dict[str, Any]:
        asked = {"name": run, "run": run, "workers": 1, "gpus_per_worker": 0, "lease_minutes": 5}
        return cluster.render_raycluster(template, **{**asked, **changes})

    return make


def head(body: dict[str, Any]) -> dict[str, Any]:
    return body["spec"]["headGroupSpec"]["template"]["spec"]


def no_secret(body: dict[str, Any]) -> None:
    wanted = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "vagen-none", "key": "KEY"}}}
    head(body)["containers"][0].setdefault("env", []).append(wanted)


def too_much(body: dict[str, Any]) -> None:
    for amounts in head(body)["containers"][0]["resources"].values():
        amounts["cpu"] = "500"


REFUSALS = {
    "nodes without GPUs": ({"gpus_per_worker": 1}, None, "nvidia.com/gpu is short"),
    "no such image": ({"image": "registry.invalid/vagen:1"}, None, "cannot be pulled"),
    "no such secret": ({}, no_secret, "create the secret vagen-none"),
    "more than the quota": ({}, too_much, "quota vagen is used up"),
    "a pod on the host's network": (
        {},
        lambda body: head(body).update(hostNetwork=True),
        "Pod Security refuses the pod",
    ),
    "no such account": (
        {},
        lambda body: head(body).update(serviceAccountName="vagen-none"),
        "service account of its pods is missing",
    ),
    "no such queue": ({"queue": "vagen-none"}, None, "is there a LocalQueue vagen-none"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_keeps_a_ray_cluster_from_starting_is_said(manifest, case) -> None:
    changes, change, said = REFUSALS[case]
    if "queue" in changes and "queues" not in kubectl(
        "api-resources", "--api-group", "kueue.x-k8s.io"
    ):
        pytest.skip("no Kueue")
    there, name = cluster.connect("vagen"), f"e2e-{uuid.uuid4().hex[:6]}"
    body = manifest(name, **changes)
    if change is not None:
        change(body)
    cluster.ensure_raycluster(there, body)
    try:
        with pytest.raises(ClusterError, match=said):
            cluster.await_raycluster(there, name, pending_deadline=45)
    finally:
        cluster.delete_raycluster(there, name)
