"""Conversations of others as rows of a warm start, and episodes as such conversations.

Two forms are read, from JSON Lines, a JSON list or Parquet. OpenAI's: `messages` with `role` and
`content`, which is a text or a list of parts. ShareGPT's, as LLaMA-Factory writes it:
`conversations` with `from` and `value`, and `system`. A picture is a data URL, a path relative to
the file, or bytes: in a part, or in `images`, for the `<image>` in a text.
"""

import base64
import binascii
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vagen.config.infra import S3Config
from vagen.envs.answers import kind as kind_of
from vagen.envs.base import IMAGE_PLACEHOLDER
from vagen.envs.images import image_digest, png_bytes, png_url
from vagen.rollout.contexts import Contexts
from vagen.rollout.conversation import ChatRenderer, RenderError
from vagen.rollout.runner import EpisodeLimits
from vagen.rollout.types import TokenRow, Trajectory
from vagen.storage import Store, open_store

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
"""Roles of both forms."""


class DemonstrationError(ValueError):
    """A file of conversations cannot be used; the message says where and what would be right."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation to learn from."""

    place: str
    """File and line."""
    system: str | None
    turns: list[tuple[str, list[Any], str]]
    """Text with `<image>` per picture, pictures (data URL, path or bytes), response."""
    files: Store
    """Where paths of pictures lead."""

    def rows(
        self, renderer: ChatRenderer, limits: EpisodeLimits
    ) -> tuple[list[TokenRow], dict[str, bytes]] | None:
        """Its rows as a rollout would have them, and PNG by digest; None if it is too long.

        Args:
            renderer: Renders for the model.
            limits: Token limits, and the window.

        Raises:
            DemonstrationError: A picture cannot be read, or the model cannot read the text.
        """
        contexts = Contexts(self.place, renderer, system_prompt=self.system, window=limits.window)
        images: dict[str, bytes] = {}
        for text, pictures, response in self.turns:
            frames = tuple(map(self._frame, pictures))
            try:
                observation = renderer.fitted({"text": text, "images": frames})
                prompt = contexts.prompt(observation)
            except RenderError as error:
                raise DemonstrationError(f"{self.place}: {error}") from error
            answer = renderer.answer(response)
            if (
                prompt.beginning > limits.max_prompt_length
                or len(answer) > limits.max_response_length
                or len(prompt.row.ids) + len(answer) > limits.max_trajectory_length
            ):
                return None
            pngs = [png_bytes(frame) for frame in observation["images"]]
            digests = [image_digest(png) for png in pngs]
            images |= zip(digests, pngs, strict=True)
            contexts.show(prompt, digests)
            contexts.answer(answer, [0.0] * len(answer))
        return [row.row() for row in contexts.rows], images

    def _frame(self, picture: Any) -> NDArray[np.uint8]:
        content = picture
        if isinstance(picture, str):
            if picture.startswith("data:"):
                try:
                    content = base64.b64decode(picture.partition(",")[2], validate=True)
                except binascii.Error as error:
                    raise DemonstrationError(
                        f"{self.place}: a data URL is not base64 ({error}): write "
                        "data:image/png;base64,..."
                    ) from error
            elif "://" in picture:
                raise DemonstrationError(
                    f"{self.place}: {picture} is not downloaded: give pictures as data URLs or as "
                    "paths relative to the file"
                )
            elif Path(picture).is_absolute():
                content = Path(picture).read_bytes() if Path(picture).is_file() else None
            else:
                content = self.files.read_file(picture)
            if content is None:
                raise DemonstrationError(
                    f"{self.place}: there is no picture {picture}: paths are absolute, or relative "
                    f"to {self.files.uri}"
                )
        try:
            return np.array(Image.open(io.BytesIO(content)).convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise DemonstrationError(
                f"{self.place}: a picture is in no format that Pillow reads ({error})"
            ) from error


def read_demonstrations(source: str, s3: S3Config | None = None) -> list[Demonstration]:
    """The conversations of a file, in order.

    Args:
        source: Path or URI (`s3://bucket/chats.jsonl`) of a `.jsonl`, `.json` or `.parquet` file.
        s3: Connection to an S3 server.

    Raises:
        DemonstrationError: There is no such file, or a conversation is in neither form.
        StorageError: The store cannot be read.
    """
    folder, _, name = (source if "://" in source else str(Path(source).absolute())).rpartition("/")
    files = open_store(folder, s3)
    content = files.read_file(name)
    if content is None:
        raise DemonstrationError(f"warm_start.data: there is no file {source}")
    found = []
    for place, row in _rows(source, content):
        try:
            found.append(Demonstration(place, *_conversation(row), files))
        except DemonstrationError as error:
            raise DemonstrationError(f"{place}: {error}") from None
    if not found:
        raise DemonstrationError(f"{source} has no conversations: write one per line")
    return found


def _rows(source: str, content: bytes) -> Iterator[tuple[str, Any]]:
    """Records of a file and where they are."""
    kind = source.rpartition(".")[2]
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(pa.BufferReader(content))
        except pa.ArrowInvalid as error:
            raise DemonstrationError(f"{source} is not Parquet: {error}") from error
        for n, row in enumerate(table.to_pylist(), 1):
            yield f"{source}, row {n}", row
    elif kind == "jsonl":
        for n, line in enumerate(content.splitlines(), 1):
            if line.strip():
                yield f"{source}, line {n}", _json(line, f"{source}, line {n}")
    elif kind == "json":
        whole = _json(content, source)
        if not isinstance(whole, list):
            raise DemonstrationError(f"{source} is no list of conversations: [{{...}}, ...]")
        for n, row in enumerate(whole, 1):
            yield f"{source}, conversation {n}", row
    else:
        raise DemonstrationError(
            f"warm_start.data: {source} must end with .jsonl, .json or .parquet"
        )


def _json(content: bytes, place: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise DemonstrationError(f"{place} is not JSON ({error}): write an object") from error


def _conversation(row: Any) -> tuple[str | None, list[tuple[str, list[Any], str]]]:
    """System prompt and turns of a record in either form."""
    if not isinstance(row, dict):
        raise DemonstrationError(f"it is {kind_of(row)}, not an object with `messages`")
    kind, role_key, text_key = "messages", "role", "content"
    if row.get(kind) is None:
        kind, role_key, text_key = "conversations", "from", "value"
    messages = row.get(kind)
    if not isinstance(messages, list):
        raise DemonstrationError(
            "it has neither `messages` (role, content) nor `conversations` (from, value), but "
            f"{', '.join(map(repr, row)) or 'nothing'}"
        )
    listed = row.get("images") or []
    beside = list(listed if isinstance(listed, list) else [listed])
    system: str | None = row.get("system") or None
    turns: list[tuple[str, list[Any], str]] = []
    pending: tuple[str, list[Any]] | None = None
    for n, message in enumerate(messages, 1):
        if not isinstance(message, dict) or message.get(role_key) not in ROLES:
            raise DemonstrationError(
                f"message {n} is {kind_of(message)}: `{role_key}` must be one of {', '.join(ROLES)}"
            )
        role = ROLES[message[role_key]]
        text, pictures = _content(message.get(text_key), n, beside)
        if role == "user" and pending is None:
            pending = text, pictures
        elif role == "system" and n == 1 and system is None and not pictures:
            system = text
        elif role == "assistant" and pending is not None and not pictures:
            turns.append((*pending, text))
            pending = None
        else:
            raise DemonstrationError(
                f"message {n} ({message[role_key]}) is out of order: a system message may come "
                "first, then user and assistant alternate, and only users show pictures"
            )
    if beside:
        raise DemonstrationError(
            f"`images` has {len(beside)} more than the texts have {IMAGE_PLACEHOLDER}"
        )
    if not turns:
        raise DemonstrationError("no assistant message follows a user's: nothing to learn from")
    return system, turns


def _content(content: Any, n: int, beside: list[Any]) -> tuple[str, list[Any]]:
    """Text and pictures of a message; takes the pictures of placeholders from `beside`."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise DemonstrationError(
            f"the content of message {n} is {kind_of(content)}: write a text, or a list of parts"
        )
    texts: list[str] = []
    pictures: list[Any] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
            wanted = [None] * part["text"].count(IMAGE_PLACEHOLDER)
        elif kind in ("image_url", "image") and (kind == "image" or part.get(kind)):
            texts.append(IMAGE_PLACEHOLDER)
            wanted = [part.get(kind)]
        else:
            raise DemonstrationError(
                f"a part of message {n} is {kind_of(part)}: write "
                '{"type": "text", "text": ...} or {"type": "image_url", "image_url": {"url": ...}}'
            )
        for picture in wanted:
            if picture is None and not beside:
                raise DemonstrationError(
                    f"message {n} has more {IMAGE_PLACEHOLDER} than `images` has pictures"
                )
            picture = beside.pop(0) if picture is None else picture
            if isinstance(picture, dict):
                picture = picture.get("url") or picture.get("bytes") or picture.get("path")
            if not isinstance(picture, str | bytes):
                raise DemonstrationError(
                    f"a picture of message {n} is {kind_of(picture)}: give a data URL, a path or "
                    "bytes"
                )
            pictures.append(picture)
    return "".join(texts), pictures


def messages_of(
    trajectory: Trajectory, images: dict[str, bytes], system_prompt: str
) -> list[dict[str, Any]]:
    """An episode in OpenAI's form, its pictures as data URLs; inverse of `Demonstration.rows`.

    Args:
        trajectory: The episode.
        images: PNG by digest.
        system_prompt: Its environment's.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}]
    for turn in trajectory.turns:
        content = user_content(turn.observation_text, [images[digest] for digest in turn.images])
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": turn.response_text})
    return messages


def user_content(text: str, pngs: Sequence[bytes]) -> str | list[dict[str, Any]]:
    """An observation as the content of an OpenAI message: a text, or parts.

    Args:
        text: With `<image>` per picture.
        pngs: The pictures.
    """
    if not pngs:
        return text
    parts: list[dict[str, Any]] = []
    for i, piece in enumerate(text.split(IMAGE_PLACEHOLDER)):
        if i:
            url = {"url": png_url(pngs[i - 1])}
            parts.append({"type": "image_url", "image_url": url})
        if piece:
            parts.append({"type": "text", "text": piece})
    return parts
