"""The platform on a real cluster: who reaches whom, who may what, what is refused."""

import json
import subprocess

import pytest
from place import KFP, kubectl, site
from probes import Probes, Row, key, probe
from test_network import MUST_NOT_PASS, MUST_PASS, Peer

ACCOUNT = f"--as=system:serviceaccount:{KFP}:{site('KFP_SERVICE_ACCOUNT')}"


def inside(rows: list) -> list[Row]:
    """Flows between two pods of what every overlay has."""
    return [
        (source, target, port)
        for name, source, target, port in rows
        if name == "h100" and source.namespace and target.namespace and key(source) != key(target)
    ]


def test_the_network_lets_pass_what_the_table_says_and_nothing_else(cluster) -> None:
    rows = [*inside(MUST_PASS), *inside(MUST_NOT_PASS)]
    expected = [True] * len(inside(MUST_PASS)) + [False] * len(inside(MUST_NOT_PASS))
    with Probes.listening(rows) as probes:
        found = probes.passed()
    wrong = [row for row, got, want in zip(rows, found, expected, strict=True) if got != want]
    assert not wrong


@pytest.mark.parametrize("what", ["root", "host", "capability"])
def test_pod_security_refuses(cluster, what: str) -> None:
    pod = probe("vagen-probe", Peer("vagen", {}), [8000])
    if what == "root":
        pod["spec"]["securityContext"]["runAsUser"] = 0
    elif what == "host":
        pod["spec"]["hostNetwork"] = True
    else:
        pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "--filename", "-"],
        input=json.dumps(pod),
        text=True,
        capture_output=True,
    )
    assert done.returncode and "violates PodSecurity" in done.stderr


@pytest.mark.parametrize(
    ("verb", "what", "namespace", "may"),
    [
        ("create", "rayclusters.ray.io", "vagen", True),
        ("delete", "rayclusters.ray.io", "vagen", True),
        ("get", "secrets/vagen-ray-token", "vagen", True),
        ("get", "secrets/vagen-s3", "vagen", False),
        ("list", "secrets", "vagen", False),
        ("create", "pods", "vagen", False),
        ("create", "pods/exec", "vagen", False),
        ("list", "secrets", KFP, False),
        ("create", "pods", KFP, False),
        ("create", "rayclusters.ray.io", "default", False),
        ("get", "nodes", "default", False),
    ],
)
def test_what_a_step_may(cluster, verb: str, what: str, namespace: str, may: bool) -> None:
    words = ("auth", "can-i", verb, what, ACCOUNT, "--namespace", namespace)
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True)
    assert done.stdout.strip() == ("yes" if may else "no"), done.stderr


def test_nobody_else_of_kubeflow_may_make_ray_clusters(cluster) -> None:
    words = ("auth", "can-i", "create", "rayclusters.ray.io", "--namespace", "vagen")
    account = f"--as=system:serviceaccount:{KFP}:default"
    done = subprocess.run(["kubectl", *words, account], capture_output=True, text=True)
    assert done.stdout.strip() == "no"
    assert kubectl(*words).strip() == "yes", "whoever runs these tests may"
