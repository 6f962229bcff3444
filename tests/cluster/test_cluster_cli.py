"""`vagen cluster` and `vagen doctor --cluster`, with a kubeconfig, against an API server."""

import pytest
import yaml

from vagen.cli.doctor_cluster import cluster as examine
from vagen.cli.findings import CheckOutcome
from vagen.cli.main import main
from vagen.cluster import ClusterError, Dashboard, await_raycluster, ensure_raycluster
from vagen.config import InfraConfig
from vagen.config.kubernetes import KubernetesConfig
from vagen.launch.ray_job import PATIENCE, RayJobs

pytestmark = pytest.mark.slow


@pytest.fixture
def kubeconfig(namespace, monkeypatch, tmp_path):
    path = namespace.write_kubeconfig(tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return namespace


@pytest.fixture
def running(kubeconfig, manifest):
    """A run whose Ray cluster is ready."""
    ensure_raycluster(kubeconfig.kube, manifest())
    await_raycluster(kubeconfig.kube, "lake", pending_deadline=10)
    return kubeconfig


@pytest.mark.parametrize("run", ["lake", "latest", "s3://bucket/runs/lake", "outputs/lake/"])
def test_status(running, capsys, run) -> None:
    assert main(["cluster", "status", run]) == 0
    assert "RayCluster lake: ready, workers 2/2" in capsys.readouterr().out


def test_nothing_is_an_answer_of_its_own(kubeconfig, capsys) -> None:
    assert main(["cluster", "status", "sea"]) == 1
    assert main(["cluster", "logs", "sea"]) == 1
    assert main(["cluster", "delete", "sea"]) == 1
    assert main(["cluster", "gc"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert main(["cluster", "status"]) == 2
    assert "namespace vagen has no run" in capsys.readouterr().err


def test_delete(running, capsys) -> None:
    assert main(["cluster", "delete", "lake"]) == 0
    assert capsys.readouterr().out == "deleted: RayCluster lake\n"
    for kind in ("RayCluster", "Pod"):
        assert running.store.all(kind) == []


def test_gc_says_first_and_does_then(kubeconfig, manifest, capsys) -> None:
    ensure_raycluster(kubeconfig.kube, manifest(lease_minutes=-1))
    assert main(["cluster", "gc", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("would be removed: RayCluster lake of run lake: its lease ended at")
    assert kubeconfig.store.all("RayCluster")
    assert main(["cluster", "gc"]) == 0
    assert capsys.readouterr().out.startswith("removed: RayCluster lake")


def test_a_missing_right_is_the_users_to_put_right(kubeconfig, capsys) -> None:
    kubeconfig.server.denied = {("list", "rayclusters")}
    assert main(["cluster", "status", "lake"]) == 2
    assert "may not list rayclusters.ray.io" in capsys.readouterr().err


def findings(**settings):
    infra = InfraConfig(kubernetes=KubernetesConfig(**{"queue": "vagen", **settings}))
    return {finding.subject: finding for finding in examine(infra)}


@pytest.fixture
def deployed(kubeconfig, template):
    store = kubeconfig.store
    data = {"raycluster.yaml": yaml.safe_dump(template)}
    store.create("ConfigMap", {"metadata": {"name": "vagen-raycluster"}, "data": data})
    store.create("Secret", {"metadata": {"name": "vagen-s3"}, "data": {"key": "c2VjcmV0"}})
    token = {"auth_token": "dG9rZW4="}
    store.create("Secret", {"metadata": {"name": "vagen-ray-token"}, "data": token})
    store.create("LocalQueue", {"metadata": {"name": "vagen"}})
    for name, gpus in (("cpu", {}), ("gpu", {"nvidia.com/gpu": "8"})):
        store.create("Node", {"metadata": {"name": name}, "status": {"allocatable": gpus}})
    return kubeconfig


def test_a_cluster_that_is_well(deployed) -> None:
    found = findings()
    assert {finding.verdict for finding in found.values()} == {CheckOutcome.GOOD}
    assert found["kubernetes"].text.startswith("v1.33.5 at http://127.0.0.1")
    assert found["template"].text == (
        "vagen-raycluster: Ray 2.60.0, image registry.example/vagen/trainer:1"
    )
    assert found["token"].text == "secret vagen-ray-token"
    assert found["gpus"].text == "8 on 1 of 2 nodes"
    assert found["secrets"].text == "vagen-s3"


def test_gpus_of_another_resource_and_by_claims(deployed) -> None:
    assert findings(gpu_resource="amd.com/gpu")["gpus"].text == "none on 2 nodes"
    claimed = {"gpu_claim": "vagen-gpu"}
    assert findings(**claimed)["gpus"].text == "there is no ResourceClaimTemplate vagen-gpu"
    deployed.store.create("ResourceClaimTemplate", {"metadata": {"name": "vagen-gpu"}})
    assert findings(**claimed)["gpus"].verdict is CheckOutcome.GOOD


def test_each_fault_of_a_cluster_is_a_line(deployed) -> None:
    deployed.store.delete("ConfigMap", "vagen-raycluster", {})
    deployed.store.delete("Secret", "vagen-s3", {})
    deployed.store.delete("LocalQueue", "vagen", {})
    deployed.store.delete("Node", "gpu", {})
    deployed.server.ray_resources.remove("raycronjobs")
    deployed.server.denied = {("create", "rayclusters"), ("get", "pods/log")}
    found = findings()
    assert "no ConfigMap vagen-raycluster" in found["template"].text
    assert found["secrets"].text == "missing: vagen-s3"
    assert found["queue"].text == "there is no LocalQueue vagen"
    assert found["gpus"].text == "none on 1 nodes"
    assert "older than 1.6" in found["kuberay"].text
    assert found["rights"].text == "may not create rayclusters.ray.io; get pods/log"


def test_what_may_not_be_looked_at_is_no_fault(deployed) -> None:
    deployed.server.denied = {("list", "nodes"), ("get", "secrets"), ("get", "localqueues")}
    found = findings()
    for subject in ("gpus", "secrets", "queue"):
        assert found[subject].verdict is CheckOutcome.WARNING
        assert "may not" in found[subject].text


def test_a_cluster_without_extensions(deployed) -> None:
    deployed.store.missing |= {"ray.io", "kueue.x-k8s.io"}
    found = findings()
    assert found["kuberay"].text == "not installed"
    assert found["queue"].text == "Kueue is not installed"


def test_a_template_that_kuberay_would_not_work_on(deployed, template) -> None:
    template["spec"]["headGroupSpec"]["rayStartParams"] = {}
    data = {"raycluster.yaml": yaml.safe_dump(template)}
    deployed.store.update("ConfigMap", "vagen-raycluster", {"data": data}, merge=True)
    assert 'num-cpus: "0"' in findings()["template"].text


def test_secrets_are_not_read(deployed) -> None:
    findings()
    accepted = deployed.server.accepted["/api/v1/namespaces/vagen/secrets/vagen-s3"]
    assert accepted.startswith("application/json;as=PartialObjectMetadata")


def test_a_server_that_refuses_is_one_line(deployed) -> None:
    deployed.server.token = "another"
    (finding,) = findings().values()
    assert "does not accept the credentials" in finding.text


def test_a_job_is_asked_for_where_ray_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ClusterError, match="Ray, which is not installed"):
        RayJobs(Dashboard("http://127.0.0.1:8265", "token"), PATIENCE)
