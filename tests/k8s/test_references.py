"""What the manifests refer to exists: secrets, accounts, images, ports, selectors, namespaces."""

import re
from collections.abc import Iterator

import pytest
import yaml
from rendered import K8S, RENDERINGS, ROOT, Pod, of_kind, pods, render

from vagen.cluster.dashboard import TOKEN_KEY

KEYS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SECRETS = {
    "vagen-ray-token": {"auth_token"},
    "vagen-s3": KEYS,
    "vagen-mlflow-s3": KEYS,
    "vagen-s3-admin": KEYS,
    "vagen-mlflow": {"MLFLOW_BACKEND_STORE_URI", "POSTGRES_PASSWORD"},
    "vagen-mlflow-auth": {"MLFLOW_FLASK_SERVER_SECRET_KEY", "basic_auth.ini"},
    "vagen-mlflow-account": {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"},
    "vagen-oauth2-proxy": {
        "OAUTH2_PROXY_CLIENT_ID",
        "OAUTH2_PROXY_CLIENT_SECRET",
        "OAUTH2_PROXY_COOKIE_SECRET",
    },
    "vagen-backup": KEYS,
    "vagen-judge": {"OPENAI_API_KEY"},
    "vagen-hf": {"HF_TOKEN"},
    "vagen-env": {"VAGEN_ENV_TOKEN", "tokens"},
    "vagen-agent": {"VAGEN_SERVE_TOKEN"},
}
"""Secrets that docs/kubernetes.md tells to make, with their keys."""


def referred_secrets(pod: Pod, *, optional: bool = True) -> Iterator[tuple[str, str | None]]:
    """Secrets that a pod's containers take variables or files from, with the key if it is one.

    Args:
        pod: The pod.
        optional: Those as well that it starts without.
    """
    for volume in pod.spec.get("volumes", []):
        for item in volume.get("secret", {}).get("items", []):
            yield volume["secret"]["secretName"], item["key"]
    for container in pod.containers:
        references = [source.get("secretRef") for source in container.get("envFrom", [])]
        references += [
            entry.get("valueFrom", {}).get("secretKeyRef") for entry in container.get("env", [])
        ]
        for reference in references:
            if reference and (optional or not reference.get("optional")):
                yield reference["name"], reference.get("key")


@pytest.mark.parametrize("name", RENDERINGS)
def test_secrets_are_referred_to_by_documented_names_and_never_written(name: str) -> None:
    referred = {found for pod in pods(name) for found in referred_secrets(pod)}
    for cluster in of_kind(name, "RayCluster"):
        referred.add((cluster["spec"]["authOptions"]["secretName"], TOKEN_KEY))
    assert referred
    for secret, key in referred:
        assert secret in SECRETS
        assert key is None or key in SECRETS[secret]
    assert not of_kind(name, "Secret")


def test_the_documentation_makes_each_secret() -> None:
    text = (ROOT / "docs/kubernetes.md").read_text()
    made = set(re.findall(r"^ *secret ([\w-]+)", text, re.M))
    made |= {
        name for loop in re.findall(r"for secret in ([\w -]+);", text) for name in loop.split()
    }
    assert made == SECRETS.keys()
    for keys in SECRETS.values():
        for key in keys:
            assert f"--from-literal={key}=" in text


@pytest.mark.parametrize("name", RENDERINGS)
def test_config_maps_and_accounts_exist_in_the_pods_namespace(name: str) -> None:
    here = {
        (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        for found in render(name)
    }
    for pod in pods(name):
        assert ("ServiceAccount", pod.namespace, pod.spec["serviceAccountName"]) in here
        for container in pod.containers:
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    assert ("ConfigMap", pod.namespace, source["configMapRef"]["name"]) in here
            for entry in container.get("env", []):
                if "configMapKeyRef" in entry.get("valueFrom", {}):
                    reference = entry["valueFrom"]["configMapKeyRef"]
                    assert reference["name"] == "vagen-site"
                    assert reference["key"] in site()


def site() -> dict[str, str]:
    """Values of the site's file."""
    lines = (K8S / "site/site.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("name", RENDERINGS)
def test_images_are_the_sites_and_have_a_version(name: str) -> None:
    known = {value for key, value in site().items() if key.endswith("_IMAGE")}
    for pod in pods(name):
        for container in pod.containers:
            image = container["image"]
            assert image in known, f"{pod.owner}: {image}"
            assert re.search(r":[\w.-]+$|@sha256:[0-9a-f]{64}$", image)
            assert not image.endswith(":latest")


@pytest.mark.parametrize("name", RENDERINGS)
def test_no_placeholder_is_left(name: str) -> None:
    keys = [key for key in site() if key.isupper()]
    for found in render(name):
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] == "vagen-site":
            continue
        for text in texts(found):
            assert text not in keys, f"{found['kind']}/{found['metadata']['name']}: {text}"


def texts(value: object) -> Iterator[str]:
    """Every string in an object, keys too, but names of environment variables and of keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            named = key == "name" and {"value", "valueFrom"} & value.keys()
            if not named and key not in ("configMapKeyRef", "secretKeyRef"):
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", RENDERINGS)
def test_services_select_pods_that_have_the_port(name: str) -> None:
    for service in of_kind(name, "Service"):
        chosen = [
            pod
            for pod in pods(name)
            if pod.namespace == service["metadata"]["namespace"]
            and service["spec"]["selector"].items() <= pod.labels.items()
        ]
        assert len(chosen) == 1, service["metadata"]["name"]
        ports = {port["name"] for found in chosen[0].containers for port in found.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("name", RENDERINGS)
def test_workloads_select_their_own_pods(name: str) -> None:
    for found in render(name):
        if found["kind"] in ("Deployment", "StatefulSet"):
            labels = found["spec"]["template"]["metadata"]["labels"]
            assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert labels["app.kubernetes.io/part-of"] == "vagen"


@pytest.mark.parametrize("name", RENDERINGS)
def test_probes_ask_ports_that_are_open(name: str) -> None:
    for pod in pods(name):
        for container in pod.spec["containers"]:
            if pod.owner.startswith(("Job", "CronJob")):
                continue
            own = {port[key] for port in container["ports"] for key in ("name", "containerPort")}
            assert {"readinessProbe", "livenessProbe"} <= container.keys(), pod.owner
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind, {})
                # 52365: Ray's agent, a port that KubeRay's own probes ask.
                assert probe.get("httpGet", {}).get("port", 52365) in {*own, 52365}


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_object_lies_in_a_namespace_of_the_rendering(name: str) -> None:
    own = {found["metadata"]["name"] for found in of_kind(name, "Namespace")}
    for found in render(name):
        if found["kind"] in ("Namespace", "ClusterQueue", "ResourceFlavor", "PriorityClass"):
            assert "namespace" not in found["metadata"]
        else:
            assert found["metadata"]["namespace"] in own, found["metadata"]["name"]


def test_urls_of_the_site_are_services_of_the_overlay() -> None:
    values = site()
    services = {
        (found["metadata"]["name"], port["port"])
        for found in of_kind("cpu", "Service")
        for port in found["spec"]["ports"]
    }
    for key in ("MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3"):
        host, port = re.fullmatch(r"http://([\w-]+)\.vagen(?:\.svc)?:(\d+)", values[key]).groups()
        assert (host, int(port)) in services


def test_mlflow_answers_to_the_name_that_clients_use() -> None:
    from fnmatch import fnmatch

    (deployment,) = [
        found
        for found in of_kind("cpu", "Deployment")
        if found["metadata"]["name"] == "vagen-mlflow"
    ]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    (hosts,) = [text for text in arguments if text.startswith("--allowed-hosts=")]
    patterns = hosts.removeprefix("--allowed-hosts=").split(",")
    for host in (site()["MLFLOW_TRACKING_URI"].removeprefix("http://"), "localhost:5000"):
        assert any(fnmatch(host, pattern) for pattern in patterns)
    assert not any(fnmatch("evil.example:5000", pattern) for pattern in patterns)


def test_examples_of_gitops_name_folders_that_are_here() -> None:
    found = [
        one
        for path in (K8S / "gitops").glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
    ]
    paths = {str(one["spec"].get("source", one["spec"]).get("path", "k8s/kfp")) for one in found}
    assert {ROOT / path for path in paths} == {K8S / "overlays/h100", K8S / "kfp"}
