"""Client of the API server with plain dictionaries and retries of transient errors.

The official client provides configuration, credentials and TLS. Requests use API paths and
dictionaries, so that core objects and KubeRay's are treated alike and no fields are lost.

`follow` watches one object: it yields every change once, across windows, lost connections and
expired versions (Kubernetes API concepts, "Efficient detection of changes").
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError, LocationParseError, SSLError

from vagen.cluster.errors import ApiError, ClusterError, explain

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object as JSON."""

TRANSIENT = frozenset({429, 500, 502, 503, 504})
PAGE = 250
"""Objects per page of a list."""
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as in API paths."""

    group: str
    version: str
    plural: str

    @property
    def root(self) -> str:
        """Path of the group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def full_name(self) -> str:
        """Name as in `kubectl`: `rayclusters.ray.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters")
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
CONFIG_MAPS = Resource("", "v1", "configmaps")
SECRETS = Resource("", "v1", "secrets")


@dataclass(frozen=True, slots=True)
class Pace:
    """Timeouts of the client in seconds."""

    timeout: float = 15.0
    """Timeout of a request."""
    retry: float = 90.0
    """Retry time for transient errors of a request: throttling, 5xx, lost connections."""
    first_pause: float = 0.25
    longest_pause: float = 10.0
    window: float = 10.0
    """Length of a watch; state without events is polled in between."""
    grace: float = 120.0
    """Time that an apparently permanent problem may take to resolve itself."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a list, and the resource version to watch from."""

    items: list[Object]
    resource_version: str


@dataclass(eq=False)
class Kube:
    """An API server with a namespace."""

    api: client.ApiClient
    namespace: str
    pace: Pace = field(default_factory=Pace)

    def get(self, resource: Resource, name: str) -> Object | None:
        """An object; None if it does not exist."""
        return _unless_missing(lambda: self._json("GET", resource, name))

    def list(self, resource: Resource, selector: str = "", field_selector: str = "") -> Listing:
        """All matching objects, page by page; restarts if a page's token has expired."""
        query = {"limit": str(PAGE), "labelSelector": selector, "fieldSelector": field_selector}
        items: list[Object] = []
        token = ""
        while True:
            try:
                page = self._json("GET", resource, query={**query, "continue": token})
            except ApiError as error:
                if error.status == 410 and token:
                    items, token = [], ""
                    continue
                raise
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return Listing(items, page["metadata"]["resourceVersion"])

    def create(self, resource: Resource, body: Object) -> Object:
        """Creates an object; unknown fields are errors.

        Raises:
            ApiError: With status 409 if the name exists, possibly from an earlier try of the same
                request without response.
        """
        return self._json("POST", resource, query={"fieldValidation": "Strict"}, body=body)

    def patch(self, resource: Resource, name: str, body: Object) -> Object:
        """Merges fields into an object (JSON merge patch, RFC 7386)."""
        return self._json("PATCH", resource, name, body=body)

    def replace(self, resource: Resource, name: str, body: Object) -> Object:
        """Replaces an object; `body` has the resource version that was read."""
        return self._json("PUT", resource, name, {"fieldValidation": "Strict"}, body)

    def delete(self, resource: Resource, name: str, *, read: Object | None = None) -> bool:
        """Requests an object's deletion after its dependents; False if it does not exist.

        Args:
            resource: Kind of the object.
            name: Name of the object.
            read: The object as it was read, which must not have changed.

        Raises:
            ApiError: With status 409 if it has changed.
        """
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
        }
        if read is not None:
            body["preconditions"] = {
                key: read["metadata"][key] for key in ("uid", "resourceVersion")
            }
        answer = _unless_missing(lambda: self._json("DELETE", resource, name, body=body))
        return answer is not None

    def metadata(self, resource: Resource, name: str) -> Object | None:
        """Metadata of an object without its content, e.g. of a secret; None if it is missing."""
        path = self.path(resource, name)
        found = _unless_missing(lambda: self.request("GET", path, accept=METADATA_ONLY))
        return None if found is None else json.loads(found.data)["metadata"]

    def may(self, verb: str, resource: Resource, subresource: str = "") -> bool:
        """Whether the credentials allow a verb in this namespace, according to the server."""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": subresource,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(json.loads(self.request("POST", path, body=body).data)["status"]["allowed"])

    def log(self, pod: str, container: str, **query: str) -> str:
        """A container's log; empty if it has not started, or the pod is gone."""
        try:
            response = self.request(
                "GET", self.path(PODS, pod) + "/log", {"container": container, **query}
            )
        except ApiError as error:
            if error.status in (400, 404):
                return ""
            raise
        return response.data.decode(errors="replace")

    def path(self, resource: Resource, name: str = "") -> str:
        """API path of a kind, or of one object, in this namespace."""
        path = f"{resource.root}/namespaces/{quote(self.namespace)}/{resource.plural}"
        return f"{path}/{quote(name)}" if name else path

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        accept: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        """One request, with retries of transient errors for `pace.retry` seconds.

        Raises:
            ApiError: The request was rejected, or there is no response.
        """
        end = time.monotonic() + self.pace.retry
        pauses = _pauses(self.pace)
        while True:
            pause = next(pauses)
            try:
                response = self._send(method, path, query or {}, body, accept=accept)
            except (SSLError, LocationParseError) as error:
                raise ApiError(f"{self.host}: {error}: check the kubeconfig's server and CA") from (
                    error
                )
            except HTTPError as error:
                fault = ApiError(
                    f"the API server {self.host} does not answer ({_brief(error)}): check the "
                    "network, the VPN and the kubeconfig's server"
                )
            else:
                if response.status < 400:
                    return response
                fault = explain(response.status, response.data, method, path)
                after = response.headers.get("Retry-After", "")
                pause = max(pause, float(after) if after.isdigit() else 0.0)
                if response.status not in TRANSIENT:
                    raise fault
            if time.monotonic() + pause > end:
                raise fault
            time.sleep(pause)

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], read_timeout: float) -> Iterator[Any]:
        """A streaming response of a watch, without retries.

        Raises:
            ApiError: The server rejects it.
            urllib3.exceptions.HTTPError: The connection broke.
        """
        response = self._send("GET", path, query, None, stream=True, read_timeout=read_timeout)
        try:
            if response.status >= 400:
                raise explain(response.status, response.read(), "GET", path)
            yield response
        finally:
            response.close()

    @property
    def host(self) -> str:
        """URL of the API server."""
        return str(self.api.configuration.host)

    def _json(
        self,
        method: str,
        resource: Resource,
        name: str = "",
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
    ) -> Object:
        return json.loads(self.request(method, self.path(resource, name), query, body).data)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        *,
        accept: str = "application/json",
        stream: bool = False,
        read_timeout: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "vagen"}
        if body is not None:
            patch = method == "PATCH"
            headers["Content-Type"] = f"application/{'merge-patch+' if patch else ''}json"
        # Reloads a rotated service account token.
        self.api.update_params_for_auth(headers, [], ["BearerToken"])
        query = {key: value for key, value in query.items() if value}
        return self.api.rest_client.pool_manager.request(
            method,
            f"{self.host}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body),
            headers=headers,
            preload_content=not stream,
            timeout=urllib3.Timeout(
                connect=self.pace.timeout, read=read_timeout or self.pace.timeout
            ),
            retries=False,
        )


