"""Requests answers in a given format from an OpenAI-compatible endpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx

from vagen.clients import Client, ConfigLocation, HttpEndpoint, NoAnswerError, Reason, Usage
from vagen.clients.chat import TokenUsage
from vagen.clients.limits import CircuitBreaker
from vagen.config.judge_options import LLMJudgeConfig
from vagen.envs.claims import Claim

ParsedT = TypeVar("ParsedT")

_CHARACTERS_PER_TOKEN = 3
"""A careful estimate, for the limit of tokens."""


@dataclass(frozen=True, slots=True)
class Question:
    """Content of one request."""

    system: str
    user: str
    schema_name: str
    schema: dict[str, Any]
    """JSON schema of the answer."""
    section: str = ""
    """For an extraction: `observation` or `prediction`."""
    statement: str = ""
    """For an extraction: the text."""
    kinds: tuple[type[Claim], ...] = ()
    """For an extraction: possible claims."""


class LLMBackend(Protocol):
    """A language model that answers questions."""

    @property
    def usage(self) -> Usage:
        """Usage so far."""
        ...

    @property
    def name(self) -> str:
        """Name of the model; other models may answer differently."""
        ...

    @property
    def breaks(self) -> int:
        """How often requests were suspended."""
        ...

    async def ask(self, question: Question, read: Callable[[str], ParsedT]) -> ParsedT:
        """The answer as parsed by `read`; raises `NoAnswerError` if there is none."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


class ChatClient:
    """Client of one endpoint with its limits; belongs to the first event loop that uses it."""

    def __init__(self, config: LLMJudgeConfig, *, share: int = 1, key: str = "judge.llm") -> None:
        """Prepares a client without sending anything.

        Args:
            config: Endpoint and limits.
            share: Number of processes that share the limits equally.
            key: Dotted key of the section, for messages.

        Raises:
            EndpointError: The environment variable of the key is not set.
        """
        self.config = config
        self._client = Client(config, share=share)
        place = ConfigLocation(str(config.base_url), str(config.model), key, config.api_key_env)
        self._endpoint = HttpEndpoint(self._client, place)
        self._json_schema = config.json_schema

    @property
    def usage(self) -> Usage:
        """Usage so far."""
        return self._client.usage

    @property
    def breaker(self) -> CircuitBreaker:
        """Stops requests while the endpoint fails."""
        return self._client.breaker

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.config.model or ""

    @property
    def breaks(self) -> int:
        """How often the breaker opened."""
        return self.breaker.openings

    async def ask(self, question: Question, read: Callable[[str], ParsedT]) -> ParsedT:
        """Asks until there is an answer.

        Args:
            question: What to ask.
            read: Parses the model's text; raises `NoAnswerError` if it cannot.

        Raises:
            NoAnswerError: There is no answer; the message has the reason.
            EndpointError: The endpoint rejects the key, or does not know the model.
        """

        async def attempt() -> ParsedT:
            return read(await self._send(question))

        size = len(question.system) + len(question.user)
        tokens = size / _CHARACTERS_PER_TOKEN + self.config.max_tokens
        return await self._client.ask(attempt, tokens=tokens)

    async def close(self) -> None:
        """Closes the connections."""
        await self._endpoint.close()

    async def _send(self, question: Question) -> str:
        """The text of one answer; retries without JSON schema if the server rejects it."""
        asked_for_schema = self._json_schema
        response = await self._post(question, json_schema=asked_for_schema)
        if asked_for_schema and response.status_code in (400, 422, 501):
            response = await self._post(question, json_schema=False)
            self._json_schema = self._json_schema and response.status_code != 200
        self._endpoint.check(response)
        return self._content(response)

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
        return await self._endpoint.post("chat/completions", body)

    def _content(self, response: httpx.Response) -> str:
        try:
            body = response.json()
            tokens = TokenUsage.of_usage(body.get("usage"))
            self.usage.prompt_tokens += tokens.input
            self.usage.completion_tokens += tokens.output
            choice = body["choices"][0]
            content, ending = choice["message"]["content"], choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NoAnswerError(Reason.INVALID, "no chat completion") from None
        if ending == "length":
            raise NoAnswerError(Reason.CUT)
        if not isinstance(content, str):
            raise NoAnswerError(Reason.INVALID, "no text")
        return content
