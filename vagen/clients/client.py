"""Retries requests to an endpoint within limits.

Transient failures are retried with growing, jittered pauses; a `Retry-After` of the endpoint takes
precedence and pauses all requests. Rate limits and the deadline always hold.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from vagen.clients.errors import OUTAGES, RETRIED, NoAnswerError, Reason
from vagen.config.client_options import ClientConfig

ParsedT = TypeVar("ParsedT")
ResponseT = TypeVar("ResponseT")

_FAILURES = 8
"""Consecutive failures after which requests pause."""
_COOLDOWN = 10
"""Length of that pause, in `backoff`s."""
_LONGEST_PAUSE = 60
"""Longest pause between two attempts, in `backoff`s."""
_BURST = 1.0
"""Burst after a pause: units of this many seconds."""
_LONGEST_BREAK = 12
"""Longest cool-down as a multiple of the first."""
DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
"""Deadline of the current request, on the event loop's clock."""


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


@dataclass(slots=True)
class Usage:
    """Usage of a client."""

    requests: int = 0
    """Number of requests sent, including failed ones."""
    answers: int = 0
    """Number of requests with a valid answer."""
    seconds: float = 0.0
    """Total time from sending to the response."""
    responses: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failed requests, by reason."""


class Client:
    """Limits of one endpoint. Belongs to the first event loop that uses it."""

    def __init__(self, config: ClientConfig, *, share: int = 1) -> None:
        """Prepares a client.

        Args:
            config: Limits.
            share: Number of processes that share the limits equally.
        """
        self.config = config
        self.usage = Usage()
        self.breaker = CircuitBreaker(failures=_FAILURES, cooldown=_COOLDOWN * config.backoff)
        self._rate = RateLimit(_part(config.request_rate, share))
        self._tokens = RateLimit(_part(config.tokens_per_minute, 60 * share))
        self._slots = asyncio.Semaphore(-(-config.concurrency // share))
        self._quiet_until = 0.0

    async def ask(self, attempt: Callable[[], Awaitable[ParsedT]], *, tokens: float) -> ParsedT:
        """Retries until there is an answer.

        Args:
            attempt: Makes one request with `send`; raises `NoAnswerError` if it fails.
            tokens: Estimated tokens of the prompt and the longest answer.

        Raises:
            NoAnswerError: There is no answer; has the reason.
            EndpointError: The endpoint rejects the key, or does not know the model.
        """
        deadline = DEADLINE.get()
        try:
            async with asyncio.timeout_at(deadline):
                for number in itertools.count():
                    try:
                        return await self._attempt(attempt, tokens, deadline)
                    except NoAnswerError as error:
                        if error.reason not in RETRIED or number == self.config.retries:
                            raise
                        await asyncio.sleep(max(self._pause(number), error.retry_after or 0.0))
        except TimeoutError:
            reason = Reason.BREAKER if self.breaker.is_open else Reason.DEADLINE
            raise NoAnswerError(reason) from None
        raise AssertionError("the last attempt returns or raises")

    async def send(self, request: Callable[[], Awaitable[ResponseT]]) -> ResponseT:
        """Sends one request when the rate limit allows, and waits for it within the timeout."""
        await self._rate.take()
        self.usage.requests += 1
        sent = time.monotonic()
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await request()
        except TimeoutError:
            raise NoAnswerError(Reason.TIMEOUT) from None
        self.usage.responses += 1
        self.usage.seconds += time.monotonic() - sent
        return response

    def _pause(self, number: int) -> float:
        pause = min(2**number, _LONGEST_PAUSE) * self.config.backoff
        return pause * random.uniform(0.5, 1.5)

    async def _attempt(
        self, attempt: Callable[[], Awaitable[ParsedT]], tokens: float, deadline: float | None
    ) -> ParsedT:
        if deadline is not None:
            left = deadline - asyncio.get_running_loop().time()
            if self.breaker.seconds_left() > left:
                raise NoAnswerError(Reason.BREAKER)
        async with self._slots, self.breaker.request():
            await self._tokens.take(tokens)
            while (quiet := self._quiet_until - time.monotonic()) > 0:
                await asyncio.sleep(quiet)
            try:
                answer = await attempt()
            except NoAnswerError as error:
                if error.holds_all:
                    until = time.monotonic() + (error.retry_after or 0.0)
                    self._quiet_until = max(self._quiet_until, until)
                self.usage.failures[error.reason] += 1
                raise
            self.usage.answers += 1
            return answer


def _part(limit: float | None, share: int) -> float | None:
    return None if limit is None else limit / share
