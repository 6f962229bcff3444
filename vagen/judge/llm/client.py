"""Asking a language model behind an OpenAI-compatible endpoint, whatever the endpoint does.

A request that fails in a way that may pass is repeated with growing, jittered pauses; what the
endpoint asks for by `Retry-After` goes before them and holds all requests. Nothing exceeds the
limits set, nothing outlives the batch's deadline. The key is read from the environment when the
client is made and stands nowhere else but in the requests.
"""

import asyncio
import email.utils
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import httpx

from vagen.config.judge_options import LLMJudgeConfig
from vagen.envs.claims import Claim
from vagen.judge.llm.errors import RETRIED, EndpointError, NoAnswerError, Reason
from vagen.judge.llm.limits import CircuitBreaker, RateLimit

Answer = TypeVar("Answer")

DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)
"""When the statements being judged must have their verdicts, on the event loop's clock."""

_CHARACTERS_PER_TOKEN = 3
"""A careful guess, for the limit of tokens."""
_LONGEST_WAIT = 600.0
"""Seconds that an endpoint can make us wait by `Retry-After`."""
_MOST_DETAIL = 200
"""Characters of an endpoint's own words that are passed on."""


@dataclass(slots=True)
class Usage:
    """What a client has spent."""

    requests: int = 0
    """Requests sent, failed ones included."""
    answers: int = 0
    """Requests that gave an answer of the right form."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Requests that gave none, by reason."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked in one request."""

    system: str
    user: str
    schema_name: str
    schema: dict[str, Any]
    """JSON schema of the answer."""
    section: str = ""
    """Of an extraction: `observation` or `prediction`."""
    statement: str = ""
    """Of an extraction: the text."""
    kinds: tuple[type[Claim], ...] = ()
    """Of an extraction: the claims that there are."""


class Client(Protocol):
    """Whoever is asked."""

    usage: Usage

    @property
    def name(self) -> str:
        """Who answers: of another name, answers may be others."""
        ...

    @property
    def breaks(self) -> int:
        """How often asking was given up for a while."""
        ...

    async def ask(self, question: Question, read: Callable[[str], Answer]) -> Answer:
        """The answer that `read` makes of the text; raises `NoAnswerError` where there is none."""
        ...

    async def close(self) -> None:
        """Ends it."""
        ...


