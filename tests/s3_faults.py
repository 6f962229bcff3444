"""Proxies in front of an S3 server: one spoils requests, one adds conditional writes.

Swift, which the tests have, knows no conditional writes.
"""

import http.client
import random
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.exceptions import ClientError

FAULTS = ("refused", "unavailable", "internal", "answer lost", "answer cut")


class FaultyProxy:
    """Runs inside the `with` block; `endpoint` is its address.

    Args:
        endpoint: Of the server behind it.
        share: Of requests that are spoilt, 0 to 1.
        seed: Of the draws.
    """

    def __init__(self, endpoint: str, *, share: float, seed: int = 0) -> None:
        self.faults = dict.fromkeys(FAULTS, 0)
        """How often each kind of fault was injected."""
        self.requests = 0
        self._rng = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self._behind = urlsplit(endpoint).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FaultyProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def draw(self) -> str | None:
        """The fault of the next request."""
        with self._lock:
            self.requests += 1
            if self._rng.random() >= self._share:
                return None
            fault = self._rng.choice(FAULTS)
            self.faults[fault] += 1
            return fault

    def intercept(self, request: Any, body: bytes) -> bool:
        """Answers a PUT in the server's place, if it does."""
        return False

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def answer(self) -> None:
                fault = proxy.draw()
                if fault == "refused":
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.command == "PUT" and proxy.intercept(self, body):
                    return
                if fault in ("unavailable", "internal"):
                    self.reply(503 if fault == "unavailable" else 500, {}, b"")
                    return
                connection = http.client.HTTPConnection(proxy._behind, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                if fault == "answer lost":
                    self.close_connection = True
                    return
                self.reply(answer.status, dict(answer.getheaders()), content, fault == "answer cut")

            def reply(
                self, status: int, headers: dict[str, str], content: bytes, cut: bool = False
            ) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = len(content)
                if self.command == "HEAD":
                    length = int({k.lower(): v for k, v in headers.items()}["content-length"])
                self.send_header("Content-Length", str(length))
                self.end_headers()
                if cut:
                    content, self.close_connection = content[: len(content) // 2], True
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        return Handler


class ConditionalProxy(FaultyProxy):
    """Gives a server that has none conditional writes: `If-None-Match: *` and `If-Match`.

    Args:
        endpoint: Of the server behind it.
        client: Gives a client of it.
    """

    def __init__(self, endpoint: str, client: Callable[[], Any]) -> None:
        super().__init__(endpoint, share=0)
        self._client = client()
        self._writing = threading.Lock()

    def intercept(self, request: Any, body: bytes) -> bool:
        """Looks and writes, with no other conditional write in between."""
        wanted = request.headers.get("If-Match")
        if wanted is None and request.headers.get("If-None-Match") is None:
            return False
        bucket, _, key = unquote(urlsplit(request.path).path).lstrip("/").partition("/")
        status, headers, code = 412, {"Content-Type": "application/xml"}, "PreconditionFailed"
        with self._writing:
            try:
                listed = self._client.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", ())
                tag = next((entry["ETag"] for entry in listed if entry["Key"] == key), None)
                if tag == wanted:
                    answer = self._client.put_object(Bucket=bucket, Key=key, Body=body)
                    request.reply(200, {"ETag": answer["ETag"]}, b"")
                    return True
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                code = error.response["Error"]["Code"]
        content = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
        request.reply(status, headers, content.encode())
        return True
