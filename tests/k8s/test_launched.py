"""What the launcher makes of each overlay's template: KubeRay and Pod Security admit it."""

import sys

import pytest
from rendered import OVERLAYS, ROOT, Pod, groups, of_kind, quantity
from test_pod_security import violations

from vagen.cluster.render import render_raycluster

sys.path.append(str(ROOT / "tests/cluster"))
CLUSTERS = [
    pytest.param(name, found, id=f"{name}-{found['metadata']['namespace']}")
    for name in OVERLAYS
    for found in of_kind(name, "RayCluster")
]


def launched(name: str, template: dict) -> dict:
    """As `vagen.launch` has it rendered for a run."""
    workers = template["spec"]["workerGroupSpecs"][0]["replicas"]
    return render_raycluster(
        template,
        name="a-run",
        run="a-run",
        workers=workers,
        gpus_per_worker=0 if name == "cpu" else 8,
        lease_minutes=60,
        queue=None if name == "cpu" else "vagen",
    )


@pytest.mark.parametrize(("name", "template"), CLUSTERS)
def test_kuberays_schema_and_rules_are_kept(name: str, template: dict) -> None:
    from api_schemas import faults

    assert not faults(launched(name, template))


@pytest.mark.parametrize(("name", "template"), CLUSTERS)
def test_its_pods_are_admitted_where_they_run(name: str, template: dict) -> None:
    cluster = launched(name, template)
    head, *workers = groups(cluster)
    for group in (head, *workers):
        pod = Pod(
            "launched", "", group["template"]["metadata"]["labels"], group["template"]["spec"]
        )
        root = name == "h100-multinode" and group is not head
        assert bool(violations(pod)) == (root and template["metadata"]["namespace"] == "vagen-rdma")
        assert pod.labels["vagen.dev/run"] == "a-run", "network policies select pods of runs by it"


@pytest.mark.parametrize(("name", "template"), CLUSTERS)
def test_autoscalers_of_nodes_leave_its_pods_where_they_are(name: str, template: dict) -> None:
    for group in groups(launched(name, template)):
        assert group["template"]["metadata"]["annotations"] == {
            "karpenter.sh/do-not-disrupt": "true",
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        }


@pytest.mark.parametrize("name", OVERLAYS)
def test_runs_come_before_pods_without_a_class_and_trials_after_them(name: str) -> None:
    classes = {found["metadata"]["name"]: found for found in of_kind(name, "PriorityClass")}
    assert classes["vagen-run"]["value"] > 0 > classes["vagen-trial"]["value"]
    assert classes["vagen-trial"]["preemptionPolicy"] == "Never"


@pytest.mark.parametrize(("name", "template"), CLUSTERS)
def test_the_folder_of_runs_has_a_volume_of_its_own(name: str, template: dict) -> None:
    """`output_dir` of the infra files for Kubernetes."""
    from vagen.experiment.load import load_infra

    folders = {
        load_infra(path.stem, []).output_dir
        for path in (ROOT / "experiments/infra").glob("kubernetes-*.yaml")
    }
    for group in groups(template):
        spec = group["template"]["spec"]
        (mount,) = [
            mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "scratch"
        ]
        assert folders == {mount["mountPath"]}
        (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "scratch"]
        if "persistentVolumeClaim" in volume:  # several nodes share it
            claims = [found["metadata"] for found in of_kind(name, "PersistentVolumeClaim")]
            claim = volume["persistentVolumeClaim"]["claimName"], template["metadata"]["namespace"]
            assert claim in [(found["name"], found["namespace"]) for found in claims]
            continue
        assert quantity(volume["emptyDir"]["sizeLimit"]) >= 2 * 2**30


def test_infra_files_name_mlflow_as_the_site_does() -> None:
    from vagen.experiment.load import load_infra

    lines = (ROOT / "k8s/site/site.env").read_text().splitlines()
    (uri,) = [line.split("=", 1)[1] for line in lines if line.startswith("MLFLOW_TRACKING_URI=")]
    files = (ROOT / "experiments/infra").glob("kubernetes-*.yaml")
    assert {load_infra(path.stem, []).mlflow_tracking_uri for path in files} == {uri}


def test_infra_files_place_ray_clusters_in_namespaces_that_have_a_template() -> None:
    from vagen.experiment.load import load_infra

    for name, overlay in {
        "kubernetes-cpu": "cpu",
        "kubernetes-h100x8": "h100",
        "kubernetes-h100x8-2nodes": "h100-multinode",
    }.items():
        config = load_infra(name, [])
        (template,) = [
            found
            for found in of_kind(overlay, "RayCluster")
            if found["metadata"]["namespace"] == config.kubernetes.namespace
        ]
        assert template["spec"]["workerGroupSpecs"][0]["replicas"] == config.verl.nnodes
