"""What is laid on the platform's template, and what would not be worked on."""

import copy
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from api_schemas import faults, set_defaults

from vagen.cluster import ClusterError, cluster_name, read_template
from vagen.cluster.kube import CONFIG_MAPS
from vagen.cluster.names import label_value, lease_end, parse_time
from vagen.cluster.render import check_raycluster, render_raycluster

ROOT = Path(__file__).parents[2]


def two_gpus(template, **options):
    return render_raycluster(
        template, name="lake", run="lake", workers=1, gpus_per_worker=2, lease_minutes=60, **options
    )


def test_nothing_of_the_template_is_dropped(template, manifest) -> None:
    before = copy.deepcopy(template)
    made = manifest(image="registry.example/vagen/trainer:2", queue="vagen")
    assert template == before
    set_defaults(made)
    assert faults(made) == []

    def covers(small, large, place=""):
        if isinstance(small, dict):
            return [
                f for key in small for f in covers(small[key], large.get(key), f"{place}.{key}")
            ]
        if isinstance(small, list):
            pairs = zip(small, large, strict=False)
            return [f for one, other in pairs for f in covers(one, other, f"{place}[]")]
        return [] if small == large else [place]

    assert set(covers(before, made)) == {
        ".spec.headGroupSpec.template.spec.containers[].image",
        ".spec.workerGroupSpecs[].minReplicas",
        ".spec.workerGroupSpecs[].maxReplicas",
        ".spec.workerGroupSpecs[].template.spec.containers[].image",
    }


def test_what_differs_per_run_is_laid_on(manifest) -> None:
    made = manifest(queue="vagen", workers=3, gpus_per_worker=4)
    labels = made["metadata"]["labels"]
    assert labels["vagen.dev/run"] == labels["app.kubernetes.io/instance"] == "lake"
    assert labels["kueue.x-k8s.io/queue-name"] == "vagen"
    assert labels["vagen.dev/leased"] == "true"
    assert parse_time(made["metadata"]["annotations"]["vagen.dev/lease-until"]) > datetime.now(UTC)
    (group,) = made["spec"]["workerGroupSpecs"]
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [3, 3, 3]
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "4"
    for part in (made["spec"]["headGroupSpec"], group):
        assert part["template"]["metadata"]["labels"]["vagen.dev/run"] == "lake"


