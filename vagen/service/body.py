"""Reads request bodies of known clients, with limits on bytes and seconds."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from vagen.service.settings import ServiceSettings

Scope = dict[str, Any]
_BODIES = ("POST", "PUT", "PATCH", "DELETE")


class Intake:
    """ASGI middleware: passes complete requests to the application, and rejects others.

    Reads nothing from unknown clients.
    """

    def __init__(self, app: Any, settings: ServiceSettings, is_known: Callable[[str | None], bool]):
        """Prepares the middleware.

        Args:
            app: The application.
            settings: Settings with the limits.
            is_known: Whether an `Authorization` header belongs to a client.
        """
        self._app = app
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
        body = orjson.dumps({"detail": detail})
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
