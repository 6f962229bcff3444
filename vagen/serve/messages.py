"""Requests of OpenAI's chat completions, and what this server makes of their messages."""

import base64
import binascii
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import AfterValidator, Field, PositiveInt, model_validator

from vagen.config.base import Section
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.service.wire import replace_surrogates

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 4096 * 4096
"""Most pixels of a picture."""
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.ASCII)
UNUSED = {"user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"}
UNUSED |= {"prompt_cache_key", "prompt_cache_retention"}
"""Fields that change no answer."""
ONLY: Mapping[str, tuple[Any, str]] = {
    "n": (1, "it gives one answer: send n=1, or several requests"),
    "tools": ([], "it calls no tools"),
    "functions": ([], "it calls no functions"),
    "tool_choice": ("none", "it calls no tools"),
    "function_call": ("none", "it calls no functions"),
    "frequency_penalty": (0, "it knows no penalties"),
    "presence_penalty": (0, "it knows no penalties"),
    "logit_bias": ({}, "it changes no logits"),
    "response_format": ({"type": "text"}, "it answers with text"),
    "modalities": (["text"], "it answers with text"),
    "top_logprobs": (0, "it gives the log-probability of the sampled tokens alone"),
}
"""Fields with the only value that this server can satisfy, and why."""

Text = Annotated[str, AfterValidator(replace_surrogates)]


class ImageUrl(Section):
    """A picture."""

    url: str
    """`data:image/png;base64,...`."""
    detail: Literal["auto", "low", "high"] = "auto"
    """Not used: the model's image processor decides."""


class TextPart(Section):
    """Text of a message."""

    type: Literal["text"]
    text: Text


class ImagePart(Section):
    """A picture of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(Section):
    """A message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        """Clients send answers back with all their fields."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None and value != []}


class StreamOptions(Section):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """Not used."""


class ChatRequest(Section):
    """A request for the next answer of a conversation."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    """Maximum tokens of the answer; default: what the context leaves."""
    max_tokens: PositiveInt | None = None
    """Older name of `max_completion_tokens`."""
    temperature: Annotated[float, Field(ge=0.0)] = 1.0
    """0 takes the most probable token."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    """Not in OpenAI's API; -1 for off."""
    seed: int | None = None
    """Equal requests with one seed have equal answers; default: random."""
    stop: str | tuple[str, ...] = ()
    """Texts before which the answer ends."""
    logprobs: bool = False
    """Whether to return the log-probability of every token of the answer."""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @model_validator(mode="before")
    @classmethod
    def _possible(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, (only, reason) in ONLY.items():
            if given.get(name) not in (None, only):
                raise ValueError(f"`{name}` of this server is {only!r}, or left out: {reason}")
        return {
            name: value
            for name, value in given.items()
            if value is not None and name not in ONLY and name not in UNUSED
        }

    @property
    def stops(self) -> list[str]:
        """Texts before which the answer ends, none of them empty."""
        return [text for text in ([self.stop] if isinstance(self.stop, str) else self.stop) if text]


class RequestError(ValueError):
    """A request that gets no answer; says what would be right."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that awaits an answer."""

    system_prompt: str | None
    observations: list[Observation]
    """The user's messages, one more than `answers`."""
    answers: list[str]


def read_chat(messages: Sequence[ChatMessage]) -> Chat:
    """Decodes messages.

    Raises:
        RequestError: They are not in order, or a picture cannot be decoded.
    """
    system_prompt, turns = None, [*messages]
    if turns[0].role in ("system", "developer"):
        system_prompt = _text(turns.pop(0))
    for i, message in enumerate(turns):
        if message.role != ("user", "assistant")[i % 2]:
            number = len(messages) - len(turns) + i
            raise RequestError(
                f"messages.{number} has the role {message.role}: after an optional first system "
                "message, user and assistant take turns, beginning with the user; put adjacent "
                "messages of one role into one"
            )
    if len(turns) % 2 == 0:
        raise RequestError("the last message must be the user's: the model answers it")
    return Chat(
        system_prompt,
        [_observation(message) for message in turns[::2]],
        [_text(message) for message in turns[1::2]],
    )


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    if len(texts) < len(message.content):
        raise RequestError(f"only messages of the user can have pictures, not of {message.role}")
    return "".join(texts)


def _observation(message: ChatMessage) -> Observation:
    parts = message.content
    if isinstance(parts, str):
        return {"text": _literal(parts), "images": ()}
    texts = [
        _literal(part.text) if isinstance(part, TextPart) else IMAGE_PLACEHOLDER for part in parts
    ]
    images = tuple(decode(part.image_url.url) for part in parts if isinstance(part, ImagePart))
    return {"text": "".join(texts), "images": images}


def _literal(text: str) -> str:
    """A text in which no placeholder of a picture stands."""
    return text.replace(IMAGE_PLACEHOLDER, f"{IMAGE_PLACEHOLDER[0]} {IMAGE_PLACEHOLDER[1:]}")


def decode(url: str) -> NDArray[np.uint8]:
    """The picture of a data URL, uint8 [height, width, 3].

    Raises:
        RequestError: It is another URL, too large, or no picture.
    """
    found = _DATA_URL.match(url)
    if found is None:
        raise RequestError(
            "a picture is given as a data URL, data:image/png;base64,...: nothing is downloaded"
        )
    try:
        content = base64.b64decode(url[found.end() :], validate=True)
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height <= MAX_PIXELS:
                return np.array(image.convert("RGB"))
            size = f"{image.width} x {image.height}"
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise RequestError(f"a picture cannot be decoded: send {', '.join(FORMATS)}") from None
    raise RequestError(f"a picture has {size} pixels: at most {MAX_PIXELS} are read")
