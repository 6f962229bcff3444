"""JSON over HTTP: classifies failures, and keeps the key out of messages."""

import email.utils
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from vagen.clients.client import Client
from vagen.clients.errors import EndpointError, NoAnswerError, Reason

_LONGEST_WAIT = 600.0
"""Maximum accepted `Retry-After` in seconds."""
_MAX_DETAIL = 200
"""Maximum characters of an endpoint's message to pass on."""
_SPENT = (
    "insufficient_quota",
    "insufficient_credit",
    "insufficient_balance",
    "billing_",
    "exceeded your current quota",
    "credit balance is too low",
)
"""Error codes or messages for a valid key without credit."""
_STATUS = {
    "insufficient_quota": 402,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "overloaded_error": 503,
    "server_error": 500,
}
"""The correct status of an error by its code or type."""


@dataclass(frozen=True, slots=True)
class ConfigLocation:
    """Configuration keys of an endpoint, for messages."""

    base_url: str
    model: str
    section: str
    """Such as `judge.llm`, which has the key `api_key_env`."""
    api_key_env: str | None
    """Environment variable of the key; None for no key."""

    def read_secret(self) -> str | None:
        """The key.

        Raises:
            EndpointError: The variable is not set.
        """
        if self.api_key_env is None:
            return None
        secret = os.environ.get(self.api_key_env, "").strip()
        if not secret:
            raise EndpointError(
                f"`{self.section}.api_key_env`: the environment variable {self.api_key_env} is not "
                f"set; put the key of {self.base_url} there, or set this to null if it wants none"
            )
        return secret

    def failure(self, status: int, words: str, retry_after: str | None) -> Exception:
        """The error for a response with a status other than 200.

        Args:
            status: Status of the response.
            words: The endpoint's message, without the key.
            retry_after: The header `Retry-After`.
        """
        detail = f"{status} {words}"
        if status == 402 or (status in (400, 403, 429) and any(word in words for word in _SPENT)):
            return EndpointError(
                f"`{self.section}`: {self.base_url} has no credit left for this key ({detail}); "
                f"top it up, or name another key's variable in `{self.section}.api_key_env`"
            )
        if status in (401, 403):
            source = self.api_key_env or "no variable: it is null"
            return EndpointError(
                f"`{self.section}`: {self.base_url} refuses the key ({detail}); it is "
                f"read from {source} (`{self.section}.api_key_env`)"
            )
        if status in (404, 405):
            return EndpointError(
                f"`{self.section}`: {self.base_url} does not serve {self.model!r} "
                f"({detail}); name a model it has, and the API's base, which ends in /v1 as a rule"
            )
        wait = seconds_of(retry_after)
        if status == 429:
            return NoAnswerError(Reason.RATE_LIMITED, detail, wait, holds_all=True)
        if (status >= 500 and status != 501) or status in (408, 409, 425):
            return NoAnswerError(Reason.SERVER_ERROR, detail, wait, holds_all=status == 503)
        return NoAnswerError(Reason.REJECTED, detail)


@dataclass(slots=True)
class HttpEndpoint:
    """Posts JSON to one endpoint within its client's limits."""

    client: Client
    place: ConfigLocation
    headers: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = field(init=False, repr=False)
    _http: httpx.AsyncClient | None = None

    def __post_init__(self) -> None:
        self.secret = self.place.read_secret()

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The response with any status.

        Raises:
            NoAnswerError: There is no response.
        """
        try:
            return await self.client.send(lambda: self._connection().post(path, json=body))
        except httpx.TimeoutException:
            raise NoAnswerError(Reason.TIMEOUT, self.place.base_url) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            where = f"{self.place.base_url}, {type(error).__name__}"
            raise NoAnswerError(Reason.UNREACHABLE, where) from None

    async def probe(self) -> None:
        """Checks that the address responds in any way.

        Raises:
            NoAnswerError: It does not respond.
        """

        async def attempt() -> None:
            try:
                await self.client.send(lambda: self._connection().get("models"))
            except httpx.HTTPError as error:
                where = f"{self.place.base_url}, {type(error).__name__}"
                raise NoAnswerError(Reason.UNREACHABLE, where) from None

        await self.client.ask(attempt, tokens=0)

    def check(self, response: httpx.Response) -> None:
        """Raises an error for a failed response, or an error with a success status.

        Raises:
            NoAnswerError, EndpointError: Depends on the status, or the one in the error.
        """
        status, error = response.status_code, _error_in(response)
        if status == 200 and not error:
            return
        names = [str(error[key]) for key in ("code", "type") if error.get(key)]
        told = " ".join([*dict.fromkeys(names), str(error.get("message") or "")]).strip()
        words = short_words(told or response.text, self.secret)
        if status == 200:
            numbers = [int(name) for name in names if name.isdecimal() and 400 <= int(name) < 600]
            known = [_STATUS[name] for name in names if name in _STATUS]
            if not (numbers or known):
                raise NoAnswerError(Reason.INVALID, f"200 with an error: {words}")
            status = (numbers or known)[0]
        raise self.place.failure(status, words, response.headers.get("retry-after"))

    async def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _connection(self) -> httpx.AsyncClient:
        if self._http is None:
            key = {"Authorization": f"Bearer {self.secret}"} if self.secret else {}
            self._http = httpx.AsyncClient(
                base_url=f"{self.place.base_url}/",
                headers={**key, **self.headers},
                timeout=self.client.config.timeout,
                limits=httpx.Limits(max_connections=self.client.config.concurrency),
            )
        return self._http


def _error_in(response: httpx.Response) -> dict[str, Any]:
    """The error in a response; empty if there is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    if not isinstance(body, dict) or body.get("choices"):
        return {}
    found = body if body.get("object") == "error" else body.get("error")
    return found if isinstance(found, dict) else {"message": found} if found else {}


def short_words(text: str, secret: str | None) -> str:
    """An endpoint's error message on one line, without the key."""
    text = " ".join(text[: 4 * _MAX_DETAIL].split())
    if secret:
        text = text.replace(secret, "***")
    return text[:_MAX_DETAIL]


def seconds_of(retry_after: str | None) -> float | None:
    """Seconds of a `Retry-After` header with a number or a date."""
    if retry_after is None:
        return None
    seconds = None
    with suppress(ValueError):
        seconds = float(retry_after)
    if seconds is None:
        with suppress(ValueError):
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT)
