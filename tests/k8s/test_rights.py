"""Who may do what: the Roles, and who is bound to them; the identities of the bundled store."""

import json
import subprocess
from pathlib import Path

import pytest
from rendered import K8S, OVERLAYS, ROOT, kustomize, load, of_kind
from test_references import site

from vagen.experiment.load import load_infra

ALLOWED = {
    ("ray.io", "rayclusters"): {"get", "list", "watch", "create", "patch", "update", "delete"},
    ("", "pods"): {"get", "list", "watch"},
    ("", "pods/log"): {"get"},
    ("", "events"): {"get", "list", "watch"},
    ("", "configmaps"): {"get", "list", "watch"},
    ("", "secrets"): {"get"},
    ("kueue.x-k8s.io", "localqueues"): {"get", "list", "watch"},
    ("kueue.x-k8s.io", "workloads"): {"get", "list", "watch"},
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_only_role_is_the_launchers(name: str) -> None:
    assert not of_kind(name, "ClusterRole")
    assert not of_kind(name, "ClusterRoleBinding")
    for role in of_kind(name, "Role"):
        granted = {
            (group, resource): set(rule["verbs"])
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        assert granted == ALLOWED
        (secrets,) = [rule for rule in role["rules"] if "secrets" in rule["resources"]]
        assert secrets["resourceNames"] == ["vagen-ray-token"], "Ray's token and no other"


@pytest.mark.parametrize("name", OVERLAYS)
def test_it_is_bound_in_each_namespace_to_launchers_here_and_in_kubeflows(name: str) -> None:
    for namespace in of_kind(name, "Namespace"):
        home = namespace["metadata"]["name"]
        bound = {
            (subject["namespace"], subject["name"])
            for binding in of_kind(name, "RoleBinding")
            if binding["metadata"]["namespace"] == home
            for subject in binding["subjects"]
        }
        assert bound == {(home, "vagen-step"), ("kubeflow", "vagen-step")}


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_launchers_get_a_token(name: str) -> None:
    for account in of_kind(name, "ServiceAccount"):
        expected = account["metadata"]["name"] == "vagen-step"
        assert account["automountServiceAccountToken"] is expected


def test_steps_run_as_the_account_that_is_made_and_bound() -> None:
    """Infra files, the site's file, the account in Kubeflow's namespace, and the bindings."""
    files = (ROOT / "experiments/infra").glob("kubernetes-*.yaml")
    accounts = {load_infra(path.stem, []).kubernetes.service_account for path in files}
    assert accounts == {site()["KFP_SERVICE_ACCOUNT"]}
    objects = load(kustomize(K8S / "kfp"))
    (account,) = [found for found in objects if found["kind"] == "ServiceAccount"]
    (binding,) = [found for found in objects if found["kind"] == "RoleBinding"]
    (role,) = [found for found in objects if found["kind"] == "Role"]
    named = (account["metadata"]["namespace"], account["metadata"]["name"])
    assert named == (site()["KFP_NAMESPACE"], site()["KFP_SERVICE_ACCOUNT"])
    (subject,) = binding["subjects"]
    assert (subject["namespace"], subject["name"]) == named
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_in_kubeflows_namespace_steps_may_what_its_launcher_does_and_no_more() -> None:
    """Argo's docs/workflow-rbac.md; Kubeflow 2.17: v2/config/env.go, v2/objectstore."""
    (role,) = [found for found in load(kustomize(K8S / "kfp")) if found["kind"] == "Role"]
    granted = {
        (*rule["resources"], *rule.get("resourceNames", [])): set(rule["verbs"])
        for rule in role["rules"]
    }
    assert granted == {
        ("workflowtaskresults",): {"create", "patch"},
        ("configmaps", "kfp-launcher"): {"get"},
        ("secrets", "mlpipeline-minio-artifact"): {"get"},
    }


def identities(folder: Path, **bucket: str) -> dict[str, dict]:
    """What the bundled store's container writes for SeaweedFS, by name."""
    (store,) = [
        found for found in of_kind("cpu", "StatefulSet") if found["metadata"]["name"] == "vagen-s3"
    ]
    (container,) = store["spec"]["template"]["spec"]["containers"]
    script, *words = container["args"]
    file = folder / "identities.json"
    assert "-s3.config=/tmp/identities.json" in words
    script = script.replace("/tmp/identities.json", str(file)).replace("/usr/bin/weed", "echo")
    done = subprocess.run(
        [*container["command"], script, *words], env=bucket, capture_output=True, text=True
    )
    assert done.stdout.split() == words[1:], done.stderr
    return {one["name"]: one for one in json.loads(file.read_text())["identities"]}


def test_runs_and_mlflow_have_a_bucket_each_in_the_bundled_store(tmp_path: Path) -> None:
    names = ("S3_BUCKET", "MLFLOW_ARTIFACTS_DESTINATION")
    found = identities(tmp_path, **{name: site()[name] for name in names})
    assert found.keys() == {"ADMIN", "RUNS", "MLFLOW"}
    buckets = {
        name: {action.partition(":")[2] for action in one["actions"]} for name, one in found.items()
    }
    assert buckets == {"ADMIN": {""}, "RUNS": {site()["S3_BUCKET"]}, "MLFLOW": {"vagen-mlflow"}}
    assert site()["VAGEN_STORE"].startswith(f"s3://{site()['S3_BUCKET']}/")
    for name, one in found.items():
        verbs = {action.partition(":")[0] for action in one["actions"]}
        assert verbs == ({"Admin"} if name == "ADMIN" else {"Read", "Write", "List", "Tagging"})
        # SeaweedFS puts in variables that are set, and drops a key whose variable is not.
        (keys,) = one["credentials"]
        assert keys == {
            "accessKey": f"${{{name}_AWS_ACCESS_KEY_ID}}",
            "secretKey": f"${{{name}_AWS_SECRET_ACCESS_KEY}}",
        }