def connect(namespace: str | None = None, context: str | None = None) -> Kube:
    """Connects with the pod's service account, or with the kubeconfig.

    Args:
        namespace: Namespace; None for that of the service account or kubeconfig.
        context: Context of the kubeconfig, instead of a service account or the current one.

    Raises:
        ClusterError: There is neither a service account nor a kubeconfig.
    """
    settings: Any = client.Configuration()
    try:
        if context is None:
            config.load_incluster_config(client_configuration=settings)
            if namespace is None:
                namespace = NAMESPACE_FILE.read_text().strip()
            return Kube(client.ApiClient(settings), namespace)
    except ConfigException:
        pass
    try:
        config.load_kube_config(context=context, client_configuration=settings)
        if namespace is None:
            listed: Any = config.list_kube_config_contexts()
            contexts, active = listed
            chosen = next((one for one in contexts if one["name"] == context), active)
            namespace = chosen["context"].get("namespace", "vagen")
    except (ConfigException, OSError, TypeError, KeyError) as error:
        raise ClusterError(
            f"no access to a Kubernetes cluster: this is no pod with a service account, and there "
            f"is no usable kubeconfig ({error}): set KUBECONFIG, or log in to the cluster"
        ) from error
    return Kube(client.ApiClient(settings), str(namespace))


def wait_until(done: Callable[[], bool], seconds: float, pause: float = 1.0) -> bool:
    """Polls until `done` returns True; False on timeout."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
    return True


def _pauses(pace: Pace) -> Iterator[float]:
    """Doubling pauses with jitter, so that clients do not retry in lockstep."""
    pause = pace.first_pause
    while True:
        yield random.uniform(pause / 2, pause)
        pause = min(2 * pause, pace.longest_pause)


def _unless_missing(call: Callable[[], T]) -> T | None:
    """The result of a request; None if its object does not exist."""
    try:
        return call()
    except ApiError as error:
        if error.status == 404 and error.reason == "NotFound":
            return None
        raise


def _brief(error: Exception) -> str:
    return str(error).rpartition("object at 0x")[2].partition(">: ")[2] or str(error)


SLACK = 5.0
"""Extra seconds that a server may take to end a watch."""


def follow(kube: Kube, resource: Resource, name: str) -> Iterator[Object | None]:
    """Yields states of an object, or None while it does not exist.

    Yields at every change and at least once per `pace.window`, so that the caller can check other
    objects. Never ends by itself.

    Raises:
        ApiError: The server rejects the watch, or does not respond for `pace.retry`.
    """
    version = ""
    state: Object | None = None
    failed_since: float | None = None
    while True:
        if not version:
            listing = kube.list(resource, field_selector=f"metadata.name={name}")
            version = listing.resource_version
            state = listing.items[0] if listing.items else None
            yield state
        begun = time.monotonic()
        try:
            for kind, item in _window(kube, resource, name, version):
                version = item["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    state = None if kind == "DELETED" else item
                    yield state
            failed_since = None
        except (HTTPError, ApiError) as error:
            if isinstance(error, ApiError):
                if error.status == 410:
                    version = ""
                elif error.status not in TRANSIENT:
                    raise
            failed_since = failed_since or begun
            if time.monotonic() - failed_since > kube.pace.retry:
                raise
            # Pause even if a server drops every watch at once.
            time.sleep(max(0.0, kube.pace.first_pause - (time.monotonic() - begun)))
        yield state


def _window(
    kube: Kube, resource: Resource, name: str, version: str
) -> Iterator[tuple[str, Object]]:
    """The events of one watch."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(max(1, round(kube.pace.window))),
        "fieldSelector": f"metadata.name={name}",
    }
    timeout = kube.pace.window + SLACK
    with kube.stream(kube.path(resource), query, timeout) as response:
        for line in _lines(response):
            event = json.loads(line)
            item = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(
                    f"watch of {resource.full_name} {name}: {item.get('message')}",
                    int(item.get("code", 500)),
                    str(item.get("reason", "")),
                )
            yield event["type"], item


def _lines(response: Any) -> Iterator[bytes]:
    """Whole lines of a stream, without an incomplete last one."""
    rest = b""
    for chunk in response.stream(None, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)
