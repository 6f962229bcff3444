"""Who may do what: the Roles, and who is bound to them."""

import pytest
from rendered import OVERLAYS, of_kind

ALLOWED = {
    ("ray.io", "rayclusters"): {"get", "list", "watch", "create", "patch", "update", "delete"},
    ("ray.io", "rayjobs"): {"get", "list", "watch", "create", "patch", "update", "delete"},
    ("", "pods"): {"get", "list", "watch"},
    ("", "pods/log"): {"get"},
    ("", "events"): {"get", "list", "watch"},
    ("", "configmaps"): {"get", "list", "watch"},
    ("batch", "jobs"): {"get", "list", "watch"},
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
