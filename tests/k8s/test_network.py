"""The policies, evaluated: a table of what must pass, and of what must not."""

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest
from rendered import of_kind, pods


@dataclass(frozen=True)
class Peer:
    """An end of a connection: a pod, or an address outside of the cluster."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = "10.244.3.4"


def pod(name: str, owner: str, namespace: str = "vagen") -> Peer:
    """A pod of a rendering, by the end of what owns it."""
    (labels,) = {
        tuple(sorted(found.labels.items()))
        for found in pods(name)
        if found.owner.endswith(owner) and found.namespace == namespace
    }
    return Peer(namespace, dict(labels))


NAMESPACES = {
    "vagen": {"vagen.dev/runs": "true"},
    "vagen-rdma": {"vagen.dev/runs": "true"},
    "vagen-b": {"vagen.dev/runs": "vagen-b"},
    "sharing": {"vagen.dev/runs": "sharing", "vagen.dev/mlflow": "shared"},
    "ingress-nginx": {},
    "kubeflow": {},
    "monitoring": {},
    "kuberay": {},
    "kube-system": {},
    "strangers": {},
    "robots": {"vagen.dev/agent-clients": "true"},
}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector holds."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions", []):
        value = labels.get(rule["key"])
        kept = {
            "Exists": value is not None,
            "DoesNotExist": value is None,
            "In": value in rule.get("values", []),
            "NotIn": value not in rule.get("values", []),
        }[rule["operator"]]
        if not kept:
            return False
    return True


def matches(rule: dict[str, Any], peer: Peer, home: str) -> bool:
    """Whether an entry of `from` or `to` in a policy of namespace `home` names the peer."""
    if "ipBlock" in rule:
        network = ipaddress.ip_network(rule["ipBlock"]["cidr"])
        return not peer.namespace and ipaddress.ip_address(peer.address) in network
    if not peer.namespace:
        return False
    if "namespaceSelector" in rule:
        known = {"kubernetes.io/metadata.name": peer.namespace, **NAMESPACES[peer.namespace]}
        if not selects(rule["namespaceSelector"], known):
            return False
    elif peer.namespace != home:
        return False
    return selects(rule.get("podSelector", {}), peer.labels)


def admitted(name: str, subject: Peer, other: Peer, way: str, port: int, protocol: str) -> bool:
    """Whether the policies that select `subject` let a connection pass in a direction."""
    if subject.namespace not in ("vagen", "vagen-rdma", "vagen-b"):
        return True
    peers = {"Ingress": "from", "Egress": "to"}[way]
    applying = [
        policy
        for policy in of_kind(name, "NetworkPolicy")
        if policy["metadata"]["namespace"] == subject.namespace
        and way in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], subject.labels)
    ]
    assert applying, "a pod that no policy selects is open to all"
    return any(
        any(matches(entry, other, subject.namespace) for entry in rule[peers])
        and (
            "ports" not in rule
            or any(
                entry["port"] == port and entry.get("protocol", "TCP") == protocol
                for entry in rule["ports"]
            )
        )
        for policy in applying
        for rule in policy["spec"].get(way.lower(), [])
    )


def passes(name: str, source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let out and in."""
    out = admitted(name, source, target, "Egress", port, protocol)
    return out and admitted(name, target, source, "Ingress", port, protocol)


ALL = "every-component"
HEAD, WORKER = pod("h100", "/head"), pod("h100", "/worker")
RUN_POD = Peer("vagen", {"vagen.dev/run": "a-run", "app.kubernetes.io/part-of": "vagen"})
GC = pod("h100", "CronJob/vagen-gc")
STEP = {"app.kubernetes.io/part-of": "vagen", "app.kubernetes.io/component": "step"}
KFP_STEP = Peer("kubeflow", STEP)
KFP_OTHER = Peer("kubeflow", {"pipelines.kubeflow.org/v2_component": "true"})
MLFLOW, DATABASE = pod("h100", "vagen-mlflow"), pod("h100", "vagen-mlflow-db")
STORE, BUCKET = pod("h100", "StatefulSet/vagen-s3"), pod("h100", "vagen-s3-bucket")
JUDGE, ENVIRONMENT = pod(ALL, "vagen-judge"), pod(ALL, "vagen-env")
AGENT, KSERVE = pod(ALL, "Deployment/agent-lake"), pod(ALL, "InferenceService/agent-lake")
BACKUP = pod(ALL, "CronJob/vagen-backup")
LOGIN = pod(ALL, "Deployment/vagen-oauth2-proxy")
CONTROLLER = Peer("ingress-nginx", {"app.kubernetes.io/name": "ingress-nginx"})
SHARING = Peer("sharing", RUN_POD.labels)
"""A run of a tenant that uses the first one's MLflow."""
CLIENT = Peer("robots", {"vagen.dev/agent-client": "true"})
OPERATOR = {
    "app.kubernetes.io/name": "kuberay-operator",
    "app.kubernetes.io/component": "kuberay-operator",
}
KUBERAY = Peer("kuberay", OPERATOR)
PROMETHEUS = Peer("monitoring", {"app.kubernetes.io/name": "prometheus"})
DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
API_SERVER, OUTSIDE = Peer(address="192.0.2.2"), Peer(address="192.0.2.3")
"""In the ranges that the site's file has until they are set."""
ELSEWHERE = Peer(address="52.216.0.1")
STRANGER = Peer("strangers", {"app": "anything"})
IMPOSTORS = [
    Peer("strangers", labels)
    for labels in (STEP, OPERATOR, {**STEP, "vagen.dev/run": "a-run"}, RUN_POD.labels)
]
"""Pods of another namespace with the labels of those that are let in."""

