"""Runs in line: what waits, who goes first, and that Kueue lets in what the overlays ask for."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from place import await_true, kubectl, rayclusters
from test_training import BRIEF, check_ended_well, new_name

from vagen.cluster.names import RUN

QUEUE = "vagen-e2e"
COVERED = {"cpu": "1", "memory": "64Gi", "ephemeral-storage": "200Gi"}
"""Of the overlay `cpu`, a Ray cluster takes more than half of the cores."""

SMALL = "infra.kubernetes.work.cpu=250m"
"""So that both runs' steps find room on one small node."""


def apply(objects: list[dict[str, Any]], verb: str = "apply") -> None:
    subprocess.run(
        ["kubectl", verb, "--filename", "-"],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        text=True,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def queue(cluster) -> Iterator[None]:
    """A queue that holds one run."""
    if "clusterqueues" not in kubectl("api-resources", "--api-group", "kueue.x-k8s.io"):
        pytest.skip("no Kueue")
    quotas = [{"name": name, "nominalQuota": quota} for name, quota in COVERED.items()]
    group = {
        "coveredResources": list(COVERED),
        "flavors": [{"name": QUEUE, "resources": quotas}],
    }
    specs = {
        "ResourceFlavor": {},
        "ClusterQueue": {
            "namespaceSelector": {"matchLabels": {"vagen.dev/runs": "true"}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [group],
        },
        "LocalQueue": {"clusterQueue": QUEUE},
    }
    objects = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": kind,
            "metadata": {"name": QUEUE, "namespace": "vagen"},
            "spec": spec,
        }
        for kind, spec in specs.items()
    ]
    apply(objects)
    yield
    apply(objects[::-1], "delete")


def suspended(name: str) -> bool:
    """Whether a run's Ray cluster is there, and waits."""
    return any(found["spec"].get("suspend") for found in rayclusters(name))


def running(name: str) -> bool:
    words = ("get", "pods", "--namespace", "vagen", "--selector", f"{RUN}={name}")
    return bool(kubectl(*words, "--field-selector", "status.phase=Running", "--output", "name"))


def test_of_two_runs_one_waits_until_the_other_has_ended(place, folder, queue) -> None:
    names = [new_name("first"), new_name("second")]
    words = (*BRIEF, SMALL, f"infra.kubernetes.queue={QUEUE}")
    one = place.submit(folder, names[0], *words)
    await_true(lambda: running(names[0]), 30)
    other = place.submit(folder, names[1], *words)
    await_true(lambda: suspended(names[1]), 30)
    said = subprocess.run(["vagen", "cluster", "status", names[1]], capture_output=True, text=True)
    assert f"Kueue has not admitted it in queue {QUEUE}" in said.stdout
    assert [place.await_end(each, 120) for each in (one, other)] == ["SUCCEEDED"] * 2
    assert check_ended_well(place, names[0]) == check_ended_well(place, names[1])


def test_who_has_priority_goes_first_and_the_other_goes_on_later(place, folder, queue) -> None:
    names = [new_name("trial"), new_name("run")]
    words = (*BRIEF, SMALL, f"infra.kubernetes.queue={QUEUE}")
    trial = place.submit(folder, names[0], *words, "infra.kubernetes.priority=vagen-trial")
    await_true(lambda: running(names[0]), 30)
    run = place.submit(folder, names[1], *words, "infra.kubernetes.priority=vagen-run")
    await_true(lambda: suspended(names[0]), 30)
    assert [place.await_end(each, 120) for each in (run, trial)] == ["SUCCEEDED"] * 2
    assert check_ended_well(place, names[0]) == check_ended_well(place, names[1])
