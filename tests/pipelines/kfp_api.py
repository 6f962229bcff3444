"""Kubeflow Pipelines' REST API, as much as submitting needs; what was posted is kept."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

BASE = "/apis/v2beta1"


class KubeflowApi:
    """State of the server."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.experiments: dict[str, dict[str, Any]] = {}
        self.refuse: tuple[int, str] | None = None
        """Answer to every POST: status and message."""
        self.states: dict[str, tuple[str, str]] = {}
        """By the id of a run: its state, and the message of one that failed."""
        self.multi_user = False
        self.tokens: set[str | None] = set()
        """Headers `authorization` of all requests."""
        self.url = ""

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """The answer to a GET."""
        if path == f"{BASE}/healthz":
            return 200, {"multi_user": self.multi_user}
        if path == f"{BASE}/experiments":
            wanted = json.loads(query["filter"][0])["predicates"][0]["stringValue"]
            return 200, {"experiments": [e for n, e in self.experiments.items() if n == wanted]}
        name = path.removeprefix(f"{BASE}/runs/")
        if name in self.states:
            state, message = self.states[name]
            return 200, {"run_id": name, "state": state, "error": {"message": message}}
        return 404, {"error": f"no {path}"}

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The answer to a POST; pipelines are parsed as the real server parses them."""
        if self.refuse is not None:
            return self.refuse[0], {"message": self.refuse[1]}
        kind = path.removeprefix(f"{BASE}/")
        name, _, verb = kind.removeprefix("runs/").partition(":")
        if verb == "terminate" and name in self.states:
            self.states[name] = ("CANCELED", "")
            return 200, {}
        if kind == "experiments":
            body = {**body, "experiment_id": f"experiment-{len(self.experiments)}"}
            self.experiments[body["display_name"]] = body
            return 200, body
        if kind not in ("runs", "recurringruns"):
            return 404, {"error": f"no {path}"}
        check_pipeline(body["pipeline_spec"])
        self.posted.append((kind, body))
        key = {"runs": "run_id", "recurringruns": "recurring_run_id"}[kind]
        name = f"{kind}-{len(self.posted)}"
        self.states[name] = ("PENDING", "")
        return 200, {**body, key: name}


def check_pipeline(document: dict[str, Any]) -> None:
    """Refuses what is no pipeline with its platform."""
    json_format.ParseDict(document["pipeline_spec"], pipeline_spec_pb2.PipelineSpec())
    executors = document["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for config in executors.values():
        json_format.ParseDict(config, kubernetes_executor_config_pb2.KubernetesExecutorConfig())


@contextmanager
def serve() -> Iterator[KubeflowApi]:
    """Runs the server on a free port."""
    api = KubeflowApi()

    class Handler(BaseHTTPRequestHandler):
        def parse_request(self) -> bool:
            found = super().parse_request()
            api.tokens.add(self.headers.get("authorization"))
            return found

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._answer(*api.get(parts.path, parse_qs(parts.query)))

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(*api.post(urlsplit(self.path).path, yaml.safe_load(text)))

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
