"""Frames as PNG bytes, keyed by content digest."""

import hashlib
import io
import struct
import zlib

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray
from PIL import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TRUE_COLOUR = 2
_NO_FILTER, _MINUS_LEFT = 0, 1
_LEVEL = 1


def png_bytes(frame: NDArray[np.uint8]) -> bytes:
    """Encodes a frame, uint8 [height, width, 3], as PNG; deterministic.

    Pillow's encoder tries five filters per line, which takes six times as long in total and gives
    larger files for flat images.

    Raises:
        ValueError: The array has another type or shape.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise ValueError(
            f"a frame is uint8 [height, width, 3]; this one is {frame.dtype} {list(frame.shape)}"
        )
    height, width, _ = frame.shape
    pixels = np.ascontiguousarray(frame).reshape(height, 3 * width)
    lines = np.empty((height, 3 * width + 1), np.uint8)
    if _is_flat(pixels):
        lines[:, 0] = _NO_FILTER
        lines[:, 1:] = pixels
    else:
        lines[:, 0] = _MINUS_LEFT
        lines[:, 1:4] = pixels[:, :3]
        np.subtract(pixels[:, 3:], pixels[:, :-3], out=lines[:, 4:])
    return b"".join(
        (
            _SIGNATURE,
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _TRUE_COLOUR, 0, 0, 0)),
            _chunk(b"IDAT", isal_zlib.compress(lines.data, _LEVEL)),
            _chunk(b"IEND", b""),
        )
    )


def decode_png(png: bytes) -> NDArray[np.uint8]:
    """Decodes `png_bytes` to uint8 [height, width, 3]; rejects other image formats."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def image_digest(png: bytes) -> str:
    """Key of an image: SHA-256 of its PNG bytes, hexadecimal."""
    return hashlib.sha256(png).hexdigest()


def _is_flat(pixels: NDArray[np.uint8]) -> bool:
    """Whether every eighth line, [height, 3 * width], mostly repeats the pixel to the left."""
    sample = pixels[::8]
    same = np.count_nonzero(sample[:, 3:] == sample[:, :-3])
    return bool(2 * same >= sample[:, 3:].size)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(content)), kind, content, struct.pack(">I", checksum)))