MUST_PASS = [
    ("h100", HEAD, WORKER, 6379),
    ("h100", WORKER, HEAD, 6379),
    ("h100", WORKER, WORKER, 31337),
    ("h100", KFP_STEP, HEAD, 8265),
    ("h100", WORKER, MLFLOW, 5000),
    ("h100", HEAD, MLFLOW, 5000),
    ("h100", WORKER, STORE, 8333),
    ("h100", HEAD, STORE, 8333),
    ("h100", GC, API_SERVER, 6443),
    ("h100", KFP_STEP, MLFLOW, 5000),
    ("h100", KFP_STEP, STORE, 8333),
    ("h100", MLFLOW, DATABASE, 5432),
    ("h100", MLFLOW, STORE, 8333),
    ("h100", MLFLOW, OUTSIDE, 443),
    ("h100", BUCKET, STORE, 8333),
    ("h100", WORKER, OUTSIDE, 443),
    ("h100", PROMETHEUS, WORKER, 8080),
    ("h100", PROMETHEUS, HEAD, 8080),
    ("h100", PROMETHEUS, HEAD, 44227),
    (ALL, PROMETHEUS, JUDGE, 8000),
    (ALL, PROMETHEUS, ENVIRONMENT, 8000),
    (ALL, WORKER, JUDGE, 8000),
    (ALL, WORKER, ENVIRONMENT, 8000),
    (ALL, KFP_STEP, ENVIRONMENT, 8000),
    (ALL, JUDGE, OUTSIDE, 443),
    *((ALL, source, AGENT, 8000) for source in (KFP_STEP, CLIENT, PROMETHEUS)),
    *((ALL, agent, STORE, 8333) for agent in (AGENT, KSERVE)),
    *((ALL, BACKUP, *end) for end in ((DATABASE, 5432), (STORE, 8333), (OUTSIDE, 443))),
    (ALL, CONTROLLER, LOGIN, 4180),
    *((ALL, LOGIN, *end) for end in ((MLFLOW, 5000), (OUTSIDE, 443))),
    (ALL, SHARING, MLFLOW, 5000),
]
MUST_NOT_PASS = [
    ("h100", STRANGER, HEAD, 8265),
    ("h100", STRANGER, HEAD, 6379),
    ("h100", STRANGER, MLFLOW, 5000),
    ("h100", STRANGER, STORE, 8333),
    ("h100", STRANGER, DATABASE, 5432),
    *(
        ("h100", impostor, target, port)
        for impostor in IMPOSTORS
        for target, port in ((HEAD, 8265), (HEAD, 6379), (MLFLOW, 5000), (STORE, 8333))
    ),
    ("h100", KFP_OTHER, HEAD, 8265),
    ("h100", KFP_OTHER, MLFLOW, 5000),
    ("h100", KFP_OTHER, STORE, 8333),
    ("h100", GC, API_SERVER, 443),
    ("h100", GC, ELSEWHERE, 6443),
    ("h100", WORKER, ELSEWHERE, 443),
    ("h100", MLFLOW, ELSEWHERE, 443),
    (ALL, JUDGE, ELSEWHERE, 443),
    *((ALL, BACKUP, *end) for end in ((MLFLOW, 5000), (HEAD, 8265), (ELSEWHERE, 443))),
    *((ALL, source, LOGIN, 4180) for source in (STRANGER, WORKER)),
    *((ALL, LOGIN, *end) for end in ((DATABASE, 5432), (STORE, 8333), (ELSEWHERE, 443))),
    (ALL, CONTROLLER, MLFLOW, 5000),
    *((ALL, SHARING, *end) for end in ((STORE, 8333), (JUDGE, 8000), (HEAD, 8265))),
    (ALL, Peer("sharing"), MLFLOW, 5000),
    ("h100", SHARING, MLFLOW, 5000),
    ("h100", KUBERAY, HEAD, 8265),
    ("h100", RUN_POD, HEAD, 8265),
    ("h100", KFP_STEP, HEAD, 6379),
    ("h100", KFP_STEP, DATABASE, 5432),
    ("h100", MLFLOW, HEAD, 8265),
    ("h100", WORKER, DATABASE, 5432),
    ("h100", WORKER, API_SERVER, 6443),
    ("h100", WORKER, OUTSIDE, 80),
    ("h100", GC, MLFLOW, 5000),
    ("h100", GC, HEAD, 8265),
    ("h100", STORE, OUTSIDE, 443),
    ("h100", STORE, WORKER, 6379),
    ("h100", DATABASE, OUTSIDE, 443),
    ("h100", PROMETHEUS, HEAD, 8265),
    ("h100", PROMETHEUS, STORE, 8333),
    (ALL, ENVIRONMENT, OUTSIDE, 443),
    (ALL, ENVIRONMENT, HEAD, 6379),
    (ALL, JUDGE, STORE, 8333),
    (ALL, Peer("robots"), AGENT, 8000),
    (ALL, Peer("strangers", CLIENT.labels), AGENT, 8000),
    (ALL, CLIENT, MLFLOW, 5000),
    (ALL, AGENT, HEAD, 6379),
    (ALL, AGENT, API_SERVER, 6443),
]


