"""Frames: composed of tiles that numpy draws once, and as PNG bytes, keyed by content digest."""

import base64
import hashlib
import io
import struct
import zlib

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray
from PIL import Image

Colour = tuple[int, int, int]
Mask = NDArray[np.bool_]
"""[side * SAMPLES, side * SAMPLES] over the unit square."""

SAMPLES = 4
"""Samples per pixel and axis while drawing; averaged for smooth edges."""


class Canvas:
    """A tile in progress; coordinates are x rightwards and y downwards in [0, 1]."""

    def __init__(self, side: int, background: Colour) -> None:
        self._side = side
        centres = (np.arange(side * SAMPLES) + 0.5) / (side * SAMPLES)
        self.x, self.y = np.meshgrid(centres, centres)
        self._pixels = np.empty((*self.x.shape, 3), np.float32)
        self._pixels[:] = background

    def fill(self, mask: Mask, colour: Colour) -> "Canvas":
        """Paints where `mask` is True."""
        self._pixels[mask] = colour
        return self

    def disc(self, x: float, y: float, radius: float) -> Mask:
        """A disc."""
        return (self.x - x) ** 2 + (self.y - y) ** 2 <= radius**2

    def box(self, left: float, top: float, right: float, bottom: float) -> Mask:
        """An upright rectangle."""
        return (self.x >= left) & (self.x <= right) & (self.y >= top) & (self.y <= bottom)

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float) -> Mask:
        """A line segment with round ends."""
        (x0, y0), (x1, y1) = start, end
        dx, dy = x1 - x0, y1 - y0
        along = ((self.x - x0) * dx + (self.y - y0) * dy) / (dx * dx + dy * dy)
        along = np.clip(along, 0.0, 1.0)
        return (self.x - x0 - along * dx) ** 2 + (self.y - y0 - along * dy) ** 2 <= (width / 2) ** 2

    def triangle(self, *corners: tuple[float, float]) -> Mask:
        """A filled triangle with corners in any orientation."""
        signs = []
        for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
            signs.append((x1 - x0) * (self.y - y0) - (y1 - y0) * (self.x - x0) >= 0)
        return (signs[0] & signs[1] & signs[2]) | ~(signs[0] | signs[1] | signs[2])

    def figure(
        self, colour: Colour, outline: Colour, *, sink: float = 0.0, within: Mask | None = None
    ) -> "Canvas":
        """A person: round head on a bell-shaped body, `sink` lower, clipped to `within`."""
        seen = np.ones_like(self.x, bool) if within is None else within
        head_y, shoulder_y, foot_y = 0.29 + sink, 0.42 + sink, min(0.86 + sink, 0.98)
        for grow, paint in ((0.045, outline), (0.0, colour)):
            half = 0.13 + grow + 0.17 * np.clip((self.y - shoulder_y) / 0.4, 0.0, 1.0)
            body = (np.abs(self.x - 0.5) <= half) & (self.y >= shoulder_y - grow)
            self.fill(seen & body & (self.y <= foot_y + grow), paint)
            self.fill(seen & self.disc(0.5, head_y, 0.165 + grow), paint)
        return self

    def pixels(self) -> NDArray[np.uint8]:
        """The finished tile, uint8 [side, side, 3]."""
        blocks = self._pixels.reshape(self._side, SAMPLES, self._side, SAMPLES, 3)
        return np.rint(blocks.mean((1, 3))).astype(np.uint8)


class TileSet:
    """Tiles by code; frames are composed by indexing."""

    def __init__(self, tiles: list[NDArray[np.uint8]]) -> None:
        self.tiles = np.stack(tiles)  # [codes, side, side, 3]
        self.tiles.flags.writeable = False
        self.side: int = self.tiles.shape[1]

    def frame(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """An image of the grid.

        Args:
            codes: Tile codes, [rows, columns].

        Returns:
            A new array, uint8 [rows * side, columns * side, 3].
        """
        rows, columns = codes.shape
        cells = self.tiles[codes]  # [rows, columns, side, side, 3]
        return cells.swapaxes(1, 2).reshape(rows * self.side, columns * self.side, 3)

    def codes(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The tile codes of an image; inverse of `frame`.

        Raises:
            ValueError: A cell of the image is not a tile.
        """
        side = self.side
        rows, columns = frame.shape[0] // side, frame.shape[1] // side
        cells = frame.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        match = (cells[:, :, None] == self.tiles).all((3, 4, 5))  # [rows, columns, codes]
        if not match.any(-1).all():
            raise ValueError("a cell of the picture is none of the tiles")
        return match.argmax(-1).astype(np.uint8)


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TRUE_COLOUR = 2
_NO_FILTER, _MINUS_LEFT = 0, 1
_LEVEL = 1


def png_url(png: bytes) -> str:
    """A PNG as a data URL, for pages and for messages in OpenAI's form."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


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
    # Flat, if every eighth line mostly repeats the pixel to the left.
    sample = pixels[::8]
    if 2 * np.count_nonzero(sample[:, 3:] == sample[:, :-3]) >= sample[:, 3:].size:
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


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return b"".join((struct.pack(">I", len(content)), kind, content, struct.pack(">I", checksum)))
