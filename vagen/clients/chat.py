"""Chat completions: sends a conversation, returns a reply and its tokens, with any
OpenAI-compatible API.

Every reply of a model counts as its own, even if it is empty, a refusal or a tool call. A response
that is not a chat completion is the endpoint's failure and is retried.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from vagen.clients.client import Client
from vagen.clients.errors import NoAnswerError, Reason
from vagen.clients.http import HttpEndpoint, short_words

CHARACTERS_PER_TOKEN = 3
"""A careful estimate, for token limits."""
TOKENS_PER_IMAGE = 1500
"""Estimated tokens of an image, whose data URL does not show its size."""

Body = dict[str, Any]
"""A request: `model`, `messages` and options of OpenAI's chat completions."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request, as reported by the endpoint.

    Example:
        `TokenUsage(input=9, output=6) + TokenUsage(input=1)` is `TokenUsage(input=10, output=6)`.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    """Tokens of `input` that were read from the endpoint's cache."""
    image: int = 0
    """Tokens of `input` that are images."""
    reasoning: int = 0
    """Hidden tokens of `output`."""

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return TokenUsage(*(mine + theirs for mine, theirs in pairs))

    @property
    def total(self) -> int:
        """Sum of input and output."""
        return self.input + self.output

    @classmethod
    def of_usage(cls, usage: Any) -> "TokenUsage":
        """Parses a response's `usage`; missing or invalid counts are 0."""
        told = _mapping(usage)

        def part(section: str, name: str) -> int:
            return _count(_mapping(told.get(section)).get(name))

        return cls(
            input=_count(told.get("prompt_tokens")),
            output=_count(told.get("completion_tokens")),
            cached=part("prompt_tokens_details", "cached_tokens"),
            image=part("prompt_tokens_details", "image_tokens"),
            reasoning=part("completion_tokens_details", "reasoning_tokens"),
        )


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _count(found: Any) -> int:
    try:
        return max(int(float(found)), 0)
    except (TypeError, ValueError, OverflowError):
        return 0


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A model's reply."""

    text: str
    """The text; empty if there is none; for a refusal its text."""
    finish: str
    """`stop`, `length`, `content_filter`, `tool_calls`, ... as reported by the endpoint."""
    tokens: TokenUsage = TokenUsage()
    form: str = "text"
    """`text`, `empty`, `refusal` or `tool_call`."""
    reasoning: str = ""
    """Reasoning, if the endpoint separates it; not part of the text."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "ChatReply":
        """Inverse of `to_dict`."""
        fields: dict[str, Any] = {**stored, "tokens": TokenUsage(**stored["tokens"])}
        return cls(**fields)


class Chat(ABC):
    """A model that continues conversations."""

    client: Client

    @abstractmethod
    async def complete(self, body: Body) -> ChatReply:
        """The model's reply to one request, without retries.

        Raises:
            NoAnswerError: There is no reply, and the model is not the cause.
            EndpointError: The endpoint rejects the key, or does not know the model.
        """

    async def reply(self, body: Body) -> ChatReply:
        """The model's reply, with retries; raises as `complete`."""
        return await self.client.ask(lambda: self.complete(body), tokens=tokens_of(body))

    @abstractmethod
    async def probe(self) -> None:
        """Raises NoAnswerError if its address does not respond."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connections."""


@dataclass(slots=True)
class OpenAIChat(Chat):
    """Client of any server with OpenAI's chat completions."""

    client: Client
    endpoint: HttpEndpoint

    async def complete(self, body: Body) -> ChatReply:
        """See `Chat`."""
        response = await self.endpoint.post("chat/completions", body)
        self.endpoint.check(response)
        secret = self.endpoint.secret
        try:
            completion = response.json()
        except ValueError:
            words = short_words(response.text, secret)
            raise NoAnswerError(Reason.INVALID, f"no JSON: {words}") from None
        return read_completion(completion, secret)

    async def probe(self) -> None:
        """See `Chat`."""
        await self.endpoint.probe()

    async def close(self) -> None:
        """Closes the connections."""
        await self.endpoint.close()


def read_completion(completion: Any, secret: str | None = None) -> ChatReply:
    """The reply in a chat completion.

    Args:
        completion: The response.
        secret: The key, which is removed from messages.

    Raises:
        NoAnswerError: It is not a chat completion.
    """
    try:
        choice = completion["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content, refusal = message.get("content"), message.get("refusal")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        tokens = TokenUsage.of_usage(completion.get("usage"))
        calls = message.get("tool_calls") or message.get("function_call")
    except (LookupError, TypeError, AttributeError, ValueError):
        words = short_words(json.dumps(completion, default=str), secret)
        raise NoAnswerError(Reason.INVALID, f"no chat completion: {words}") from None
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    if not isinstance(content, str | None):
        raise NoAnswerError(Reason.INVALID, "no text")
    form = "text" if content else "refusal" if refusal else "tool_call" if calls else "empty"
    text = content or (refusal if isinstance(refusal, str) else "")
    return ChatReply(
        text=text.encode("utf-8", "replace").decode(),
        finish=str(finish or "stop"),
        tokens=tokens,
        form=form,
        reasoning=reasoning if isinstance(reasoning, str) else json.dumps(reasoning),
    )


def tokens_of(body: Body) -> float:
    """A careful estimate of a request's maximum tokens."""
    characters = images = 0
    for message in body["messages"]:
        content: str | Sequence[Mapping[str, Any]] = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        characters += sum(len(part.get("text", "")) for part in parts)
        images += sum(part.get("type") == "image_url" for part in parts)
    answer = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    return characters / CHARACTERS_PER_TOKEN + TOKENS_PER_IMAGE * images + answer
