"""Limits on connections of the service before a request is complete."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 << 10
"""Maximum bytes of a request's line and headers."""
HEADER_SECONDS = 10.0
"""Time limit for them, from the connection or the first byte."""


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
