"""Pods that listen and connect with the labels of others, to see what a network lets pass."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from place import ROOT, kubectl, site
from test_network import Peer

KIND = "vagen.dev/probe"
PROGRAM = (ROOT / "tests/e2e/probe.py").read_text()
Row = tuple[Peer, Peer, int]


class Probes:
    """One pod for each peer; none is ever ready, so that no service sends anything to it."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)
        peers = {key(peer): peer for row in self._rows for peer in row[:2]}
        self._names = {which: f"vagen-probe-{number}" for number, which in enumerate(peers)}
        self._peers = peers
        self._made: list[str] = []

    @classmethod
    @contextmanager
    def listening(cls, rows: Iterable[Row]) -> Iterator["Probes"]:
        """Has them started, and takes them away in the end."""
        probes = cls(rows)
        try:
            probes._start()
            yield probes
        finally:
            kubectl("delete", "pods", "--all-namespaces", "-l", KIND, "--force", "--grace-period=0")
            for namespace in probes._made:
                kubectl("delete", "namespace", namespace, "--wait=false")

    def passed(self) -> list[bool]:
        """Whether each row's connection is made."""
        addresses = {
            which: kubectl(*self._of(which), "--output", "jsonpath={.status.podIP}")
            for which in self._names
        }
        found: list[bool] = [False] * len(self._rows)
        for source, name in self._names.items():
            numbers = [n for n, row in enumerate(self._rows) if key(row[0]) == source]
            asked = [(addresses[key(self._rows[n][1])], self._rows[n][2]) for n in numbers]
            if asked:
                words = ("exec", name, "--", "python", "-c", PROGRAM, json.dumps(asked))
                answers = json.loads(kubectl("--namespace", self._peers[source].namespace, *words))
                for number, answer in zip(numbers, answers, strict=True):
                    found[number] = answer
        return found

    def _of(self, which: str) -> tuple[str, ...]:
        return "--namespace", self._peers[which].namespace, "get", "pod", self._names[which]

    def _start(self) -> None:
        there = kubectl("get", "namespaces", "--output", "jsonpath={.items[*].metadata.name}")
        for namespace in {peer.namespace for peer in self._peers.values()} - {*there.split()}:
            kubectl("create", "namespace", namespace)
            self._made.append(namespace)
        ports = sorted({row[2] for row in self._rows})
        for which, name in self._names.items():
            pod = probe(name, self._peers[which], ports)
            subprocess.run(
                ["kubectl", "create", "--filename", "-"],
                input=json.dumps(pod),
                text=True,
                check=True,
                capture_output=True,
            )
        for which in self._names:
            kubectl(
                *("--namespace", self._peers[which].namespace, "wait", f"pod/{self._names[which]}"),
                *("--for", "jsonpath={.status.containerStatuses[0].started}=true"),
                *("--timeout", "5m"),
            )


def key(peer: Peer) -> str:
    """Tells peers apart."""
    return json.dumps([peer.namespace, peer.labels], sort_keys=True)


def probe(name: str, peer: Peer, ports: list[int]) -> dict[str, Any]:
    """A pod that listens on ports, as `restricted` wants it."""
    container = {
        "name": "probe",
        "image": site("VAGEN_IMAGE"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", PROGRAM, "listen", *map(str, ports)],
        "readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 3600},
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": peer.namespace,
            "labels": {**peer.labels, KIND: name},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }
