"""A conversation with a hosted model as ids that can be converted back to messages.

A hosted model has no local tokenizer. Its transcript has an id per character and per mark (header
of a message, its end, an image), so that the same runner, contexts and turn limits work, and the
result of several turns can be converted to messages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.clients.chat import Body
from vagen.clients.vendors import Hosted
from vagen.config.evaluation_options import EndpointConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs.images import png_bytes, png_url
from vagen.rollout.types import Sampling

_ROLES = ("system", "user", "assistant")
_END, _IMAGE = "<|end|>", "<|image|>"
_MARKS = [*(f"<|{role}|>" for role in _ROLES), _END, _IMAGE]
_FIRST = 0x110000
"""First id that is not a character."""
_IDS = {mark: _FIRST + i for i, mark in enumerate(_MARKS)}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _MARKS)) + ")")
LIMITLESS = 1 << 40
"""Character limit of a transcript; hosted models have their own limits in tokens."""


class _Tokenizer:
    """The tokenizer interface that `ChatRenderer` and the viewer use."""

    all_special_tokens = _MARKS

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of rendered text."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            ids += [_IDS[part]] if part in _IDS else map(ord, part)
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Inverse of `encode`."""
        marks = ["" if skip_special_tokens else mark for mark in _MARKS]
        return "".join(chr(i) if i < _FIRST else marks[i - _FIRST] for i in ids)

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool,
    ) -> str:
        """Concatenates messages with marks."""
        parts = []
        for message in messages:
            content = message["content"]
            if not isinstance(content, str):
                content = "".join(part.get("text", _IMAGE) for part in content)
            parts.append(f"<|{message['role']}|>{content}{_END}")
        return "".join(parts) + "<|assistant|>" * add_generation_prompt


@dataclass(slots=True)
class Transcript:
    """Replaces a model's processor (`ChatProcessor`)."""

    tokenizer: Any = field(default_factory=_Tokenizer)
    placeholder: str = _IMAGE
    has_vision: bool = True
    eos_id: int = _IDS[_END]

    def image_text(self, size: tuple[int, int]) -> str:
        """One mark for any size."""
        return _IMAGE

    def fitted(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The frame itself, since an endpoint scales it."""
        return frame

    def ids(self, answer: str) -> list[int]:
        """Ids of an answer as plain text."""
        return [*map(ord, answer)]

    def messages(self, ids: Sequence[int], images: Sequence[Any]) -> list[dict[str, Any]]:
        """Converts a prompt that ends with the header of the answer to messages.

        Returns:
            `role` and `content`: text, or parts of type `text` and `image`, whose `image` is
            the next of `images`.
        """
        frames, found = iter(images), list[dict[str, Any]]()
        parts: list[dict[str, Any]] = []
        for token in ids:
            if token < _FIRST:
                if not parts or parts[-1]["type"] != "text":
                    parts.append({"type": "text", "text": []})
                parts[-1]["text"].append(chr(token))
            elif token == _IDS[_IMAGE]:
                parts.append({"type": "image", "image": next(frames)})
            elif token == self.eos_id:
                found[-1]["content"] = _content(parts)
            else:
                parts = []
                found.append({"role": _ROLES[token - _FIRST]})
        return found[:-1]


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    whole = [
        {"type": "text", "text": "".join(part["text"])} if part["type"] == "text" else part
        for part in parts
    ]
    if all(part["type"] == "text" for part in whole):
        return "".join(part["text"] for part in whole)
    return whole


def without_token_limits(config: ExperimentConfig) -> ExperimentConfig:
    """The experiment for transcripts, without token limits other than that of each answer."""
    limits = {"max_prompt_length": LIMITLESS, "max_trajectory_length": LIMITLESS}
    return config.model_copy(update={"data": config.data.model_copy(update=limits)})


def request_body(
    options: EndpointConfig, hosted: Hosted, messages: Sequence[dict[str, Any]], sampling: Sampling
) -> Body:
    """Creates the request for the next answer."""
    temperature = sampling.temperature if options.temperature is None else options.temperature
    body: Body = {
        "model": hosted.name,
        "messages": [_sent(message, options) for message in messages],
        "temperature": temperature,
        hosted.limit_name: options.max_tokens or sampling.max_new_tokens,
        "seed": sampling.seed % 2**31,
    }
    if sampling.top_p < 1.0:
        body["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        body["top_k"] = sampling.top_k
    kept = {name: value for name, value in body.items() if name not in options.omit}
    return kept | options.extra_body


def _sent(message: dict[str, Any], options: EndpointConfig) -> dict[str, Any]:
    content = message["content"]
    if not isinstance(content, str):
        content = [
            part if part["type"] == "text" else _image_part(part["image"], options)
            for part in content
        ]
    return {"role": message["role"], "content": content}


def _image_part(image: Image.Image, options: EndpointConfig) -> dict[str, Any]:
    if options.image_scale != 1.0:
        size = [max(1, round(side * options.image_scale)) for side in image.size]
        image = image.resize((size[0], size[1]), Image.Resampling.NEAREST)
    url = {"url": png_url(png_bytes(np.asarray(image)))}
    if options.detail is not None:
        url["detail"] = options.detail
    return {"type": "image_url", "image_url": url}
