"""A limit on the size of requests, kept before anything reads them."""

from typing import Any

import orjson

Scope = dict[str, Any]


class BodyLimit:
    """ASGI middleware: a body larger than the limit is answered with 413."""

    def __init__(self, app: Any, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            await self._refuse(send)
            return
        parts: list[bytes] = []
        size, more = 0, scope["method"] in ("POST", "PUT", "PATCH", "DELETE")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > self._limit:
                await self._refuse(send)
                return
        pending = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def again() -> Any:
            return pending.pop() if pending else await receive()

        await self._app(scope, again, send)

    async def _refuse(self, send: Any) -> None:
        body = orjson.dumps({"detail": f"a request may have {self._limit} bytes"})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
