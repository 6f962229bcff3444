"""Converts images of other environments to frames: uint8 [height, width, 3].

Converts unambiguous formats: grey and black-and-white, floats in [0, 1] or up to 255, integers in
[0, 255], channels first, transparency (on white), Pillow's modes, encoded files. Rejects others,
since a wrong guess would show black or noise.
"""

import base64
import binascii
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vagen.envs.answers import AnswerError, kind

CHANNELS = (1, 3, 4)
_JUST_ABOVE = 1e-3
"""Tolerance for floats that represent white."""


def frame_of(picture: Any, what: str) -> NDArray[np.uint8]:
    """Converts an image to a new frame.

    Args:
        picture: An array, anything that Pillow reads, or base64 (also a `data:` URL).
        what: Source of the image, for error messages.

    Raises:
        AnswerError: It is not an image, or its format is ambiguous.
    """
    if isinstance(picture, str | bytes):
        picture = _decoded(picture, what)
    if isinstance(picture, Image.Image):
        picture = _array_of(picture)
    try:
        array = np.asarray(picture)
    except ValueError:  # ragged lists
        array = np.asarray(None)
    if array.dtype.kind not in "buif":
        raise AnswerError(f"{what} is {kind(picture)}; a picture is an array of numbers")
    pixels = _bytes(_channels_last(array, what), what)
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:].astype(np.float32) / 255
        pixels = (pixels[..., :3] * alpha + 255 * (1 - alpha)).round().astype(np.uint8)
    return np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _decoded(text: str | bytes, what: str) -> Image.Image:
    """Decodes an image file."""
    try:
        if isinstance(text, str):
            data = base64.b64decode(text.partition("base64,")[2] or text, validate=True)
        else:
            data = text
        image = Image.open(io.BytesIO(data))
        image.load()
    except (binascii.Error, UnidentifiedImageError, OSError, ValueError) as error:
        raise AnswerError(
            f"{what} is {kind(text)}, which is no picture in base64 and no bytes of one: {error}"
        ) from error
    return image


def _array_of(image: Image.Image) -> NDArray[Any]:
    if image.mode[0] in "IF":  # numbers of more than eight bits
        return np.asarray(image)
    transparent = image.has_transparency_data
    return np.asarray(image.convert("RGBA" if transparent else "RGB"))


def _channels_last(array: NDArray[Any], what: str) -> NDArray[Any]:
    """The array as [height, width, channels]."""
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim == 3 and array.shape[2] not in CHANNELS and array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in CHANNELS or not array.size:
        raise AnswerError(
            f"{what} is {kind(array)}; a picture is [height, width] or [height, width, channels], "
            "of 1, 3 or 4 channels"
        )
    return array


def _bytes(array: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """The array's values scaled to 0 to 255."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * np.uint8(255)
    low, high = array.min(), array.max()  # NaN if any is
    is_float = array.dtype.kind == "f"
    if is_float and low >= -_JUST_ABOVE and high <= 1 + _JUST_ABOVE:
        array = array.clip(0, 1) * 255
    elif not (low >= 0 and high <= 255) or (high == 1 and not is_float):
        raise AnswerError(
            f"{what} is {kind(array)} with numbers from {low:g} to {high:g}; a picture is uint8, "
            "float in [0, 1], or whole numbers from 0 to 255"
        )
    return array.round().astype(np.uint8)
