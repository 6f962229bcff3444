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
from vagen.rollout.thoughts import ANSWER, END, SPACES, THINK, Thoughts, thinks
from vagen.rollout.types import TokenRow

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
        self, ids: Sequence[int], turn: int, logprobs: Sequence[float | None] | None = None
    ) -> None:
        """Appends ids of one turn; those with a number in `logprobs` were sampled."""
        logprobs = [None] * len(ids) if logprobs is None else logprobs
        self.ids += ids
        self.turns += [turn] * len(ids)
        self.mask += [logprob is not None for logprob in logprobs]
        self.logprobs += [0.0 if logprob is None else logprob for logprob in logprobs]

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
        asked = [{"role": "user", "content": ANSWER}]
        self._in_parts = ANSWER not in self._template(asked, generate=False)
        """Whether the template reads the text of lists of parts alone, not of strings."""
        opening, closed, _ = self._template(
            [*self._stubs, {"role": "user", "content": "."}], generate=False
        ).partition(f"{ANSWER}{self._eos}")
        header = self._template(self._stubs[:1], generate=True)
        self._lead = opening.removeprefix(header) if opening.startswith(header) else ""
        """What the template writes between its header and an answer, such as a space."""
        if not closed:
            raise RenderError(
                f"the chat template does not end an assistant's turn with {self._eos!r}: set the "
                f"tokenizer's eos_token to the token that does{self._reasoning()}"
            )
        specials = {*map(str, self.tokenizer.all_special_tokens), processor.placeholder}
        self._specials = sorted(token for token in specials if len(token) > 1)
        self.thoughts: Thoughts | None = None
        """What the chat template does with thoughts; None if it knows none."""
        if thinks(self.tokenizer):
            self.thoughts = Thoughts.of(self.tokenizer, self._template, self._eos)
            tags = self.tokenizer.encode(THINK + END, add_special_tokens=False)
            if self.tokenizer.decode(tags, skip_special_tokens=True) != THINK + END:
                raise RenderError(
                    f"{THINK} and {END} are special tokens of the tokenizer, which responses are "
                    "read without: set special=false for them in tokenizer.json, as Qwen3 has it"
                )

    def initial(
        self, system_prompt: str | None, observation: Observation, *, thought: bool = True
    ) -> Rendered:
        """System prompt, first observation and the header of the first answer.

        Args:
            system_prompt: The environment's system prompt; None leaves the message out.
            observation: The first one of the row.
            thought: Whether the answer is shown with its thought, which the template may open.
        """
        frames = observation["images"]
        messages = []
        if system_prompt is not None:
            messages.append({"role": "system", "content": self._escape(system_prompt)})
        text = self._template([*messages, self._user(observation)], generate=True)
        return Rendered(self._tokenize(self._header(text, thought), frames), frames)

    def following(self, observation: Observation, *, thought: bool = True) -> Rendered:
        """Text between the end of a response and the start of the next; see `initial`."""
        frames = observation["images"]
        whole = self._template([*self._stubs, self._user(observation)], generate=True)
        _, ended, rest = whole.partition(f"{ANSWER}{self._eos}")
        if not ended:
            raise RenderError(
                "the chat template renders earlier turns differently after later ones"
                f"{self._reasoning()}"
            )
        return Rendered(self._tokenize(self._header(rest, thought), frames), frames)

    def _header(self, text: str, thought: bool) -> str:
        if self.thoughts is None or thought:
            return text
        return text.removesuffix(self.thoughts.opening) + self.thoughts.instead

    def rest(self, ids: Sequence[int]) -> list[int] | None:
        """Ids of a response in later contexts if they differ from the sampled ones."""
        return None if self.thoughts is None else self.thoughts.rest(ids)

    def answer(self, response: str) -> list[int]:
        """Ids of a response that was written, not sampled, with the end-of-turn token."""
        if self.thoughts is not None:
            response = self.thoughts.after_opening(response)
        ids = self.tokenizer.encode(self._escape(response), add_special_tokens=False)
        return [*ids, self.processor.eos_id]

    def text(self, ids: Sequence[int]) -> str:
        """A response's text, with the `<think>` that the template opened."""
        eos = self.processor.eos_id
        text = self.tokenizer.decode([i for i in ids if i != eos], skip_special_tokens=True)
        return text if self.thoughts is None else f"{self.thoughts.begun}{text}"

    def fitted(self, observation: Observation) -> Observation:
        """The observation with frames scaled down to the model's maximum size."""
        frames = tuple(self.processor.fitted(frame) for frame in observation["images"])
        return {"text": observation["text"], "images": frames}

    def check(self, system_prompt: str, observations: Sequence[Observation]) -> None:
        """Checks that the concatenated parts equal the whole conversation rendered at once.

        With a template that knows thoughts, for responses of every kind.

        Raises:
            RenderError: They differ: training contexts would not be those of generation.
        """
        for response in [ANSWER] if self.thoughts is None else self.thoughts.examples:
            self._check(system_prompt, observations, response)

    def _check(
        self, system_prompt: str, observations: Sequence[Observation], response: str
    ) -> None:
        answer = self.tokenizer.encode(f"{self._lead}{response}", add_special_tokens=False)
        answer.append(self.processor.eos_id)
        rest = self.rest(answer)
        opening = "" if self.thoughts is None else self.thoughts.opening
        messages = [{"role": "system", "content": self._escape(system_prompt)}]
        frames = [frame for observation in observations for frame in observation["images"]]
        parts: list[int] = []
        for i, observation in enumerate(observations):
            messages.append(self._user(observation))
            last = i + 1 == len(observations)
            thought = last or rest is None
            if i:
                parts += self.following(observation, thought=thought).ids
            else:
                parts += self.initial(system_prompt, observation, thought=thought).ids
            if not last:
                messages.append({"role": "assistant", "content": f"{opening}{response}"})
                parts += answer if rest is None else rest
        whole = self._tokenize(self._template(messages, generate=True), frames)
        if parts == whole:
            return
        shown = [self.tokenizer.decode(ids) for ids in (parts, whole)]
        # What is left of white space may make other tokens with the header before it.
        spaced = any(space in response for space in SPACES)
        if not (spaced and shown[0] == shown[1]):
            raise RenderError(
                "the conversation rendered turn by turn differs from the whole rendered at once: "
                f"{shown[0]!r} is not {shown[1]!r}{self._reasoning()}"
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
        """What of thoughts can be followed; empty if the template knows none."""
        if not thinks(self.tokenizer):
            return ""
        return (
            f". It is the template of a reasoning model. One that opens {THINK} can be followed, "
            f"and one that takes everything up to the last {END} out of earlier answers; this one "
            "does something else: set a chat_template that leaves answers as they are, or take the "
            "model's instruct version"
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
