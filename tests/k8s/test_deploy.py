"""k8s/deploy.sh against a kubectl that writes down what it is told: order, refusals, what is kept.

Rendering is kubectl's own; only what would go to a cluster is recorded instead.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from rendered import EVERY, K8S, OVERLAYS, of_kind, pods
from test_references import referred_secrets

from vagen.experiment.load import load_infra

RECORDER = """#!/usr/bin/env bash
# MISSING: words in a command line that make it fail; ANSWER: what a list of RayClusters says.
[[ $1 == kustomize ]] && exec {kubectl} "$@"
number=$(ls "$CALLS" | wc -l)
echo "$*" > "$CALLS/$(printf %03d "$number")"
[[ "$*" == *"--filename -"* ]] && cat > "$CALLS/$(printf %03d "$number").stdin"
[[ "$*" == *--dry-run=server*--filename* && -n $REFUSED ]] && echo -e "$REFUSED" >&2 && exit 1
for word in $MISSING; do [[ "$*" == *"$word"* ]] && exit 1; done
case "$*" in
    *"get rayclusters"*) echo "$ANSWER" ;;
    *kuberay-operator*) echo "quay.io/kuberay/operator:${{KUBERAY:-v1.6.2}}" ;;
    *name=kueue*) echo "registry:5000/kueue/kueue:v0.19.2" ;;
    *metadata.name=ml-pipeline*) echo "ghcr.io/kubeflow/kfp-api-server:${{KFP:-2.17.0}}" ;;
    *endpoints*addresses*) echo "172.18.0.2 172.18.0.3" ;;
    *endpoints*port*) echo 16443 ;;
esac
"""
SITE = {
    "registry.invalid": "registry.example",
    "KUBE_API_CIDR=192.0.2.0/24": "KUBE_API_CIDR=172.18.0.0/28",
    "KUBE_API_PORT=6443": "KUBE_API_PORT=16443",
}
"""What a site must change before anything is deployed."""


pytestmark = pytest.mark.slow


@dataclass
class Cluster:
    """What kubectl was told."""

    folder: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the script of the folder, where the site's file is as a site would have it."""
        variables = {
            "CALLS": str(self.calls),
            "MISSING": "",
            "ANSWER": "",
            "REFUSED": "",
            **environment,
        }
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [self.folder / "k8s/deploy.sh", *arguments],
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
    shutil.copytree(K8S, tmp_path / "k8s")
    rewrite(tmp_path / "k8s/site/site.env", SITE)
    recorder = tmp_path / "kubectl"
    recorder.write_text(RECORDER.format(kubectl=shutil.which("kubectl")))
    recorder.chmod(0o755)
    return Cluster(tmp_path)


def rewrite(path: Path, changes: dict[str, str]) -> None:
    """Puts other words into a file."""
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def position(lines: list[str], words: str) -> int:
    """Where a command line with these words is."""
    (found,) = [number for number, line in enumerate(lines) if words in line]
    return found


def test_deploy_checks_then_applies(cluster: Cluster) -> None:
    done = cluster.run("deploy", "h100-multinode")
    assert done.returncode == 0, done.stderr
    lines = cluster.told()
    order = [
        position(lines, "kuberay-operator"),
        position(lines, "name=kueue"),
        position(lines, "--namespace vagen get secret vagen-mlflow-s3"),
        position(lines, "--namespace vagen-rdma get secret vagen-s3"),
        position(lines, "--namespace kubeflow get secret vagen-s3"),
        position(
            lines,
            "apply --server-side --force-conflicts --field-manager vagen --dry-run=server --k",
        ),
        position(lines, "delete job vagen-s3-bucket"),
        position(
            lines, "apply --server-side --force-conflicts --field-manager vagen --kustomize kfp"
        ),
    ]
    assert order == sorted(order)
    assert "next:" in done.stdout


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"MISSING": "version"}, "no Kubernetes API answers"),
        ({"MISSING": "kuberay"}, "KubeRay is not installed: 1.6 or newer is needed"),
        ({"KUBERAY": "v1.5.1"}, "KubeRay is 1.5.1 here: 1.6 or newer is needed"),
        ({"KFP": "2.9.0"}, "Kubeflow Pipelines is 2.9.0 here: 2.17 or newer is needed"),
        ({"MISSING": "vagen-s3-admin"}, "secrets are missing: vagen/vagen-s3-admin ("),
    ],
)
def test_deploy_stops_before_it_applies(cluster: Cluster, environment: dict, said: str) -> None:
    done = cluster.run("deploy", "cpu", **environment)
    assert done.returncode == 2
    assert said in done.stderr
    assert not [line for line in cluster.told() if "apply" in line or "delete" in line]


def test_all_that_is_wrong_is_said_at_once(cluster: Cluster) -> None:
    site = cluster.folder / "k8s/site/site.env"
    shutil.copy(K8S / "site/site.env", site)
    rewrite(site, {"HTTPS_CIDR=192.0.2.0/24": "HTTPS_CIDR=0.0.0.0/0"})
    done = cluster.run("deploy", "h100", MISSING="name=kueue secret", KFP="2.16.1")
    assert done.returncode == 2
    for said in (
        "the image registry.invalid/vagen/cpu:0.2.0 is a placeholder",
        "the image registry.invalid/vagen/trainer:0.2.0 is a placeholder",
        "Kueue is not installed",
        "Kubeflow Pipelines is 2.16.1",
        "the API server is at 172.18.0.2 172.18.0.3, port 16443",
        "HTTPS_CIDR lets runs send data to everybody",
        "secrets are missing",
    ):
        assert f"- {said}" in done.stderr
    assert "judge" not in done.stderr, "the overlay has none"


