"""Address and token for jobs on the head of a RayCluster."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vagen.cluster.clusters import cluster_pods
from vagen.cluster.errors import ClusterError
from vagen.cluster.forward import forwarded
from vagen.cluster.kube import SECRETS, Kube, Object

PORT = 8265
TOKEN_KEY = "auth_token"
"""Key of the token's secret (`RAY_AUTH_TOKEN_SECRET_KEY`, KubeRay utils/constant.go, v1.6)."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Ray's dashboard, which serves the job API.

    Example: `Dashboard("http://10.0.3.7:8265", "0123…")`.
    """

    url: str
    token: str = field(repr=False)
    """Sent as `Authorization: Bearer …`; its holder may run code in the cluster."""


def find_dashboard(kube: Kube, cluster: Object) -> Dashboard:
    """The dashboard of a ready RayCluster, for pods of the Kubernetes cluster.

    Raises:
        ClusterError: The token is not available.
    """
    status = cluster.get("status", {})
    host = status.get("head", {}).get("serviceIP", "")
    port = status.get("endpoints", {}).get("dashboard", PORT)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Dashboard(f"http://{address}", read_token(kube, cluster))


@contextmanager
def forwarded_dashboard(kube: Kube, cluster: Object, context: str | None) -> Iterator[Dashboard]:
    """The dashboard of a RayCluster for machines outside, through `kubectl port-forward`.

    Args:
        kube: The API server.
        cluster: The RayCluster.
        context: Context of the kubeconfig; None for the current one.

    Raises:
        ClusterError: There is no head, no `kubectl`, or it is rejected.
    """
    name = cluster["metadata"]["name"]
    heads = cluster_pods(kube, name, "head")
    if not heads:
        raise ClusterError(f"RayCluster {name} has no head at present")
    with forwarded(kube, f"pod/{heads[0]['metadata']['name']}", PORT, context) as address:
        yield Dashboard(address, read_token(kube, cluster))


def read_token(kube: Kube, cluster: Object) -> str:
    """The token of a RayCluster, from the secret in its `authOptions`.

    Raises:
        ClusterError: There is no such secret, or no token in it.
    """
    secret = cluster["spec"].get("authOptions", {}).get("secretName")
    if secret is None:
        raise ClusterError(
            "the RayCluster asks for no token: its template needs "
            "authOptions: {mode: token, secretName: ...} (k8s/overlays)"
        )
    found = kube.get(SECRETS, secret)
    if found is None or TOKEN_KEY not in found.get("data", {}):
        raise ClusterError(
            f"namespace {kube.namespace} has no secret {secret} with the key {TOKEN_KEY}, Ray's "
            "token: make it as docs/kubernetes.md says"
        )
    return base64.b64decode(found["data"][TOKEN_KEY]).decode()
