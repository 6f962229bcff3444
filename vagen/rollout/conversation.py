"""A conversation as token ids, built turn by turn without tokenising anything twice.

Sampled ids are kept verbatim. Observations are rendered with the model's chat template as the
difference of two renderings, so that the concatenated parts equal the whole conversation rendered
at once (`ChatRenderer.check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.rollout.types import TokenRow

ANSWER = "Yes"
"""Placeholder of a response when only the following text is needed."""


FrameSequence = Sequence[NDArray[np.uint8]]


class RenderError(ValueError):
    """A conversation that cannot be rendered for this model."""


class ChatProcessor(Protocol):
    """The interface of `vagen.models.processor.Processor` that the renderer needs."""

    tokenizer: Any

    @property
    def placeholder(self) -> str: ...  # noqa: D102
    @property
    def has_vision(self) -> bool: ...  # noqa: D102
    @property
    def eos_id(self) -> int: ...  # noqa: D102
    def image_text(self, size: tuple[int, int]) -> str: ...  # noqa: D102
    def fitted(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Rendered:
    """Token ids of a message and its frames, uint8 [height, width, 3]."""

    ids: list[int]
    frames: FrameSequence

    @property
    def images(self) -> list[Image.Image]:
        """The frames as the image processor reads them, copied."""
        return [Image.fromarray(frame) for frame in self.frames]


@dataclass(slots=True)
class Conversation:
    """Token-exact record of one growing row."""

    trajectory_id: str
    row_index: int = 0
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[Image.Image] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def extend(
        self, ids: Sequence[int], turn: int, logprobs: Sequence[float] | None = None
    ) -> None:
        """Appends ids of one turn; `logprobs` marks them as sampled."""
        self.ids += ids
        self.turns += [turn] * len(ids)
        self.mask += [logprobs is not None] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs

    def row(self) -> TokenRow:
        """The training row."""
        return TokenRow(
            trajectory_id=self.trajectory_id,
            row_index=self.row_index,
            input_ids=np.asarray(self.ids, dtype=np.int32),
            loss_mask=np.asarray(self.mask, dtype=np.bool_),
            turn_index=np.asarray(self.turns, dtype=np.int16),
            rollout_logprobs=np.asarray(self.logprobs, dtype=np.float32),
            images=list(self.digests),
        )


class ChatRenderer:
    """Renders messages of the environment as token ids of one model."""

    def __init__(self, processor: ChatProcessor):
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self._eos = self.tokenizer.decode([processor.eos_id])
        self._stubs = [{"role": "user", "content": "."}, {"role": "assistant", "content": ANSWER}]
        self._in_parts = False
        self._in_parts = ANSWER not in self._template(self._stubs, generate=False)
        """Whether the template reads the text of lists of parts alone, not of strings."""
        opening, closed, _ = self._template(
            [*self._stubs, {"role": "user", "content": "."}], generate=False
        ).partition(f"{ANSWER}{self._eos}")
        header = self._template(self._stubs[:1], generate=True)
        lead = opening.removeprefix(header) if opening.startswith(header) else ""
        self._answer = lead + ANSWER
        """The answer as the template writes it after its header."""
        if not closed:
            raise RenderError(
                f"the chat template does not end an assistant's turn with {self._eos!r}: set the "
                f"tokenizer's eos_token to the token that does{self._reasoning()}"
            )
        specials = {*map(str, self.tokenizer.all_special_tokens), processor.placeholder}
        self._specials = sorted(token for token in specials if len(token) > 1)

    def initial(self, system_prompt: str, observation: Observation) -> Rendered:
        """System prompt, first observation and the header of the first answer."""
        frames = observation["images"]
        messages = [{"role": "system", "content": self._escape(system_prompt)}]
        text = self._template([*messages, self._user(observation)], generate=True)
        return Rendered(self._tokenize(text, frames), frames)

    def following(self, observation: Observation) -> Rendered:
        """Text between the end of a response and the start of the next."""
        frames = observation["images"]
        whole = self._template([*self._stubs, self._user(observation)], generate=True)
        _, ended, rest = whole.partition(f"{ANSWER}{self._eos}")
        if not ended:
            raise RenderError(
                "the chat template renders earlier turns differently after later ones"
                f"{self._reasoning()}"
            )
        return Rendered(self._tokenize(rest, frames), frames)

    def fitted(self, observation: Observation) -> Observation:
        """The observation with frames scaled down to the model's maximum size."""
        frames = tuple(self.processor.fitted(frame) for frame in observation["images"])
        return {"text": observation["text"], "images": frames}

    def check(self, system_prompt: str, observations: Sequence[Observation]) -> None:
        """Checks that the concatenated parts equal the whole conversation rendered at once.

        Raises:
            RenderError: They differ: training contexts would not be those of generation.
        """
        parts = list(self.initial(system_prompt, observations[0]).ids)
        messages = [{"role": "system", "content": self._escape(system_prompt)}]
        frames = [frame for observation in observations for frame in observation["images"]]
        for i, observation in enumerate(observations):
            messages.append(self._user(observation))
            if i:
                parts += self.tokenizer.encode(self._answer, add_special_tokens=False)
                parts.append(self.processor.eos_id)
                parts += self.following(observation).ids
            if i + 1 < len(observations):
                messages.append({"role": "assistant", "content": ANSWER})
        whole = self._tokenize(self._template(messages, generate=True), frames)
        if parts != whole:
            raise RenderError(
                "the conversation rendered turn by turn differs from the whole rendered at once: "
                f"{self.tokenizer.decode(parts)!r} is not {self.tokenizer.decode(whole)!r}"
                f"{self._reasoning()}"
            )

    def _user(self, observation: Observation) -> dict[str, Any]:
        frames = observation["images"]
        pieces = observation["text"].split(IMAGE_PLACEHOLDER)
        if len(pieces) - 1 != len(frames):
            raise RenderError(
                f"the observation has {len(frames)} images and {len(pieces) - 1} placeholders "
                f"{IMAGE_PLACEHOLDER!r}"
            )
        if not frames:
            return {"role": "user", "content": self._escape(observation["text"])}
        if not self.processor.has_vision:
            raise RenderError("this model reads no images: set render_mode=text")
        content: list[dict[str, str]] = []
        for i, piece in enumerate(pieces):
            if i:
                content.append({"type": "image"})
            if piece:
                content.append({"type": "text", "text": self._escape(piece)})
        return {"role": "user", "content": content}

    def _reasoning(self) -> str:
        """Template arguments that stop a template from moving reasoning; empty if it does not."""
        if "think>" not in str(getattr(self.tokenizer, "chat_template", "")):
            return ""
        return (
            ". It is the template of a reasoning model, which begins answers with <think> or takes "
            "reasoning out of earlier ones: take the model's instruct version, or a chat_template "
            "that leaves answers as they are"
        )

    def _escape(self, text: str) -> str:
        """Breaks up special tokens of the model in plain text."""
        for token in self._specials:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _template(self, messages: list[dict[str, Any]], *, generate: bool) -> str:
        if self._in_parts:
            messages = [
                {**m, "content": [{"type": "text", "text": m["content"]}]}
                if isinstance(m["content"], str)
                else m
                for m in messages
            ]
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generate
        )

    def _tokenize(self, text: str, frames: FrameSequence) -> list[int]:
        """Ids of rendered text, with each placeholder replaced by what stands for its image."""
        if frames:
            pieces = text.split(self.processor.placeholder)
            if len(pieces) - 1 != len(frames):
                raise RenderError(
                    f"the chat template leaves images out or writes more: {len(pieces) - 1} "
                    f"{self.processor.placeholder} for {len(frames)} images"
                )
            shown = [self.processor.image_text(frame.shape[1::-1]) for frame in frames]
            text = "".join(part for both in zip(pieces, [*shown, ""], strict=True) for part in both)
        return self.tokenizer.encode(text, add_special_tokens=False)