def test_the_ingress_needs_a_name_and_an_issuer(cluster: Cluster) -> None:
    overlay = cluster.folder / "k8s/overlays/cpu/kustomization.yaml"
    rewrite(overlay, {"# - ../../components/ingress": "- ../../components/ingress"})
    done = cluster.run("deploy", "cpu")
    assert "MLFLOW_HOST or OIDC_ISSUER in k8s/site/site.env is a placeholder" in done.stderr
    hosts = {"mlflow.example.com": "mlflow.ours.example", "login.example.com": "id.ours.example"}
    rewrite(cluster.folder / "k8s/site/site.env", hosts)
    assert cluster.run("deploy", "cpu").returncode == 0


@pytest.mark.parametrize("range_", ["0.0.0.0/0", "172.18.0.2/32"])
def test_the_api_servers_range_holds_it_and_is_not_everything(cluster: Cluster, range_) -> None:
    rewrite(cluster.folder / "k8s/site/site.env", {"172.18.0.0/28": range_})
    done = cluster.run("deploy", "cpu")
    assert done.returncode == 2
    assert "(172.18.0.2/32), KUBE_API_PORT=16443" in done.stderr


@pytest.mark.parametrize("overlay", [*OVERLAYS, EVERY])
def test_the_secrets_asked_for_are_those_that_pods_cannot_start_without(
    cluster: Cluster, overlay: str
) -> None:
    folder = cluster.folder / "tests/k8s" / EVERY
    shutil.copytree(Path(__file__).parent / EVERY, folder)
    done = cluster.run("deploy", str(folder) if overlay == EVERY else overlay, MISSING="secret")
    (asked,) = re.findall("secrets are missing: (.*) \\(", done.stderr)
    needed = {
        f"{pod.namespace}/{name}"
        for pod in pods(overlay)
        for name, _ in referred_secrets(pod, optional=False)
    }
    needed |= {
        f"vagen/{entry['secretName']}"
        for found in of_kind(overlay, "Ingress")
        for entry in found["spec"]["tls"]
    }
    for found in of_kind(overlay, "RayCluster"):
        needed.add(f"{found['metadata']['namespace']}/{found['spec']['authOptions']['secretName']}")
    asked = {one for one in asked.split() if one.partition("/")[0] != "kubeflow"}
    # Pods would start without keys of the store, and have none.
    spaces = {pod.namespace for pod in pods(overlay)} | {
        found["metadata"]["namespace"] for found in of_kind(overlay, "RayCluster")
    }
    keys = {f"{space}/vagen-s3" for space in spaces} | {"vagen/vagen-mlflow-s3"}
    assert asked == needed | keys | {"vagen/vagen-ray-token"}


@pytest.mark.parametrize(
    ("component", "asked"),
    [("identity", {"-s3": False}), ("pull-secret", {"-pull": True, "-s3": True})],
)
def test_the_sites_components_change_the_secrets_asked_for(
    cluster: Cluster, component: str, asked: dict[str, bool]
) -> None:
    line = f"- ../components/{component}"
    rewrite(cluster.folder / "k8s/site/kustomization.yaml", {f"# {line}": line})
    done = cluster.run("deploy", "cpu", MISSING="secret")
    for secret, there in asked.items():
        for namespace in ("vagen", "kubeflow"):
            assert (f"{namespace}/vagen{secret} " in done.stderr) == there, done.stderr


def test_what_the_api_server_refuses_is_said_before_anything_changes(cluster: Cluster) -> None:
    done = cluster.run(
        "deploy",
        "cpu",
        REFUSED='The StatefulSet "vagen-s3" is invalid: spec: Forbidden: updates to statefulset '
        "spec for fields other than 'replicas' are forbidden\n"
        'error: resource mapping not found: no matches for kind "PodMonitor"',
    )
    assert done.returncode == 2
    assert "delete statefulset vagen-s3 --cascade=orphan" in done.stderr
    assert (
        'the API server refuses: error: resource mapping not found: no matches for kind "PodM'
        in done.stderr
    )
    assert not [
        line for line in cluster.told() if " apply" in f" {line}" and "--dry-run=server" not in line
    ]
    assert not [line for line in cluster.told() if "delete job" in line]


def test_steps_secrets_are_asked_for_where_kubeflow_runs_them(cluster: Cluster) -> None:
    done = cluster.run("deploy", "cpu", MISSING="secret")
    config = load_infra("kubernetes-cpu", []).kubernetes
    assert all(f"kubeflow/{secret}" in done.stderr for secret in config.secrets)


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


def test_undeploy_asks_about_the_cluster_that_it_would_take_it_from(cluster: Cluster) -> None:
    asked = cluster.run("undeploy", "cpu", CONTEXT="theirs")
    assert asked.returncode == 2
    assert "from theirs?" in asked.stderr and "nothing was removed" in asked.stderr
    assert not [line for line in cluster.told() if "delete" in line]


def test_undeploy_refuses_while_runs_are_active(cluster: Cluster) -> None:
    done = cluster.run("undeploy", "cpu", YES="1", ANSWER="raycluster.ray.io/a-run")
    assert done.returncode == 2
    assert "runs are active in vagen: raycluster.ray.io/a-run" in done.stderr
    assert not [line for line in cluster.told() if "delete" in line]


def test_an_unknown_overlay_is_refused_with_those_that_exist(cluster: Cluster) -> None:
    done = cluster.run("deploy", "nothing")
    assert done.returncode == 2
    assert "cpu h100 h100-multinode tenant" in done.stderr
