"""An API server for tests: HTTP, objects with versions, watches that expire, and faults on request.

It keeps to what clients rely on (Kubernetes API concepts): resource versions and optimistic
concurrency, finalizers and graceful deletion, lists in pages, watches with bookmarks and 410 Gone,
throttling with Retry-After, `Status` objects for every refusal. Whatever has state is in `Store`;
`kuberay.py` moves the objects as KubeRay and a kubelet would.
"""

import contextlib
import copy
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from api_store import Refusal, Store

Object = dict[str, Any]
PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)


@dataclass
class Fault:
    """Something that goes wrong with the next requests that match."""

    match: str
    """Regular expression on `METHOD path?query`."""
    action: str
    """`drop` (no answer), `lose` (carried out, no answer), `cut` (a stream, in mid-line), or an
    HTTP status."""
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


class ApiServer:
    """A running server; `url` is what a client's configuration names."""

    def __init__(self) -> None:
        self.store = Store()
        self.faults: list[Fault] = []
        self.token = ""
        self.denied: set[tuple[str, str]] = set()
        """Verbs on resources that the caller has no right to: `("create", "rayclusters")`."""
        self.ray_resources = ["rayclusters", "rayclusters/status", "rayjobs", "raycronjobs"]
        self.requests: list[str] = []
        self.accepted: dict[str, str] = {}
        """Header `Accept` of the last request to a path."""
        self.logs: Callable[[str, str, bool], list[tuple[str, str]] | None] = lambda *_: None
        """Lines of a container with their times: pod, container, previous."""
        server = self

        class Handler(_Handler):
            api = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self.store.close()
        self._http.shutdown()
        self._http.server_close()

    def fault(self, method: str, path: str) -> tuple[str, dict[str, str]]:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.match, f"{method} {path}"):
                fault.times -= 1
                return fault.action, fault.headers
        return "", {}


class Dropped(Exception):
    """The connection is closed without a word."""


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the client has gone
            self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def do_PUT(self) -> None:
        self._handle("PUT")

    def do_DELETE(self) -> None:
        self._handle("DELETE")

    def _handle(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.requests.append(f"{method} {self.path}")
        self.api.accepted[self.path] = self.headers.get("Accept", "")
        action, headers = self.api.fault(method, self.path)
        try:
            if action == "drop":
                raise Dropped
            if action.isdigit():
                status = int(action)
                reason = {429: "TooManyRequests", 410: "Expired"}.get(status, "InternalError")
                self._answer(status, _status(status, reason, "a fault on request"), headers)
                return
            self._route(method, body, action)
        except Refusal as refusal:
            self._answer(refusal.status, refusal.body())
        except (Dropped, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, method: str, body: Any, action: str) -> None:
        if self.api.token and self.headers.get("Authorization") != f"Bearer {self.api.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/version":
            self._answer(200, {"major": "1", "minor": "33", "gitVersion": "v1.33.5"})
            return
        if url.path == "/apis/ray.io/v1" and "ray.io" not in self.api.store.missing:
            kinds = [{"name": name} for name in self.api.ray_resources]
            self._answer(200, {"kind": "APIResourceList", "resources": kinds})
            return
        if self.api.store.knows(url.path):
            self._answer(200, {"kind": "APIResourceList", "resources": []})
            return
        found = PATH.fullmatch(url.path)
        if not found:
            raise Refusal(404, "", "404 page not found", plain=True)
        parts = found.groupdict()
        group, plural = parts["group"] or "", parts["plural"]
        name, sub = parts["name"], parts["sub"]
        if plural == "selfsubjectaccessreviews":
            self._review(body)
            return
        kind = self.api.store.kind(group, parts["version"] or "v1", plural)
        verb = _verb(method, name, query)
        self._permit(verb, group, plural, name, sub, parts["namespace"])
        if sub == "log":
            self._log(str(name), query)
        elif verb == "watch":
            self._watch(kind, query, action)
        else:
            self._answer(*self._execute(verb, kind, name, sub, query, body), lose=action == "lose")

    def _execute(
        self,
        verb: str,
        kind: str,
        name: str | None,
        sub: str | None,
        query: dict[str, str],
        body: Any,
    ) -> tuple[int, Object]:
        store = self.api.store
        if verb == "list":
            return 200, store.list(kind, query)
        if verb == "create":
            return 201, store.create(kind, body, strict=query.get("fieldValidation") == "Strict")
        assert name
        if verb == "get":
            found = store.get(kind, name)
            if "PartialObjectMetadata" in self.headers.get("Accept", ""):
                found = {"kind": "PartialObjectMetadata", "metadata": found["metadata"]}
            return 200, found
        if verb == "delete":
            return 200, store.delete(kind, name, body or {})
        return 200, store.update(kind, name, body, sub or "", merge=verb == "patch")

    def _permit(
        self,
        verb: str,
        group: str,
        plural: str,
        name: str | None,
        sub: str | None,
        namespace: str | None,
    ) -> None:
        resource = f"{plural}/{sub}" if sub else plural
        if (verb, resource) in self.api.denied:
            what = f"{plural}.{group}" if group else plural
            if name:
                what += f' "{name}"'
            raise Refusal(
                403,
                "Forbidden",
                f"{what} is forbidden: "
                f'User "system:serviceaccount:vagen:vagen-step" cannot {verb} resource '
                f'"{resource}" in API group "{group}" in the namespace "{namespace}"',
            )

    def _review(self, body: Any) -> None:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (asked["resource"], asked.get("subresource")) if part)
        allowed = (asked["verb"], resource) not in self.api.denied
        self._answer(201, {**body, "status": {"allowed": allowed}})

    def _answer(
        self, status: int, body: Any, headers: dict[str, str] | None = None, lose: bool = False
    ) -> None:
        if lose:
            raise Dropped
        plain = isinstance(body, str)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _watch(self, kind: str, query: dict[str, str], action: str) -> None:
        """Events after a version until the time is over; a bookmark if anything has happened."""
        store = self.api.store
        end = time.monotonic() + float(query.get("timeoutSeconds", "60"))
        seen = begun = int(query.get("resourceVersion", "0"))
        self._stream()
        while time.monotonic() < end and not store.closed:
            news = store.events_after(kind, seen, query, min(end - time.monotonic(), 0.5))
            if news is None:
                gone = _status(410, "Expired", "too old resource version")
                self._chunk(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                break
            events, seen = news
            for change, item in events:
                line = json.dumps({"type": change, "object": item}).encode() + b"\n"
                if action == "cut":
                    self._chunk(line[: len(line) // 2])
                    raise Dropped
                self._chunk(line)
        else:
            if seen > begun:
                mark = {"kind": kind, "metadata": {"resourceVersion": str(seen)}}
                self._chunk(json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n")
        self._chunk(b"")

    def _log(self, name: str, query: dict[str, str]) -> None:
        """A container's log as it is."""
        pod = self.api.store.get("Pod", name)
        container = query.get("container") or pod["spec"]["containers"][0]["name"]
        previous = query.get("previous") == "true"
        entries = self.api.logs(name, container, previous)
        if entries is None:
            what = "previous terminated container" if previous else "container"
            raise Refusal(400, "BadRequest", f'{what} "{container}" in pod "{name}" not found')
        self._stream()
        for _, text in entries:
            self._chunk(f"{text}\n".encode())
        self._chunk(b"")


def _verb(method: str, name: str | None, query: dict[str, str]) -> str:
    if method == "GET":
        if query.get("watch") == "true":
            return "watch"
        return "get" if name else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]


def _status(code: int, reason: str, message: str) -> Object:
    return copy.deepcopy(Refusal(code, reason, message).body())
