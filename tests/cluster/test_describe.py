"""What a run has on Kubernetes, in words and in files."""

import json
import re

import pytest
from apiserver import Fault

from vagen.cluster import await_raycluster, describe_run, ensure_raycluster, harvest_logs

pytestmark = pytest.mark.slow


@pytest.fixture
def finished(namespace, kube, manifest):
    """A run whose head was started twice."""
    ensure_raycluster(kube, manifest())
    await_raycluster(kube, "lake", pending_deadline=10)
    namespace.operator.restart_head("lake")
    for pod in namespace.store.all("Pod"):
        name = pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]["name"]
        namespace.operator.logs[name, container, False] = [("2026-01-01T00:00:00Z", f"I am {name}")]
    (head,) = namespace.operator.pods("lake", "head")
    before = (head["metadata"]["name"], "ray-head", True)
    namespace.operator.logs[before] = [("2026-01-01T00:00:00Z", "the life before")]
    return namespace


def test_a_run_is_described(finished, kube) -> None:
    lines = (describe_run(kube, "lake") or "").splitlines()
    assert lines[:2] == [
        "run lake in namespace vagen",
        "  RayCluster lake: ready, workers 2/2, leased for 60 min more",
    ]
    pods = re.findall(r"  pod \S+ \((\w+)\): Running.*?(, 1 restarts)?$", "\n".join(lines), re.M)
    assert pods == [("head", ", 1 restarts"), ("worker", ""), ("worker", "")]
    assert any("OOMKilled, 1 restarts" in line for line in lines)


def test_what_is_wrong_is_described(finished, kube) -> None:
    finished.operator.pod_status = lambda pod: (
        {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
        if "-worker-" in pod["metadata"]["name"]
        else None
    )
    (first, *_) = finished.operator.pods("lake", "worker")
    while finished.store.get("Pod", first["metadata"]["name"])["status"]["phase"] != "Failed":
        pass
    finished.operator.event("RayCluster", "lake", "Sneezed", "once")
    finished.operator.event("RayCluster", "sea", "Sneezed", "elsewhere")
    text = describe_run(kube, "lake") or ""
    assert "was evicted (low on memory)" in text
    assert "Sneezed RayCluster lake: once" in text
    assert "elsewhere" not in text


def test_a_run_that_has_nothing(kube) -> None:
    assert describe_run(kube, "sea") is None


def test_a_harvest_has_every_log(finished, kube, tmp_path) -> None:
    harvest = harvest_logs(kube, "lake", tmp_path / "logs")
    assert harvest.missing == []
    assert all(path.is_file() for path in harvest.files)
    found = {str(path.relative_to(tmp_path / "logs")) for path in harvest.files}
    (head,) = [pod["metadata"]["name"] for pod in finished.operator.pods("lake", "head")]
    assert {"status.txt", "rayclusters.json"} < found
    folder = tmp_path / "logs" / head
    assert (folder / "ray-head.log").read_text() == f"I am {head}\n"
    assert (folder / "ray-head.previous.log").read_text() == "the life before\n"
    assert len(list((tmp_path / "logs").glob("lake-gpu-worker-*/ray-worker.log"))) == 2
    (cluster,) = json.loads((tmp_path / "logs" / "rayclusters.json").read_text())
    assert cluster["status"]["state"] == "ready"


def test_what_cannot_be_harvested_is_named(finished, kube, tmp_path) -> None:
    finished.server.faults.append(Fault("ray-worker", "403"))
    harvest = harvest_logs(kube, "lake", tmp_path / "logs")
    (missing,) = harvest.missing
    assert missing.startswith("lake-gpu-worker-")
    assert "forbidden" in missing
    assert len(list((tmp_path / "logs").glob("lake-gpu-worker-*/ray-worker.log"))) == 1
