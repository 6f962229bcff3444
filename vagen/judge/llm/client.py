"""Asking a language model behind an OpenAI-compatible endpoint for an answer of a given form."""

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
"""A careful guess, for the limit of tokens."""


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


class LLMBackend(Protocol):
    """Whoever is asked."""

    @property
    def usage(self) -> Usage:
        """What it has spent."""
        ...

    @property
    def name(self) -> str:
        """Who answers: of another name, answers may be others."""
        ...

    @property
    def breaks(self) -> int:
        """How often asking was given up for a while."""
        ...

    async def ask(self, question: Question, read: Callable[[str], ParsedT]) -> ParsedT:
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
        self._client = Client(config, share=share)
        place = ConfigLocation(str(config.base_url), str(config.model), key, config.api_key_env)
        self._endpoint = HttpEndpoint(self._client, place)
        self._json_schema = config.json_schema

    @property
    def usage(self) -> Usage:
        """What it has spent."""
        return self._client.usage

    @property
    def breaker(self) -> CircuitBreaker:
        """Stops requests while the endpoint fails."""
        return self._client.breaker

    @property
    def name(self) -> str:
        """The model's."""
        return self.config.model or ""

    @property
    def breaks(self) -> int:
        """How often the breaker opened."""
        return self.breaker.openings

    async def ask(self, question: Question, read: Callable[[str], ParsedT]) -> ParsedT:
        """Asks until there is an answer.

        Args:
            question: What to ask.
            read: Makes the answer of the model's text; raises `NoAnswerError` if it cannot.

        Raises:
            NoAnswerError: There is none, with the reason.
            EndpointError: The endpoint refuses the key, or does not know the model.
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
        """One answer's text; a server that refuses the JSON schema is asked without."""
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
