"""One file per site: what is changed there is changed everywhere, and nothing else has to be."""

import re
import shutil
from pathlib import Path

import pytest
from rendered import EVERY, K8S, ROOT, kustomize, load

CHANGED = {
    "VAGEN_IMAGE": "registry.example/a@sha256:" + "a" * 64,
    "VAGEN_TRAINER_IMAGE": "registry.example/b@sha256:" + "b" * 64,
    "VAGEN_JUDGE_IMAGE": "registry.example/c@sha256:" + "c" * 64,
    "VAGEN_ENV_IMAGE": "registry.example/d@sha256:" + "d" * 64,
    "POSTGRES_IMAGE": "registry.example/e@sha256:" + "e" * 64,
    "S3_IMAGE": "registry.example/f@sha256:" + "f" * 64,
    "OAUTH2_PROXY_IMAGE": "registry.example/g@sha256:" + "0" * 64,
    "S3_BUCKET": "a-bucket",
    "VAGEN_STORE": "s3://a-bucket/runs",
    "MLFLOW_ARTIFACTS_DESTINATION": "s3://another-bucket",
    "AWS_REGION": "eu-north-1",
    "S3_ROLE": "arn:aws:iam::111122223333:role/ours",
    "MLFLOW_S3_ROLE": "arn:aws:iam::111122223333:role/tracking",
    "BACKUP_DESTINATION": "s3://copies/vagen",
    "BACKUP_ENDPOINT": "https://s3.example",
    "MLFLOW_TRACKING_URI": "https://mlflow.example",
    "MLFLOW_HOST": "mlflow.ours.example",
    "INGRESS_CLASS": "traefik",
    "INGRESS_NAMESPACE": "edge",
    "OIDC_ISSUER": "https://id.example",
    "OIDC_EMAIL_DOMAIN": "ours.example",
    "KFP_NAMESPACE": "a-profile",
    "KFP_SERVICE_ACCOUNT": "default-editor",
    "PROMETHEUS_NAMESPACE": "prometheus",
    "HTTPS_CIDR": "203.0.113.0/24",
    "KUBE_API_CIDR": "198.51.100.0/24",
    "KUBE_API_PORT": "16443",
    "GPU_PRODUCT": "NVIDIA-H100-PCIe",
    "GPU_DEVICE_CLASS": "gpu.other.example",
    "RDMA_RESOURCE": "vpc.amazonaws.com/efa",
    "JUDGE_MODEL": "a/model",
    "STORAGE_CLASS": "fast",
    "RWX_STORAGE_CLASS": "lustre",
}
"""Other values for everything in site.env; AWS_ENDPOINT_URL_S3 is removed, as for AWS."""
NODES = {"VAGEN_TRAINER_IMAGE", "RDMA_RESOURCE", "RWX_STORAGE_CLASS"}
"""What only the overlays with GPUs, and with several nodes, have."""
ROLES = {"S3_ROLE", "MLFLOW_S3_ROLE"}
"""What the component `identity` sets, which the site itself has."""
TEMPLATE_NAMESPACE = "      namespace: vagen"
"""Of the RayCluster's text, which the launcher leaves out."""
OLD = (
    "registry.invalid",
    "chrislusf",
    "oauth2-proxy:v",
    ".example.com",
    "postgres:17",
    "NVIDIA-H100-80GB",
    "hca_shared",
    "gpu.nvidia.com",
    "Qwen/",
    "192.0.2",
)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """The manifests with another site's values."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(K8S, folder / "k8s")
    shutil.copytree(ROOT / "tests/k8s" / EVERY, folder / "tests/k8s" / EVERY)
    lines = [f"{key}={value}" for key, value in CHANGED.items()]
    (folder / "k8s/site/site.env").write_text("\n".join(lines) + "\n")
    return folder


def test_every_value_is_tried() -> None:
    lines = (K8S / "site/site.env").read_text().splitlines()
    keys = {line.split("=")[0] for line in lines if line and not line.startswith("#")}
    assert keys == {*CHANGED, "AWS_ENDPOINT_URL_S3"}


@pytest.mark.parametrize(
    "name", ["k8s/overlays/cpu", "k8s/overlays/h100-multinode", f"tests/k8s/{EVERY}"]
)
def test_nothing_of_the_old_site_is_left(elsewhere: Path, name: str) -> None:
    text = kustomize(elsewhere / name)
    assert not [old for old in OLD if old in text]
    for found in load(text):
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] == "vagen-site":
            assert found["data"] == CHANGED


def test_each_value_arrives(elsewhere: Path) -> None:
    import json

    wanted = {
        f"tests/k8s/{EVERY}": set(CHANGED) - NODES - ROLES,
        "k8s/overlays/h100-multinode": NODES | {"GPU_PRODUCT"},
    }
    for name, keys in wanted.items():
        objects = load(kustomize(elsewhere / name))
        text = json.dumps([found for found in objects if found["kind"] != "ConfigMap"])
        for policy in objects:
            if policy["metadata"]["name"] == "to-kube-api":
                assert policy["spec"]["egress"][0]["ports"][0]["port"] == 16443
        variables = json.dumps([found for found in objects if found["kind"] == "ConfigMap"])
        for key in keys:
            read_by_pods = key in (
                "S3_BUCKET",
                "VAGEN_STORE",
                "MLFLOW_ARTIFACTS_DESTINATION",
                "AWS_REGION",
                "MLFLOW_TRACKING_URI",
                "BACKUP_DESTINATION",
                "BACKUP_ENDPOINT",
                "OIDC_ISSUER",
                "OIDC_EMAIL_DOMAIN",
            )
            assert CHANGED[key] in (variables if read_by_pods else text), key


def test_variables_and_an_account_reach_the_namespace_of_kubeflow(elsewhere: Path) -> None:
    found = {entry["kind"]: entry for entry in load(kustomize(elsewhere / "k8s/kfp"))}
    assert found.keys() == {"ConfigMap", "ServiceAccount", "Role", "RoleBinding"}
    assert {entry["metadata"]["namespace"] for entry in found.values()} == {"a-profile"}
    assert found["ConfigMap"]["data"] == CHANGED
    assert found["RoleBinding"]["subjects"][0]["namespace"] == "a-profile"


def test_a_tenant_shares_nothing_with_the_first() -> None:
    objects = load(kustomize(K8S / "overlays/tenant"))
    text = kustomize(K8S / "overlays/tenant")
    assert not re.search(
        r"namespace: vagen$|\.vagen\.svc", text.replace(TEMPLATE_NAMESPACE, ""), re.M
    )
    namespaces = {
        one["metadata"].get("namespace") for one in objects if one["kind"] != "RayCluster"
    }
    assert namespaces == {"vagen-b", None}
    shared = {one["kind"] for one in objects if "namespace" not in one["metadata"]}
    assert shared == {"Namespace", "PriorityClass", "ResourceFlavor", "ClusterQueue"}
    (space,) = [one for one in objects if one["kind"] == "Namespace"]
    (policy,) = [one for one in objects if one["metadata"]["name"] == "from-runs"]
    own = policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"]
    assert own.items() <= space["metadata"]["labels"].items()
    first = load(kustomize(K8S / "overlays/h100"))
    (other,) = [one for one in first if one["kind"] == "Namespace"]
    assert not own.items() <= other["metadata"]["labels"].items()
    queues = [one for one in (*first, *objects) if one["kind"] == "ClusterQueue"]
    assert [one["metadata"]["name"] for one in queues] == ["vagen", "vagen-b"]
    assert {one["spec"]["cohortName"] for one in queues} == {"vagen"}
    steps = load(kustomize(K8S / "overlays/tenant/kfp"))
    assert {one["metadata"]["namespace"] for one in steps} == {"vagen-b-steps"}


def test_accounts_pull_and_reach_the_store_as_the_site_says(elsewhere: Path) -> None:
    site = elsewhere / "k8s/site/kustomization.yaml"
    lines = site.read_text()
    site.write_text(lines.replace("# - ..", "- .."))
    try:
        rendered = [load(kustomize(elsewhere / name)) for name in ("k8s/kfp", f"tests/k8s/{EVERY}")]
    finally:
        site.write_text(lines)
    accounts = [one for found in rendered for one in found if one["kind"] == "ServiceAccount"]
    assert all(one["imagePullSecrets"] == [{"name": "vagen-pull"}] for one in accounts)
    roles = {
        one["metadata"]["name"]: one["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        for one in accounts
        if "annotations" in one["metadata"]
    }
    assert roles.pop("vagen-mlflow") == CHANGED["MLFLOW_S3_ROLE"]
    assert roles.keys() == {"vagen-step", "vagen-ray", "vagen-agent"}
    assert {*roles.values()} == {CHANGED["S3_ROLE"]}


def test_a_tenant_may_share_the_firsts_mlflow(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    overlay = tmp_path / "k8s/overlays/tenant"
    file = overlay / "platform/kustomization.yaml"
    file.write_text(file.read_text().replace("# - ../../../components", "- ../../../components"))
    objects = {
        (one["kind"], one["metadata"]["name"]): one
        for one in load(kustomize(overlay))
        if one["metadata"].get("namespace", "vagen-b") == "vagen-b"
    }
    for owner in (("Deployment", "vagen-mlflow"), ("StatefulSet", "vagen-mlflow-db")):
        assert objects[owner]["spec"]["replicas"] == 0
    assert objects["Namespace", "vagen-b"]["metadata"]["labels"]["vagen.dev/mlflow"] == "shared"
    [rule] = objects["NetworkPolicy", "to-shared-mlflow"]["spec"]["egress"]
    [entry] = rule["to"]
    assert entry["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "vagen"}