def test_fewer_gpus_take_their_share_of_the_worker() -> None:
    template = yaml.safe_load((ROOT / "k8s/overlays/h100/raycluster.yaml").read_text())
    made = two_gpus(
        template,
        gpu_resource="amd.com/gpu",
        models="weights",
    )
    (group,) = made["spec"]["workerGroupSpecs"]
    spec = group["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "16",
        "memory": "160Gi",
        "ephemeral-storage": "100Gi",
        "amd.com/gpu": "2",
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "50Gi"
    assert group["rayStartParams"]["object-store-memory"] == str(137438953472 // 4)
    # One claim for all pods, where Hugging Face looks.
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "weights"}
    mounts = container["volumeMounts"]
    assert mounts.count({"name": "models", "mountPath": "/home/vagen/huggingface"}) == 1
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
    head = made["spec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["resources"]["limits"]["cpu"] == "8"
    assert "models" in [volume["name"] for volume in head["volumes"]]


def test_gpus_may_be_claimed_and_the_scheduler_is_the_templates() -> None:
    text = (ROOT / "k8s/overlays/h100/raycluster.yaml").read_text()
    template = yaml.safe_load(text.replace("  labels:", "  labels:\n    kai.scheduler/queue: a", 1))
    for part in (template["spec"]["headGroupSpec"], *template["spec"]["workerGroupSpecs"]):
        part["template"]["spec"]["schedulerName"] = "kai-scheduler"
    made = two_gpus(
        template,
        gpu_claim="vagen-gpu",
    )
    assert not faults(made)
    assert made["metadata"]["labels"]["kai.scheduler/queue"] == "a"
    head, group = made["spec"]["headGroupSpec"], *made["spec"]["workerGroupSpecs"]
    for part in (head, group):
        assert part["template"]["spec"]["schedulerName"] == "kai-scheduler"
    assert "resourceClaims" not in head["template"]["spec"]
    spec = group["template"]["spec"]
    resources = spec["containers"][0]["resources"]
    assert "nvidia.com/gpu" not in {*resources["limits"], *resources["requests"]}
    assert resources["claims"] == [{"name": "gpu-0"}, {"name": "gpu-1"}]
    assert {one["resourceClaimTemplateName"] for one in spec["resourceClaims"]} == {"vagen-gpu"}
    assert [one["name"] for one in spec["resourceClaims"]] == ["gpu-0", "gpu-1"]
    assert group["rayStartParams"]["num-gpus"] == "2"
    assert resources["limits"]["cpu"] == "16", "the same share of the worker"


def test_cost_labels_and_priority_are_on_every_pod(manifest) -> None:
    labels = {"vagen.dev/team": "agents", "vagen.dev/run": "another"}
    made = manifest(labels=labels, priority="vagen-trial")
    assert made["metadata"]["labels"].items() >= {"vagen.dev/team": "agents"}.items()
    for part in (made["spec"]["headGroupSpec"], *made["spec"]["workerGroupSpecs"]):
        metadata = part["template"]["metadata"]
        assert metadata["labels"]["vagen.dev/team"] == "agents"
        assert metadata["labels"]["vagen.dev/run"] == "lake", "a run's own labels win"
        assert part["template"]["spec"]["priorityClassName"] == "vagen-trial"
    assert "priorityClassName" not in manifest()["spec"]["headGroupSpec"]["template"]["spec"]


def test_without_gpus_none_are_asked_for(manifest) -> None:
    (group,) = manifest(gpus_per_worker=0)["spec"]["workerGroupSpecs"]
    assert "nvidia.com/gpu" not in group["template"]["spec"]["containers"][0]["resources"]["limits"]


BROKEN_CLUSTERS = {
    "name too long": ("metadata.name", "r" * 54, "at most 53"),
    "name with capitals": ("metadata.name", "Lake", "begin with a letter"),
    "name with a digit first": ("metadata.name", "1lake", "begin with a letter"),
    "no head container": ("spec.headGroupSpec.template.spec.containers", [], "one container"),
    "more at least than at most": ("spec.workerGroupSpecs.0.minReplicas", 9, "minReplicas"),
    "suspended group": ("spec.workerGroupSpecs.0.suspend", True, "suspend"),
    "resources twice": ("spec.headGroupSpec.resources", {"CPU": "1"}, "KubeRay takes one"),
    "labels as parameter": (
        "spec.workerGroupSpecs.0.rayStartParams.labels",
        "a=b",
        "rayStartParams.labels",
    ),
}
"""Path, value, our message: what `ValidateRayClusterMetadata` and `-Spec` refuse (1.6.2)."""


def put(body, path: str, value) -> None:
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in way:
        body = body[key]
    body[last] = value


@pytest.mark.parametrize("case", BROKEN_CLUSTERS)
def test_what_kuberay_refuses_of_a_cluster_is_refused_before(manifest, case) -> None:
    path, value, message = BROKEN_CLUSTERS[case]
    body = manifest()
    check_raycluster(body)
    put(body, path, value)
    with pytest.raises(ClusterError, match=message):
        check_raycluster(body)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.headGroupSpec.rayStartParams", {}, 'num-cpus: "0"'),
        ("spec.headGroupSpec.rayStartParams.num-cpus", 0, "must be a text"),
        ("spec.authOptions", {"mode": "disabled"}, "authOptions must be"),
        ("spec.authOptions", {"mode": "token"}, "secretName"),
        ("spec.rayVersion", "2.51.1", r"2\.52\.0 or newer"),
        ("spec.enableInTreeAutoscaling", True, "enableInTreeAutoscaling must be off"),
        ("spec.workerGroupSpecs.0.groupName", "", "groupName must be a label value"),
        ("spec.workerGroupSpecs.0.minReplicas", None, "no autoscaling"),
    ],
)
def test_what_our_runs_need_of_a_cluster(manifest, path, value, message) -> None:
    body = manifest()
    put(body, path, value)
    with pytest.raises(ClusterError, match=message):
        check_raycluster(body)


def test_a_template_without_one_worker_group_is_refused(template, manifest) -> None:
    template["spec"]["workerGroupSpecs"] = []
    with pytest.raises(ClusterError, match="0 worker groups"):
        manifest()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "no ConfigMap vagen-raycluster in namespace vagen"),
        ({}, r"has no key raycluster\.yaml"),
        ({"raycluster.yaml": "{"}, "is no YAML"),
        ({"raycluster.yaml": "kind: Pod"}, "is no RayCluster"),
    ],
)
def test_a_template_that_cannot_be_read_is_named(namespace, kube, data, message) -> None:
    if data is not None:
        kube.create(CONFIG_MAPS, {"metadata": {"name": "vagen-raycluster"}, "data": data})
    with pytest.raises(ClusterError, match=message):
        read_template(kube)


def test_a_template_is_read_from_its_config_map(namespace, kube, template) -> None:
    data = {"raycluster.yaml": yaml.safe_dump(template)}
    kube.create(CONFIG_MAPS, {"metadata": {"name": "vagen-raycluster"}, "data": data})
    assert read_template(kube) == template


@pytest.mark.parametrize(
    "run",
    ["lake", "Lake_1", "1-lake", "frozenlake-qwen25vl-3b-20261121-155243", "x" * 80, "a.b", "ü"],
)
def test_names_keep_kuberays_limit_and_differ(run) -> None:
    from vagen.cluster.names import is_dns_1035

    cluster = cluster_name(run)
    assert len(cluster) <= 53
    assert is_dns_1035(cluster)
    assert cluster != cluster_name(run + "x")
    assert len(label_value(run)) <= 63


def test_names_that_fit_are_kept() -> None:
    assert cluster_name("lake") == "lake"


def test_times_are_read_as_kubernetes_writes_them() -> None:
    moment = datetime(2026, 11, 21, 16, 0, 0, tzinfo=UTC)
    assert lease_end(90, moment) == "2026-11-21T17:30:00Z"
    assert parse_time(lease_end(0, moment)) == moment
    assert parse_time("2026-11-21T16:00:00.123456789Z") > moment
    for text in ("", "tomorrow", "2026-11-21T16:00:00"):
        with pytest.raises(ValueError):
            parse_time(text)
