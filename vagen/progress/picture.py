"""Pictures in a terminal."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.text import Text

Picture = bytes | NDArray[np.uint8]
"""A PNG file, or uint8 [height, width, 3]."""


def half_blocks(picture: Picture, columns: int = 24) -> Text:
    """Draws a picture with coloured upper half blocks, two pixels per character.

    Args:
        picture: The picture.
        columns: Width in characters; the height keeps the aspect ratio.
    """
    image = (
        Image.open(io.BytesIO(picture)) if isinstance(picture, bytes) else Image.fromarray(picture)
    ).convert("RGB")
    lines = max(1, round(columns * image.height / image.width / 2))
    pixels = np.asarray(image.resize((columns, 2 * lines), Image.Resampling.BOX))
    text = Text()
    for above, below in zip(pixels[::2], pixels[1::2], strict=True):
        for upper, lower in zip(above, below, strict=True):
            ink, ground = (f"rgb({r},{g},{b})" for r, g, b in (upper, lower))
            text.append("▀", f"{ink} on {ground}")
        text.append("\n")
    return text