class ChatClient:
    """One endpoint with its limits. Belongs to the event loop that first asks."""

    def __init__(self, config: LLMJudgeConfig, *, share: int = 1, key: str = "judge.llm") -> None:
        """Prepares a client; nothing is sent yet.

        Args:
            config: Endpoint and limits.
            share: Processes that share the limits; this one takes its part of them.
            key: Where the section stands, for messages.

        Raises:
            EndpointError: The environment variable of the key is not set.
        """
        self.config = config
        self.usage = Usage()
        self._key = key
        self._secret = _read_secret(config, key)
        self._rate = RateLimit(_part(config.requests_per_second, share))
        per_minute = _part(config.tokens_per_minute, share)
        self._tokens = RateLimit(per_minute / 60 if per_minute else None)
        self._slots = asyncio.Semaphore(-(-config.concurrency // share))
        self.breaker = CircuitBreaker(
            failures=config.breaker_failures, cooldown=config.breaker_cooldown
        )
        self._json_schema = config.json_schema
        self._quiet_until = 0.0
        self._http: httpx.AsyncClient | None = None

    @property
    def name(self) -> str:
        """The model's."""
        return self.config.model or ""

    @property
    def breaks(self) -> int:
        """How often the breaker opened."""
        return self.breaker.openings

    async def ask(self, question: Question, read: Callable[[str], Answer]) -> Answer:
        """Asks until there is an answer.

        Args:
            question: What to ask.
            read: Makes the answer of the model's text; raises `NoAnswerError` if it cannot.

        Raises:
            NoAnswerError: There is none, with the reason.
            EndpointError: The endpoint refuses the key, or does not know the model.
        """
        deadline = DEADLINE.get()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._ask(question, read, deadline)
        except TimeoutError:
            reason = Reason.BREAKER if self.breaker.is_open else Reason.DEADLINE
            raise NoAnswerError(reason) from None

    async def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _ask(
        self, question: Question, read: Callable[[str], Answer], deadline: float | None
    ) -> Answer:
        for attempt in itertools.count():
            try:
                return await self._attempt(question, read, deadline)
            except NoAnswerError as error:
                if error.reason not in RETRIED or attempt == self.config.retries:
                    raise
                pause = min(self.config.backoff * 2**attempt, self.config.max_backoff)
                await asyncio.sleep(max(pause * random.uniform(0.5, 1.5), error.retry_after or 0.0))
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self, question: Question, read: Callable[[str], Answer], deadline: float | None
    ) -> Answer:
        if deadline is not None:
            left = deadline - asyncio.get_running_loop().time()
            if self.breaker.seconds_left() > left:
                raise NoAnswerError(Reason.BREAKER)
        async with self._slots, self.breaker.request():
            size = len(question.system) + len(question.user)
            await self._tokens.take(size / _CHARACTERS_PER_TOKEN + self.config.max_tokens)
            while (quiet := self._quiet_until - time.monotonic()) > 0:
                await asyncio.sleep(quiet)
            try:
                answer = read(await self._send(question))
            except NoAnswerError as error:
                self.usage.failures[error.reason] += 1
                raise
            self.usage.answers += 1
            return answer

    async def _send(self, question: Question) -> str:
        """One answer's text; a server that refuses the JSON schema is asked without."""
        asked_for_schema = self._json_schema
        response = await self._post(question, json_schema=asked_for_schema)
        if asked_for_schema and response.status_code in (400, 422, 501):
            response = await self._post(question, json_schema=False)
            self._json_schema = self._json_schema and response.status_code != 200
        return self._read(response)

    async def _post(self, question: Question, *, json_schema: bool) -> httpx.Response:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [
                {"role": "system", "content": question.system},
                {"role": "user", "content": question.user},
            ],
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
        }
        if json_schema:
            schema = {"name": question.schema_name, "strict": True, "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        await self._rate.take()
        self.usage.requests += 1
        try:
            async with asyncio.timeout(self.config.timeout):
                return await self._connection().post("chat/completions", json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise NoAnswerError(Reason.TIMEOUT) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise NoAnswerError(Reason.UNREACHABLE, type(error).__name__) from None

    def _read(self, response: httpx.Response) -> str:
        """The text of a response.

        Raises:
            NoAnswerError, EndpointError: There is none.
        """
        status = response.status_code
        if status == 200:
            return self._content(response)
        detail = f"{status} {self._words(response)}"
        if status in (401, 403):
            source = self.config.api_key_env or "no variable: it is null"
            raise EndpointError(
                f"`{self._key}.base_url`: {self.config.base_url} refuses the key ({detail}); it is "
                f"read from {source} (`{self._key}.api_key_env`)"
            )
        if status in (404, 405):
            raise EndpointError(
                f"`{self._key}.model`: {self.config.base_url} does not serve {self.config.model!r} "
                f"({detail}); name a model it has, and the API's base, which ends in /v1 as a rule"
            )
        retry_after = _retry_after(response.headers.get("retry-after"))
        if status in (429, 503) and retry_after is not None:
            self._quiet_until = max(self._quiet_until, time.monotonic() + retry_after)
        if status == 429:
            raise NoAnswerError(Reason.RATE_LIMITED, detail, retry_after)
        if status >= 500 or status in (408, 409, 425):
            raise NoAnswerError(Reason.SERVER_ERROR, detail, retry_after)
        raise NoAnswerError(Reason.REJECTED, detail)

    def _content(self, response: httpx.Response) -> str:
        try:
            body = response.json()
            usage = body.get("usage") or {}
            self.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
            self.usage.completion_tokens += int(usage.get("completion_tokens") or 0)
            choice = body["choices"][0]
            content, ending = choice["message"]["content"], choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NoAnswerError(Reason.INVALID, "no chat completion") from None
        if ending == "length":
            raise NoAnswerError(Reason.CUT)
        if not isinstance(content, str):
            raise NoAnswerError(Reason.INVALID, "no text")
        return content

    def _words(self, response: httpx.Response) -> str:
        """What an endpoint says of its failure, on one line, without the key."""
        text = " ".join(response.text[: 4 * _MOST_DETAIL].split())
        if self._secret:
            text = text.replace(self._secret, "***")
        return text[:_MOST_DETAIL]

    def _connection(self) -> httpx.AsyncClient:
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
            self._http = httpx.AsyncClient(
                base_url=f"{self.config.base_url}/",
                headers=headers,
                timeout=self.config.timeout,
                limits=httpx.Limits(max_connections=self.config.concurrency),
            )
        return self._http


def _part(limit: float | None, share: int) -> float | None:
    return None if limit is None else limit / share


def _read_secret(config: LLMJudgeConfig, key: str) -> str | None:
    if config.api_key_env is None:
        return None
    secret = os.environ.get(config.api_key_env, "").strip()
    if not secret:
        raise EndpointError(
            f"`{key}.api_key_env`: the environment variable {config.api_key_env} is not set; put "
            f"the key of {config.base_url} there, or set this to null if it wants none"
        )
    return secret


def _retry_after(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header, which is a number or a date."""
    if value is None:
        return None
    seconds = None
    with suppress(ValueError):
        seconds = float(value)
    if seconds is None:
        with suppress(ValueError):
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT)
