"""Messages between a playing process and the worker processes of its environments.

A message is a header with two lengths, a JSON object, and concatenated binary blobs. It contains
nothing executable: no pickle.
"""

import asyncio
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from vagen.envs.base import Observation
from vagen.envs.images import decode_png, png_bytes

Encoding: TypeAlias = Literal["raw", "png"]
"""Encoding of frames: pixels, or compressed for forwarding."""
Blob: TypeAlias = "bytes | memoryview"

_HEADER = struct.Struct(">IQ")
_LARGEST = 1 << 30
"""Maximum bytes of a message's JSON; more means a broken stream."""


class BrokenStream(ConnectionError):
    """The received data are not a message."""


@dataclass(frozen=True, slots=True)
class WireReply:
    """A reply: JSON-serialisable content, and its frames."""

    content: dict[str, Any]
    frames: Sequence[Blob] = field(default_factory=list)
    """Frames in the requested encoding, in order."""


def pack(content: dict[str, Any], blobs: Sequence[Blob] = ()) -> list[Blob]:
    """The parts of a message, to be sent in order."""
    body = orjson.dumps(content | {"blobs": [len(blob) for blob in blobs]})
    size = sum(len(blob) for blob in blobs)
    return [_HEADER.pack(len(body), size) + body, *blobs]


def send(connection: socket.socket, content: dict[str, Any], blobs: Sequence[Blob] = ()) -> None:
    """Sends a message; blocks until it is sent."""
    for part in pack(content, blobs):
        connection.sendall(part)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message without blobs; None if the connection is closed.

    Raises:
        BrokenStream: The data are not a message.
    """
    header = _read(connection, _HEADER.size)
    if header is None:
        return None
    length, _ = _lengths(header)
    body = _read(connection, length)
    return None if body is None else orjson.loads(body)


async def receive_from(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[memoryview]]:
    """The next message.

    Raises:
        asyncio.IncompleteReadError: The connection is closed.
        BrokenStream: The data are not a message.
    """
    length, size = _lengths(await reader.readexactly(_HEADER.size))
    content = orjson.loads(await reader.readexactly(length))
    data = memoryview(await reader.readexactly(size))
    blobs, start = [], 0
    for part in content.pop("blobs"):
        blobs.append(data[start : start + part])
        start += part
    return content, blobs


def show(observation: Observation, encoding: Encoding) -> tuple[dict[str, Any], list[Blob]]:
    """An observation as JSON-serialisable content and blobs."""
    frames = observation["images"]
    if encoding == "png":
        return {"text": observation["text"]}, [png_bytes(frame) for frame in frames]
    shapes = [list(frame.shape) for frame in frames]
    blobs: list[Blob] = [np.ascontiguousarray(frame).data.cast("B") for frame in frames]
    return {"text": observation["text"], "shapes": shapes}, blobs


def read_observation(content: dict[str, Any], frames: Sequence[Blob]) -> Observation:
    """Inverse of `show`, for pixels or PNG."""
    shapes = content.get("shapes")
    images: list[NDArray[np.uint8]]
    if shapes is None:
        images = [decode_png(bytes(frame)) for frame in frames]
    else:
        images = [
            np.frombuffer(frame, np.uint8).reshape(shape)
            for frame, shape in zip(frames, shapes, strict=True)
        ]
    return Observation(text=content["text"], images=tuple(images))


def replace_surrogates(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _lengths(header: bytes) -> tuple[int, int]:
    length, size = _HEADER.unpack(header)
    if length > _LARGEST:
        raise BrokenStream(f"a message of {length} bytes was announced")
    return length, size


def _read(connection: socket.socket, length: int) -> bytes | None:
    """Exactly `length` bytes; None if the stream ends before."""
    data = bytearray(length)
    view, got = memoryview(data), 0
    while got < length:
        count = connection.recv_into(view[got:])
        if not count:
            return None
        got += count
    return bytes(data)
