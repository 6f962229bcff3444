"""Who may send requests to a server, and how much: tokens, bytes and seconds.

uvicorn limits connections, but neither the time of a request nor the size of its headers and body.
"""

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vagen.service.settings import ServerSettings

Scope = dict[str, Any]
ANYONE = "anyone"
"""Name of the client when there are no tokens."""
_POLL_SECONDS = 5.0
_SHORTEST = 16
HEADER_BYTES = 64 << 10
"""Maximum bytes of a request's line and headers."""
HEADER_SECONDS = 10.0
"""Time limit for them, from the connection or the first byte."""
_BODIES = ("POST", "PUT", "PATCH", "DELETE")


class TokenError(ValueError):
    """The file of tokens, or a token, is invalid; or everyone could use the server."""


class ClientTokens:
    """Clients by the digest of their token; comparing digests does not leak a token."""

    def __init__(self, path: str | None, token: str | None = None):
        """Reads the file.

        Args:
            path: File with lines `client:token`, empty lines and `#` comments; None for no tokens.
            token: The only token if there is no file; None for none.

        Raises:
            TokenError: There is no such file, or a line is invalid, or a token too short.
        """
        self._path = None if path is None else Path(path)
        self._clients: dict[bytes, str] = {}
        if token is not None:
            if len(token) < _SHORTEST:
                raise TokenError(f"a token has at least {_SHORTEST} characters, not {len(token)}")
            self._clients[_digest(token)] = ANYONE
        self._version = (0, 0)
        self._looked = 0.0
        if self._path is not None:
            self._read(self._path)

    def client(self, authorization: str | None) -> str | None:
        """The client of an `Authorization` header; None if it is unknown."""
        if self._path is None and not self._clients:
            return ANYONE
        if self._path is not None and time.monotonic() - self._looked > _POLL_SECONDS:
            self._refresh(self._path)
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self._clients.get(_digest(token.strip()))

    def _refresh(self, path: Path) -> None:
        """Reloads a changed file; keeps the old tokens if it is invalid or missing."""
        try:
            self._read(path)
        except TokenError as error:
            print(f"{error}; the tokens read before stay valid", flush=True)
            self._looked = time.monotonic()

    def _read(self, path: Path) -> None:
        self._looked = time.monotonic()
        try:
            status = os.stat(path)
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._version:
                return
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenError(f"the file of tokens {path} cannot be read: {error}") from None
        clients: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            if not (line := line.strip()) or line.startswith("#"):
                continue
            name, colon, token = line.partition(":")
            if not colon or not name.strip() or len(token.strip()) < _SHORTEST:
                raise TokenError(
                    f"{path}, line {number}: write client:token, with a token of at least "
                    f"{_SHORTEST} characters"
                )
            clients[_digest(token.strip())] = name.strip()
        if not clients:
            raise TokenError(f"{path} holds no token: write a line client:token")
        self._clients, self._version = clients, version


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes connections without a timely request."""

    _waiting: asyncio.TimerHandle | None = None
    _bytes = 0

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._between_requests:
            self._wait()
            self._bytes += len(data)
        super().data_received(data)
        if not self._between_requests:
            self._request_started()
        elif self._bytes > HEADER_BYTES:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._request_started()
        super().connection_lost(exc)

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _request_started(self) -> None:
        self._bytes = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Intake:
    """ASGI middleware: passes complete requests to the application, and rejects others.

    Reads nothing from unknown clients.
    """

    def __init__(
        self,
        app: Any,
        settings: ServerSettings,
        is_known: Callable[[str | None], bool],
        problem: Callable[[int, str], Any] = lambda _, detail: {"detail": detail},
    ):
        """Prepares the middleware.

        Args:
            app: The application.
            settings: Settings with the limits.
            is_known: Whether an `Authorization` header belongs to a client.
            problem: The JSON of a rejection, from its status and text.
        """
        self._app = app
        self._problem = problem
        self._settings = settings
        self._is_known = is_known
        self._arriving = 0
        """Bytes of all incomplete requests."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serves one request."""
        if scope["type"] != "http" or scope["method"] not in _BODIES:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        sender = headers.get(b"authorization")
        if not self._is_known(None if sender is None else sender.decode("latin-1")):
            # The application rejects it; it gets no body, and received data are discarded.
            await self._app(scope, _whole(b"", receive), send)
            return
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._settings.max_body_bytes:
            await self._refuse(send, 413)
            return
        parts: list[bytes] = []
        try:
            status = await self._read(receive, parts)
        finally:
            self._arriving -= sum(map(len, parts))
        if status == 200:
            await self._app(scope, _whole(b"".join(parts), receive), send)
        elif status is not None:
            await self._refuse(send, status)

    async def _read(self, receive: Any, parts: list[bytes]) -> int | None:
        """Reads a body; returns 200, the status of a rejection, or None if the sender has gone."""
        settings = self._settings
        size = 0
        try:
            async with asyncio.timeout(settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    self._arriving += len(parts[-1])
                    if size > settings.max_body_bytes:
                        return 413
                    if not message.get("more_body", False):
                        return 200
                    if self._arriving > settings.max_buffered_bytes:
                        return 503
        except TimeoutError:
            return 408

    async def _refuse(self, send: Any, status: int) -> None:
        detail = {
            408: f"a request must arrive within {self._settings.body_seconds:g} s",
            413: f"a request may have {self._settings.max_body_bytes} bytes",
            503: "too many requests are arriving: try again later",
        }[status]
        body = orjson.dumps(self._problem(status, detail))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _whole(body: bytes, receive: Any) -> Any:
    """A `receive` function that returns a complete body, and then further messages."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return pending.pop() if pending else await receive()

    return again


def check_open(settings: ServerSettings, advice: str) -> None:
    """Checks that a server without tokens is meant for everyone who reaches it.

    Raises:
        TokenError: It listens on other addresses than loopback, and is not `open`.
    """
    if not (settings.is_loopback or settings.open):
        raise TokenError(
            f"anyone who reaches {settings.host} could use the service: {advice}, or --open to "
            "allow it"
        )


def listen(
    settings: ServerSettings,
    app: Any,
    name: str,
    make_server: Callable[[uvicorn.Config], uvicorn.Server] = uvicorn.Server,
    **options: Any,
) -> None:
    """Serves an application until SIGTERM or SIGINT.

    Args:
        settings: Address and limits.
        app: The application.
        name: What is served, for the line with the address.
        make_server: Makes the server.
        options: Further options of `uvicorn.Config`.

    Raises:
        OSError: The address cannot be used.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=120,
        http=BoundedProtocol,
        limit_concurrency=settings.max_connections,
        **options,
    )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    address = (settings.host, settings.port)
    with socket.create_server(address, family=family, backlog=config.backlog) as listener:
        print(f"{name} at http://{settings.host}:{listener.getsockname()[1]}", flush=True)
        make_server(config).run(sockets=[listener])
