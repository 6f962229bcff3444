"""Requests answers in a given format from a hosted language model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from vagen.clients import Client, NoAnswerError, Reason, Usage
from vagen.clients.chat import ChatReply, tokens_of
from vagen.clients.vendors import hosted_at
from vagen.config.judge_options import USUAL_KEY, LLMJudgeConfig
from vagen.envs.claims import Claim

ParsedT = TypeVar("ParsedT")


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
        self.client = Client(config, share=share)
        hosted = hosted_at(str(config.model), config.base_url)
        usual = config.base_url is None and config.api_key_env == USUAL_KEY
        self._chat = hosted.chat(
            self.client, key, api_key_env=None if usual else config.api_key_env
        )
        self._model, self._limit = hosted.name, hosted.limit_name
        self._forms: tuple[str, ...] = _FORMS if config.json_schema else _FORMS[-1:]

    @property
    def usage(self) -> Usage:
        """Usage so far."""
        return self.client.usage

    @property
    def name(self) -> str:
        """Name of the model; other models may answer differently."""
        return self.config.model or ""

    @property
    def breaks(self) -> int:
        """How often requests were suspended, since the breaker opened."""
        return self.client.breaker.openings

    async def ask(self, question: Question, read: Callable[[str], ParsedT]) -> ParsedT:
        """Asks until there is an answer.

        Args:
            question: What to ask.
            read: Parses the model's text; raises `NoAnswerError` if it cannot.

        Raises:
            NoAnswerError: There is no answer; the message has the reason.
            EndpointError: The endpoint rejects the key, or does not know the model.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": question.system},
                {"role": "user", "content": question.user},
            ],
            "temperature": self.config.temperature,
            self._limit: self.config.max_tokens,
        }

        async def attempt() -> ParsedT:
            reply = await self._send(body, question)
            self.usage.prompt_tokens += reply.tokens.input
            self.usage.completion_tokens += reply.tokens.output
            if reply.finish == "length":
                raise NoAnswerError(Reason.CUT)
            return read(reply.text)

        return await self.client.ask(attempt, tokens=tokens_of(body))

    async def close(self) -> None:
        """Closes the connections."""
        await self._chat.close()

    async def _send(self, body: dict[str, Any], question: Question) -> ChatReply:
        """One reply, constrained by the first of `_FORMS` that the server takes."""
        forms = self._forms
        for tried, form in enumerate(forms):
            try:
                reply = await self._chat.complete(body | _form_of(form, question))
            except NoAnswerError as error:
                if form == forms[-1] or not _refuses_form(error):
                    raise
            else:
                self._forms = forms[tried:]
                return reply
        raise AssertionError("the last form returns or raises")


_FORMS = ("json_schema", "json_object", "text")
"""Ways to ask for JSON. llama-cpp-python's server takes a schema with `json_object` only."""


def _form_of(form: str, question: Question) -> dict[str, Any]:
    if form == "text":
        return {}
    schema: dict[str, Any] = {"schema": question.schema}
    if form == "json_schema":
        schema = {form: {"name": question.schema_name, "strict": True, **schema}}
    return {"response_format": {"type": form, **schema}}


def _refuses_form(error: NoAnswerError) -> bool:
    """Whether another form may be answered; some servers fail with 500 on what they do not know."""
    return error.reason is Reason.REJECTED or "response_format" in str(error)