def told(flow: Any) -> str | None:
    """A flow's end, for the name of its test."""
    if isinstance(flow, Peer):
        name = flow.labels.get("app.kubernetes.io/name") or flow.labels.get("ray.io/node-type")
        return f"{flow.namespace or flow.address}.{name or 'pod'}"
    return None


@pytest.mark.parametrize(("name", "source", "target", "port"), MUST_PASS, ids=told)
def test_passes(name: str, source: Peer, target: Peer, port: int) -> None:
    assert passes(name, source, target, port)


@pytest.mark.parametrize(("name", "source", "target", "port"), MUST_NOT_PASS, ids=told)
def test_does_not_pass(name: str, source: Peer, target: Peer, port: int) -> None:
    assert not passes(name, source, target, port)


@pytest.mark.parametrize("subject", [HEAD, WORKER, GC, MLFLOW, BUCKET, JUDGE, LOGIN], ids=told)
@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_names_are_resolved(subject: Peer, protocol: str) -> None:
    assert passes(ALL, subject, DNS, 53, protocol)
    assert passes(ALL, subject, Peer(address="169.254.20.10"), 53, protocol)


def test_runs_across_nodes_reach_the_platform_of_the_other_namespace() -> None:
    name = "h100-multinode"
    worker = pod(name, "/worker", "vagen-rdma")
    head = pod(name, "/head", "vagen-rdma")
    assert passes(name, worker, head, 6379)
    assert passes(name, KFP_STEP, head, 8265)
    assert passes(name, worker, MLFLOW, 5000)
    assert passes(name, worker, STORE, 8333)
    assert passes(name, worker, DNS, 53, "UDP")
    assert not passes(name, worker, HEAD, 6379)
    assert not passes(name, worker, DATABASE, 5432)


def test_a_tenants_runs_reach_their_own_platform_and_not_the_firsts() -> None:
    run = Peer("vagen-b", RUN_POD.labels)
    own = [Peer("vagen-b", peer.labels) for peer in (MLFLOW, STORE)]
    for target, other, port in zip(own, (MLFLOW, STORE), (5000, 8333), strict=True):
        assert passes("tenant", run, target, port)
        assert not admitted("tenant", run, other, "Egress", port, "TCP")
        assert not admitted("h100", other, run, "Ingress", port, "TCP")
        assert not admitted("tenant", target, RUN_POD, "Ingress", port, "TCP")


def test_who_is_let_in_from_elsewhere_is_named_with_its_namespace_and_its_labels() -> None:
    """A namespace alone lets in all its pods; only Prometheus, which reads metrics, and the ingress
    controller, whose labels are its own, may be so.
    """
    for policy in of_kind(ALL, "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            for entry in rule["from"]:
                if "namespaceSelector" in entry:
                    whole = "podSelector" not in entry
                    named = policy["metadata"]["name"]
                    assert whole == (named.endswith("-metrics") or named == "oauth2-proxy")
                    assert entry["namespaceSelector"]["matchLabels"]


def test_policies_name_ports_by_number() -> None:
    """The evaluation above compares numbers; a name would silently never match."""
    for policy in of_kind(ALL, "NetworkPolicy"):
        for way in ("ingress", "egress"):
            for rule in policy["spec"].get(way, []):
                assert all(isinstance(entry["port"], int) for entry in rule.get("ports", []))
