"""A rate limit, and a circuit breaker for failing endpoints."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vagen.clients.errors import OUTAGES, NoAnswerError

_BURST = 1.0
"""Burst after a pause: units of this many seconds."""
_LONGEST_BREAK = 12
"""Longest cool-down as a multiple of the first."""


class RateLimit:
    """Limits units per second, first come first served; bursts have one second's units."""

    def __init__(self, per_second: float | None) -> None:
        """None disables the limit."""
        self._rate = per_second
        self._next = 0.0

    async def take(self, units: float = 1.0) -> None:
        """Waits until `units` may be spent."""
        if self._rate is None:
            return
        now = time.monotonic()
        start = max(self._next, now - _BURST)
        self._next = start + units / self._rate
        if start > now:
            await asyncio.sleep(start - now)


class CircuitBreaker:
    """Stops all requests while an endpoint fails.

    When closed, requests pass. It opens after a number of consecutive failures, and requests wait
    for the cool-down. Then one request passes while the others wait for its result: success closes
    the breaker, failure opens it for twice as long.
    """

    def __init__(self, *, failures: int, cooldown: float) -> None:
        """Creates a closed breaker.

        Args:
            failures: Number of consecutive failures, over all requests, that open it.
            cooldown: Initial cool-down in seconds.
        """
        self._most = failures
        self._cooldown = cooldown
        self._failed = 0
        self._breaks = 0
        self._until = 0.0
        self._probing = False
        self._probed = asyncio.Event()
        self.openings = 0
        """Number of times it has opened."""

    @property
    def is_open(self) -> bool:
        """Whether requests wait."""
        return self._breaks > 0

    def seconds_left(self) -> float:
        """Seconds until a request may be sent."""
        return max(0.0, self._until - time.monotonic()) if self._breaks else 0.0

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Waits until a request may be sent; the block's result counts as the request's."""
        is_probe = await self._enter()
        try:
            yield
        except NoAnswerError as error:
            self._note(success=error.reason not in OUTAGES, is_probe=is_probe)
            raise
        else:
            self._note(success=True, is_probe=is_probe)
        finally:
            if is_probe:
                self._probing = False
                self._probed.set()

    async def _enter(self) -> bool:
        """Waits; returns whether this is the first request after a cool-down."""
        while self._breaks:
            if (left := self.seconds_left()) > 0:
                await asyncio.sleep(left)
            elif self._probing:
                await self._probed.wait()
            else:
                self._probing = True
                self._probed.clear()
                return True
        return False

    def _note(self, *, success: bool, is_probe: bool) -> None:
        if success:
            self._failed = self._breaks = 0
            return
        self._failed += 1
        if is_probe or (not self._breaks and self._failed >= self._most):
            longer = min(2**self._breaks, _LONGEST_BREAK)
            self._until = time.monotonic() + self._cooldown * longer
            self._breaks += 1
            self.openings += 1
