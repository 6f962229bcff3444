"""Requests: what is tried again, and what refusals say."""

import time

import pytest
from apiserver import Fault
from cluster_place import QUICK

from vagen.cluster import ApiError, ClusterError, connect
from vagen.cluster.kube import CONFIG_MAPS, PODS, RAYCLUSTERS, Resource


def config_map(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {}}


@pytest.mark.parametrize("action", ["429", "500", "503", "504", "drop", "lose"])
def test_transient_faults_are_tried_again(namespace, kube, action) -> None:
    kube.create(CONFIG_MAPS, config_map("a"))
    namespace.server.faults.append(Fault("GET .*configmaps", action, times=3))
    assert kube.get(CONFIG_MAPS, "a")
    assert sum(one.startswith("GET") for one in namespace.server.requests) == 4


@pytest.mark.slow
def test_the_server_says_when_to_come_back(namespace, kube) -> None:
    namespace.server.faults.append(Fault("GET", "429", headers={"Retry-After": "1"}))
    begun = time.monotonic()
    assert kube.get(CONFIG_MAPS, "a") is None
    assert time.monotonic() - begun >= 1


def test_patience_has_an_end(namespace) -> None:
    from dataclasses import replace

    kube = namespace.connect(replace(QUICK, retry=0.2))
    namespace.server.faults.append(Fault("GET", "503", times=10**6))
    with pytest.raises(ApiError, match=r"GET .*configmaps/a: HTTP 503"):
        kube.get(CONFIG_MAPS, "a")


def test_a_server_that_is_not_there_is_named(namespace) -> None:
    from dataclasses import replace

    kube = namespace.connect(replace(QUICK, retry=0.1))
    kube.api.configuration.host = "http://127.0.0.1:1"
    with pytest.raises(ApiError, match=r"127\.0\.0\.1:1 does not answer \(.*refused.*check the"):
        kube.get(CONFIG_MAPS, "a")


def test_refused_credentials(namespace, kube) -> None:
    namespace.server.token = "right"
    with pytest.raises(ApiError, match="does not accept the credentials") as caught:
        kube.get(CONFIG_MAPS, "a")
    assert caught.value.status == 401
    assert namespace.connect().get(CONFIG_MAPS, "a") is None


def test_a_missing_right_is_named_with_its_verb(namespace, kube) -> None:
    namespace.server.denied = {("create", "rayclusters")}
    with pytest.raises(
        ApiError,
        match=r"service account vagen/vagen-step may not create rayclusters\.ray\.io in namespace "
        r"vagen.*verb `create`",
    ):
        kube.create(RAYCLUSTERS, {"metadata": {"name": "x"}})
    assert not kube.may("create", RAYCLUSTERS)
    assert kube.may("delete", RAYCLUSTERS)


@pytest.mark.parametrize("call", ["get", "list"])
def test_a_cluster_without_kuberay(namespace, kube, call) -> None:
    namespace.store.missing.add("ray.io")
    with pytest.raises(ApiError, match="KubeRay is not installed"):
        kube.list(RAYCLUSTERS) if call == "list" else kube.get(RAYCLUSTERS, "lake")


def test_another_kind_that_is_missing_is_named(kube) -> None:
    with pytest.raises(ApiError, match=r"does not know /apis/kueue\.x-k8s\.io/v1alpha1"):
        kube.list(Resource("kueue.x-k8s.io", "v1alpha1", "localqueues"))


def test_lists_come_in_pages_and_begin_anew_when_a_page_has_expired(namespace, kube) -> None:
    for number in range(25):
        kube.create(CONFIG_MAPS, config_map(f"c{number}"))
    namespace.store.page_limit = 10
    assert len(kube.list(CONFIG_MAPS).items) == 25
    namespace.server.faults.append(Fault("continue=page", "410"))
    listing = kube.list(CONFIG_MAPS)
    assert len({item["metadata"]["name"] for item in listing.items}) == len(listing.items) == 25


def test_selectors_select(namespace, kube) -> None:
    for name, run in (("a", "lake"), ("b", "sea")):
        body = config_map(name)
        body["metadata"]["labels"] = {"vagen.dev/run": run}
        kube.create(CONFIG_MAPS, body)
    (found,) = kube.list(CONFIG_MAPS, "vagen.dev/run=sea").items
    assert found["metadata"]["name"] == "b"
    (found,) = kube.list(CONFIG_MAPS, field_selector="metadata.name=a").items
    assert found["metadata"]["name"] == "a"


def test_a_deletion_with_conditions(namespace, kube) -> None:
    made = kube.create(CONFIG_MAPS, config_map("a"))
    kube.patch(CONFIG_MAPS, "a", {"data": {"key": "value"}})
    with pytest.raises(ApiError) as caught:
        kube.delete(CONFIG_MAPS, "a", read=made)
    assert caught.value.status == 409
    assert kube.delete(CONFIG_MAPS, "a", read=kube.get(CONFIG_MAPS, "a"))


def test_a_log_that_is_not_there_is_empty(namespace, kube) -> None:
    assert kube.log("no-such-pod", "main") == ""
    namespace.operator.pod_status = lambda pod: {"phase": "Pending"}
    kube.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    assert kube.log("p", "c", previous="true") == ""


def test_no_cluster_at_all(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    with pytest.raises(ClusterError, match=r"no usable kubeconfig .*set KUBECONFIG"):
        connect()
