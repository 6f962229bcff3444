"""Frames as PNG bytes, keyed by content digest."""

import hashlib
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def png_bytes(frame: NDArray[np.uint8]) -> bytes:
    """PNG of a frame, uint8 [height, width, 3]; the same frame gives the same bytes."""
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(
            f"a frame is uint8 [height, width, 3]; this one is {frame.dtype} {list(frame.shape)}"
        )
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def decode_png(png: bytes) -> NDArray[np.uint8]:
    """The frame of `png_bytes`, uint8 [height, width, 3]; refuses any other image format."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        return np.array(image.convert("RGB"))


def image_digest(png: bytes) -> str:
    """Key of an image: SHA-256 of its PNG bytes, hexadecimal."""
    return hashlib.sha256(png).hexdigest()
