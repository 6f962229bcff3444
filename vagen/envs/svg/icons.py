"""Generates icons of increasing difficulty from seeds.

Level 1: one shape. 2: two or three shapes side by side. 3: several overlapping shapes, some as
outlines. 4: paths with curves, and translated and rotated groups. 5: as 4, with gradients.
Coordinates are multiples of `GRID` on a 256 x 256 sheet, so that an answer can be exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of

SHEET = 256
GRID = 8
LEVELS = (1, 2, 3, 4, 5)
COLOURS = (
    *("red", "green", "blue", "orange", "purple", "black"),
    *("gold", "teal", "brown", "pink", "gray", "navy"),
)


@dataclass(frozen=True, slots=True)
class Icon:
    """A target."""

    document: str
    """SVG source."""
    difficulty: int
    level_hash: str


def sample_icon(difficulty: tuple[int, int], seed: int, split: Split) -> Icon:
    """The icon of a seed in a split.

    Args:
        difficulty: Minimum and maximum level, drawn uniformly.
        seed: Seed of the icon.
        split: Split, decided by a hash of the document.

    Raises:
        LevelError: None of many candidates is in the split.
    """
    rng = Random(seed)
    least, most = difficulty
    for _ in range(MAX_CANDIDATES):
        level = least + draw_index(rng, most - least + 1)
        document = draw_icon(rng, level)
        digest = content_hash(document)
        if split_of(digest) == split:
            return Icon(document, level, digest)
    raise LevelError(f"SVG: no icon of levels {least} to {most} in split {split!r}")


def draw_icon(rng: Random, level: int) -> str:
    """A random document of a level."""
    definitions: list[str] = []
    two, three, more = draw_index(rng, 2), draw_index(rng, 3), draw_index(rng, 3)
    count = {1: 1, 2: 2 + two, 3: 3 + three}.get(level, 2 + more)
    colours = list(COLOURS)
    body = []
    for place in range(count):
        colour = colours.pop(draw_index(rng, len(colours)))
        if level == 5 and rng.random() < 0.6:
            name = f"g{len(definitions)}"
            second = colours.pop(draw_index(rng, len(colours)))
            definitions.append(_gradient(rng, name, colour, second))
            colour = f"url(#{name})"
        paint = f'fill="{colour}"'
        if level >= 3 and "url" not in colour and rng.random() < 0.3:
            width = GRID * (1 + draw_index(rng, 2))
            paint = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        left, top, right, bottom = _frame(rng, level, place, count)
        if level >= 4 and rng.random() < 0.4:
            body.append(_group(rng, paint, right - left))
        else:
            shapes = _SIMPLE if level < 4 else (*_SIMPLE, _blob, _blob, _arc)
            body.append(shapes[draw_index(rng, len(shapes))](rng, left, top, right, bottom, paint))
    held = f"<defs>{''.join(definitions)}</defs>" if definitions else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SHEET} {SHEET}">'
        f"{held}{''.join(body)}</svg>"
    )


def _between(rng: Random, least: int, most: int) -> int:
    """A multiple of `GRID` from `least` to `most`."""
    steps = max((most - least) // GRID, 0)
    return least + GRID * draw_index(rng, steps + 1)


def _frame(rng: Random, level: int, place: int, count: int) -> tuple[int, int, int, int]:
    """Frame of a shape: left, top, right, bottom. Up to level 2 frames do not overlap."""
    if level == 1:
        width, height = _between(rng, 80, 200), _between(rng, 80, 200)
        left, top = _between(rng, 16, 240 - width), _between(rng, 16, 240 - height)
    elif level == 2:
        column = (SHEET - 16) // count // GRID * GRID
        width, height = _between(rng, 48, column - 8), _between(rng, 48, 200)
        left = 8 + column * place + _between(rng, 0, column - 8 - width)
        top = _between(rng, 16, 240 - height)
    else:
        width, height = _between(rng, 64, 176), _between(rng, 64, 176)
        left, top = _between(rng, 8, 248 - width), _between(rng, 8, 248 - height)
    return left, top, left + width, top + height


def _rect(_: Random, left: int, top: int, right: int, bottom: int, paint: str) -> str:
    return f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" {paint}/>'


def _circle(_: Random, left: int, top: int, right: int, bottom: int, paint: str) -> str:
    radius = min(right - left, bottom - top) // 2 // GRID * GRID
    return f'<circle cx="{left + radius}" cy="{top + radius}" r="{radius}" {paint}/>'


def _ellipse(_: Random, left: int, top: int, right: int, bottom: int, paint: str) -> str:
    rx, ry = (right - left) // 2 // GRID * GRID, (bottom - top) // 2 // GRID * GRID
    return f'<ellipse cx="{left + rx}" cy="{top + ry}" rx="{rx}" ry="{ry}" {paint}/>'


def _triangle(rng: Random, left: int, top: int, right: int, bottom: int, paint: str) -> str:
    peak = _between(rng, left, right)
    points = f"{left},{bottom} {right},{bottom} {peak},{top}"
    if rng.random() < 0.5:
        points = f"{left},{top} {right},{top} {peak},{bottom}"
    return f'<polygon points="{points}" {paint}/>'


_SIMPLE: tuple[Callable[[Random, int, int, int, int, str], str], ...] = (
    _rect,
    _circle,
    _ellipse,
    _triangle,
)


def _blob(rng: Random, left: int, top: int, right: int, bottom: int, paint: str) -> str:
    """A closed curve that touches the four sides of its frame."""
    x, y = (left + right) // 2, (top + bottom) // 2
    bend = _between(rng, 0, (right - left) // 3)
    return (
        f'<path d="M{x} {top} C{right - bend} {top} {right} {y} {right} {y} '
        f"Q{right} {bottom} {x} {bottom} Q{left + bend} {bottom} {left} {y} "
        f'L{x} {top} Z" {paint}/>'
    )


def _arc(_: Random, left: int, top: int, right: int, bottom: int, paint: str) -> str:
    """A half disc."""
    rx, ry = (right - left) // 2, bottom - top
    return f'<path d="M{left} {bottom} A{rx} {ry} 0 0 1 {right} {bottom} Z" {paint}/>'


def _group(rng: Random, paint: str, extent: int) -> str:
    """A cross or a star at the origin, translated and rotated."""
    half = max(extent // 2 // GRID * GRID, 24)
    x, y = _between(rng, half, SHEET - half), _between(rng, half, SHEET - half)
    angle = 15 * draw_index(rng, 6)
    if rng.random() < 0.5:
        bar = half // 4 // GRID * GRID or GRID
        shapes = (
            f'<rect x="{-half}" y="{-bar}" width="{2 * half}" height="{2 * bar}"/>'
            f'<rect x="{-bar}" y="{-half}" width="{2 * bar}" height="{2 * half}"/>'
        )
    else:
        shapes = f'<polygon points="{_star(half)}"/>'
    return f'<g transform="translate({x} {y}) rotate({angle})" {paint}>{shapes}</g>'


def _star(radius: int) -> str:
    corners = []
    for corner in range(10):
        length = radius if corner % 2 == 0 else radius / 2
        angle = math.pi * (corner / 5 - 0.5)
        corners.append(f"{round(length * math.cos(angle))},{round(length * math.sin(angle))}")
    return " ".join(corners)


def _gradient(rng: Random, name: str, first: str, second: str) -> str:
    stops = f'<stop offset="0" stop-color="{first}"/><stop offset="1" stop-color="{second}"/>'
    if rng.random() < 0.5:
        return f'<radialGradient id="{name}">{stops}</radialGradient>'
    x, y = ("1", "0") if rng.random() < 0.5 else ("0", "1")
    return f'<linearGradient id="{name}" x1="0" y1="0" x2="{x}" y2="{y}">{stops}</linearGradient>'
