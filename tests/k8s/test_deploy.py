"""k8s/deploy.sh against a kubectl that writes down what it is told: order, refusals, what is kept.

Rendering is kubectl's own; only what would go to a cluster is recorded instead.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from rendered import K8S

RECORDER = """#!/usr/bin/env bash
# MISSING: words in a command line that make it fail; ANSWER: what a list of RayClusters says.
[[ $1 == kustomize ]] && exec {kubectl} "$@"
number=$(ls "$CALLS" | wc -l)
echo "$*" > "$CALLS/$(printf %03d "$number")"
[[ "$*" == *"--filename -"* ]] && cat > "$CALLS/$(printf %03d "$number").stdin"
[[ "$*" == *"get rayclusters"* ]] && echo "$ANSWER"
for word in $MISSING; do [[ "$*" == *"$word"* ]] && exit 1; done
exit 0
"""


pytestmark = pytest.mark.slow


@dataclass
class Cluster:
    """What kubectl was told."""

    folder: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"CALLS": str(self.calls), "MISSING": "", "ANSWER": "", **environment}
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [K8S / "deploy.sh", *arguments],
            env={**os.environ, **variables, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def calls(self) -> Path:
        return self.folder / "calls"

    def told(self) -> list[str]:
        """Command lines, in order."""
        return [
            path.read_text().strip() for path in sorted(self.calls.iterdir()) if not path.suffix
        ]

    def sent(self, words: str) -> list[tuple[str, str]]:
        """Kinds and names that a command line with these words got on its standard input."""
        (path,) = [
            path for path in self.calls.iterdir() if not path.suffix and words in path.read_text()
        ]
        text = path.with_name(path.name + ".stdin").read_text()
        documents = [found for found in yaml.safe_load_all(text) if found]
        return [(found["kind"], found["metadata"]["name"]) for found in documents]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "calls").mkdir()
    recorder = tmp_path / "kubectl"
    recorder.write_text(RECORDER.format(kubectl=shutil.which("kubectl")))
    recorder.chmod(0o755)
    return Cluster(tmp_path)


def position(lines: list[str], words: str) -> int:
    """Where a command line with these words is."""
    (found,) = [number for number, line in enumerate(lines) if words in line]
    return found


def test_deploy_makes_namespaces_then_asks_for_secrets_then_applies(cluster: Cluster) -> None:
    done = cluster.run("deploy", "h100-multinode")
    assert done.returncode == 0, done.stderr
    lines = cluster.told()
    order = [
        position(lines, "get crd rayclusters.ray.io"),
        position(lines, "get crd clusterqueues.kueue.x-k8s.io"),
        position(lines, "apply --server-side --field-manager vagen --filename -"),
        position(lines, "--namespace vagen get secret vagen-mlflow"),
        position(lines, "--namespace vagen-rdma get secret vagen-s3"),
        position(lines, "delete job vagen-s3-bucket"),
        position(lines, "--kustomize kfp"),
    ]
    assert order == sorted(order)
    assert cluster.sent("apply --server-side --field-manager vagen --filename -") == [
        ("Namespace", "vagen"),
        ("Namespace", "vagen-rdma"),
    ]
    assert "next:" in done.stdout


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("version", "no Kubernetes API answers"),
        ("rayclusters", "KubeRay is not installed"),
        ("vagen-s3", "secrets are missing: vagen/vagen-s3"),
    ],
)
def test_deploy_stops_before_it_applies(cluster: Cluster, missing: str, said: str) -> None:
    done = cluster.run("deploy", "cpu", MISSING=missing)
    assert done.returncode == 2
    assert said in done.stderr
    assert not [line for line in cluster.told() if "--force-conflicts" in line]


def test_a_missing_namespace_of_kubeflow_is_only_told(cluster: Cluster) -> None:
    done = cluster.run("deploy", "cpu", MISSING="kubeflow")
    assert done.returncode == 0
    assert "no namespace kubeflow" in done.stderr
    assert not [line for line in cluster.told() if "--kustomize kfp" in line]


def test_undeploy_keeps_namespaces_and_with_them_volumes_and_secrets(cluster: Cluster) -> None:
    done = cluster.run("undeploy", "cpu", YES="1")
    assert done.returncode == 0, done.stderr
    removed = cluster.sent("delete --ignore-not-found --wait --filename -")
    assert ("StatefulSet", "vagen-s3") in removed
    assert not [kind for kind, _ in removed if kind in ("Namespace", "PersistentVolumeClaim")]
    assert not [line for line in cluster.told() if "delete namespace" in line]
    assert "DATA=delete" in done.stdout


def test_undeploy_removes_everything_only_if_told(cluster: Cluster) -> None:
    assert cluster.run("undeploy", "cpu", YES="1", DATA="delete").returncode == 0
    assert cluster.told()[-1].endswith("delete namespace --ignore-not-found vagen")


def test_undeploy_refuses_while_runs_are_active(cluster: Cluster) -> None:
    done = cluster.run("undeploy", "cpu", YES="1", ANSWER="raycluster.ray.io/a-run")
    assert done.returncode == 2
    assert "runs are active in vagen: raycluster.ray.io/a-run" in done.stderr
    assert not [line for line in cluster.told() if "delete" in line]


def test_an_unknown_overlay_is_refused_with_those_that_exist(cluster: Cluster) -> None:
    done = cluster.run("deploy", "nothing")
    assert done.returncode == 2
    assert "cpu h100 h100-multinode" in done.stderr
