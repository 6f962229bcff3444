"""Errors of the cluster, and explanations of rejections by the API server."""

import json
import re
from typing import Any


class ClusterError(ValueError):
    """A Kubernetes problem that the user or the cluster's administrators can fix."""


class ApiError(ClusterError):
    """An error response of the API server.

    Attributes:
        status: HTTP status; 0 if there was no response despite retries.
        reason: Kubernetes' reason (`AlreadyExists`, `Expired`, ...), or empty.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def over_quota(self) -> bool:
        """Whether a quota of the namespace is exhausted."""
        return self.status == 403 and "exceeded quota" in str(self)


_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_ACCOUNT = "system:serviceaccount:"


def explain(status: int, data: bytes, method: str, path: str) -> ApiError:
    """The error for a response of the API server, with advice."""
    answer = _status(data)
    reason = str(answer.get("reason", ""))
    message = str(answer.get("message") or data.decode(errors="replace").strip()[:300])
    where = f"{method} {path}"
    if status == 401:
        text = (
            f"the API server does not accept the credentials ({message}): log in again, or check "
            "that the pod's service account exists"
        )
    elif status == 403:
        text = _forbidden(message)
    elif status == 404 and not answer.get("details", {}).get("name"):
        text = _unknown_kind(path)
        reason = "UnknownKind"
    elif status in (400, 422):
        text = f"the API server refuses it as invalid: {message}"
    elif status == 429:
        text = f"the API server throttles: {where}: {message}"
    else:
        text = f"{where}: HTTP {status}: {message}"
    return ApiError(text, status, reason)


def _status(data: bytes) -> dict[str, Any]:
    """The `Status` object of a response; empty for responses of proxies and unknown paths."""
    try:
        answer = json.loads(data)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _forbidden(message: str) -> str:
    found = _FORBIDDEN.search(message)
    if not found:  # messages of quotas, Pod Security and other admission are clear
        return f"forbidden: {message}"
    user = found["user"]
    if user.startswith(_ACCOUNT):
        user = "service account " + user.removeprefix(_ACCOUNT).replace(":", "/")
    resource = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    place = f" in namespace {found['namespace']}" if found["namespace"] else ""
    return (
        f"{user} may not {found['verb']} {resource}{place}: its Role must allow the verb "
        f"`{found['verb']}` (k8s/base has the Roles)"
    )


def _unknown_kind(path: str) -> str:
    if path.startswith("/apis/ray.io/"):
        return (
            "KubeRay is not installed on this cluster: it knows no ray.io/v1. Install the KubeRay "
            "operator, 1.6 or newer, with its CRDs"
        )
    return f"the cluster does not know {path}: the extension that brings it is not installed"
