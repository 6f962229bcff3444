"""Frames that fit into a page: unchanged while they do, re-encoded smaller when they do not."""

import io
from collections.abc import Mapping

from PIL import Image

COLORS = 64
"""Palette of a re-encoded frame."""
MIN_SIDE = 96
"""Pixels below which a frame's longer side is not reduced."""


def fit_frames(frames: Mapping[str, bytes], max_bytes: int) -> dict[str, bytes]:
    """PNG frames by digest whose sizes sum to about `max_bytes` or less.

    The original bytes are kept if they fit. Otherwise every frame becomes a palette PNG and, as far
    as still needed, is scaled down, but never below `MIN_SIDE`. Bytes that are no image stay out:
    the viewer then says that the frame is missing.
    """
    if sum(map(len, frames.values())) <= max_bytes:
        return dict(frames)
    opened = {digest: _open(png) for digest, png in frames.items()}
    images = {digest: image for digest, image in opened.items() if image is not None}
    scale = 1.0
    while True:
        fitted = {digest: _palette_png(image, scale) for digest, image in images.items()}
        size = sum(map(len, fitted.values()))
        smallest = all(max(image.size) * scale <= MIN_SIDE for image in images.values())
        if size <= max_bytes or smallest:
            return fitted
        scale *= min(0.8, (max_bytes / size) ** 0.5)


def _open(png: bytes) -> Image.Image | None:
    try:
        image = Image.open(io.BytesIO(png), formats=["PNG"])
        image.load()
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return None
    return image.convert("RGB")


def _palette_png(image: Image.Image, scale: float) -> bytes:
    longest = max(image.size)
    factor = max(min(1.0, MIN_SIDE / longest), scale)
    if factor < 1.0:
        size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.quantize(COLORS).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
