"""Kueue admits a run of each template: its rules, applied to the queues that the overlays have.

The functions named are those of Kueue 0.19, pkg/scheduler/flavorassigner.
"""

from collections import Counter
from typing import Any

import pytest
from rendered import EVERY, OVERLAYS, Pod, groups, needs, of_kind, quantity
from test_launched import launched

TOPOLOGY = ("required", "preferred", "unconstrained")
PAIRS = [
    pytest.param(name, template, id=f"{name}-{template['metadata']['namespace']}")
    for name in OVERLAYS
    for template in of_kind(name, "RayCluster")
]


def queue_of(name: str) -> dict[str, Any]:
    """The queue of an overlay; of one without queues, that of the component."""
    (queue,) = of_kind(name, "ClusterQueue") or of_kind(EVERY, "ClusterQueue")
    return queue["spec"]


def flavors_of(name: str) -> dict[str, Any]:
    """Flavors by name."""
    found = of_kind(name, "ResourceFlavor") or of_kind(EVERY, "ResourceFlavor")
    return {flavor["metadata"]["name"]: flavor.get("spec", {}) for flavor in found}


def requests(group: dict[str, Any]) -> dict[str, float]:
    """What all pods of a group request, by resource."""
    pod = Pod("", "", {}, group["template"]["spec"])
    names = {name for part in pod.containers for name in part["resources"]["requests"]}
    count = group.get("replicas", 1)
    return {name: count * needs(pod, "requests", name) for name in names}


def fits(group: dict[str, Any], flavor: dict[str, Any]) -> bool:
    """Whether a flavor's nodes suit the pods (`checkFlavorForPodSets`): labels, topology."""
    spec = group["template"]["spec"]
    # A required affinity or a taint would need more than this: there is none.
    assert "required" not in str(spec.get("affinity", {}))
    assert not flavor.get("nodeTaints")
    labels = flavor.get("nodeLabels", {})
    wanted = spec.get("nodeSelector", {})
    annotations = group["template"]["metadata"].get("annotations", {})
    near = any(f"kueue.x-k8s.io/podset-{kind}-topology" in annotations for kind in TOPOLOGY)
    # Only the flavor's own labels are compared.
    same = all(wanted.get(key, value) == value for key, value in labels.items())
    return same and near == ("topologyName" in flavor)


def assigned(name: str, cluster: dict[str, Any]) -> list[str]:
    """The flavor of each group of pods (`assignFlavors`), head first."""
    used, chosen = Counter[tuple[str, str]](), []
    for group in groups(cluster):
        wanted = requests(group)
        (offered,) = queue_of(name)["resourceGroups"]
        # `findFlavorForPodSets`: "resource ... unavailable in ClusterQueue", whatever the quotas.
        assert wanted.keys() <= set(offered["coveredResources"])
        for flavor in offered["flavors"]:
            quotas = {one["name"]: quantity(one["nominalQuota"]) for one in flavor["resources"]}
            if fits(group, flavors_of(name)[flavor["name"]]) and all(
                used[flavor["name"], key] + amount <= quotas[key] for key, amount in wanted.items()
            ):
                used.update({(flavor["name"], key): amount for key, amount in wanted.items()})
                chosen.append(flavor["name"])
                break
        else:
            pytest.fail(f"no flavor for {group.get('groupName', 'the head')}: {wanted}")
    return chosen


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_a_run_is_admitted_with_head_and_workers_where_they_belong(name: str, template) -> None:
    kind = "cpu" if name == "cpu" else "gpu"
    assert assigned(name, launched(name, template)) == ["vagen-cpu", f"vagen-{kind}"]


def test_a_run_in_each_namespace_is_admitted_at_once() -> None:
    name = "h100-multinode"
    (offered,) = queue_of(name)["resourceGroups"]
    used = Counter[tuple[str, str]]()
    for template in of_kind(name, "RayCluster"):
        cluster = launched(name, template)
        for flavor, group in zip(assigned(name, cluster), groups(cluster), strict=True):
            used.update({(flavor, key): amount for key, amount in requests(group).items()})
    for flavor in offered["flavors"]:
        for entry in flavor["resources"]:
            assert used[flavor["name"], entry["name"]] <= quantity(entry["nominalQuota"])


@pytest.mark.parametrize("name", ["h100", "h100-multinode", EVERY])
def test_flavors_list_the_covered_resources_in_their_order(name: str) -> None:
    """`validateFlavorQuotas` (pkg/webhooks/clusterqueue_webhook.go) refuses another order."""
    for group in queue_of(name)["resourceGroups"]:
        for flavor in group["flavors"]:
            assert flavor["name"] in flavors_of(name)
            assert [entry["name"] for entry in flavor["resources"]] == group["coveredResources"]


@pytest.mark.parametrize("name", ["h100", "h100-multinode"])
def test_each_namespace_of_runs_has_the_local_queue_of_the_infra_files(name: str) -> None:
    labels = queue_of(name)["namespaceSelector"]["matchLabels"].items()
    homes = {found["metadata"]["namespace"] for found in of_kind(name, "RayCluster")}
    for space in of_kind(name, "Namespace"):
        assert labels <= space["metadata"]["labels"].items()
    queues = {
        (found["metadata"]["namespace"], found["metadata"]["name"])
        for found in of_kind(name, "LocalQueue")
    }
    assert queues == {(home, "vagen") for home in homes}
