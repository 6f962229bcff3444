"""Retries requests to an endpoint within limits.

Transient failures are retried with growing, jittered pauses; a `Retry-After` of the endpoint takes
precedence and pauses all requests. Rate limits and the deadline always hold.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from vagen.clients.errors import RETRIED, NoAnswerError, Reason
from vagen.clients.limits import CircuitBreaker, RateLimit
from vagen.config.client_options import ClientConfig

ParsedT = TypeVar("ParsedT")
ResponseT = TypeVar("ResponseT")

_FAILURES = 8
"""Consecutive failures after which requests pause."""
_COOLDOWN = 10
"""Length of that pause, in `backoff`s."""
_LONGEST_PAUSE = 60
"""Longest pause between two attempts, in `backoff`s."""
DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
"""Deadline of the current request, on the event loop's clock."""


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
