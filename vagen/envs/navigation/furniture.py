"""What things are made of: shapes, sizes, colours, and what language says of them.

A thing is a set of upright boxes, or a mesh of MiniWorld with boxes that stand for it where it is
asked what hides what. Boxes are in the thing's own frame, in metres: x to its right as it looks
(its front is +z), y up from the floor.
"""

from dataclasses import dataclass
from typing import Literal

Rgb = tuple[float, float, float]

COLOURS: dict[str, Rgb] = {
    "red": (0.80, 0.10, 0.10),
    "orange": (0.95, 0.50, 0.05),
    "yellow": (0.95, 0.85, 0.10),
    "green": (0.10, 0.60, 0.20),
    "blue": (0.12, 0.28, 0.80),
    "purple": (0.50, 0.18, 0.70),
    "pink": (0.97, 0.55, 0.72),
    "brown": (0.42, 0.25, 0.12),
    "black": (0.07, 0.07, 0.08),
    "white": (0.96, 0.96, 0.96),
    "grey": (0.48, 0.48, 0.50),
}
"""Names of colours and what they look like; far enough apart to be told from one another."""

MAIN = "main"
"""The colour that a thing is named by."""

_DETAILS: dict[str, Rgb] = {
    "dark wood": (0.28, 0.16, 0.08),
    "metal": (0.70, 0.72, 0.75),
    "glass": (0.16, 0.20, 0.28),
    "water": (0.45, 0.75, 0.90),
    "warm light": (1.00, 0.95, 0.70),
}

Shape = Literal[
    "round", "pointed", "on four thin legs", "long and low", "tall", "about as wide as high"
]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of one colour."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    colour: str = MAIN
    """`MAIN`, or a name that `rgb` knows."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh that MiniWorld ships."""

    name: str
    """`{colour}` is replaced by the thing's colour."""
    height: float
    """Metres to which it is scaled."""


@dataclass(frozen=True, slots=True)
class FurnitureType:
    """A type of thing."""

    name: str
    parts: tuple[Box, ...]
    colours: tuple[str, ...]
    shape: Shape
    """How it looks, for instructions that must not name it."""
    uses: tuple[str, ...] = ()
    """What it is for: the uses of `USES` that an instruction may call it by."""
    passes_for: tuple[str, ...] = ()
    """Further uses it could serve: an instruction of such a use would be ambiguous beside it."""
    at_wall: bool = True
    """Whether it stands with its back to a wall."""
    mesh: Mesh | None = None

    @property
    def half_size(self) -> tuple[float, float]:
        """Half the width (x) and half the depth (z) of all parts, in metres."""
        return (
            max(max(-part.low[0], part.high[0]) for part in self.parts),
            max(max(-part.low[2], part.high[2]) for part in self.parts),
        )

    @property
    def height(self) -> float:
        """Height of the thing, in metres."""
        return max(part.high[1] for part in self.parts)

    @property
    def radius(self) -> float:
        """Radius of the circle that the agent cannot enter, in metres."""
        return max(self.half_size)


def rgb(name: str, main: str) -> Rgb:
    """The colour of a part of a thing whose own colour is `main`."""
    name = main if name == MAIN else name
    return COLOURS.get(name) or _DETAILS[name]


def box(
    width: float,
    depth: float,
    bottom: float,
    top: float,
    colour: str = MAIN,
    *,
    x: float = 0.0,
    z: float = 0.0,
) -> Box:
    """A box of a width and a depth about (`x`, `z`)."""
    return Box((x - width / 2, bottom, z - depth / 2), (x + width / 2, top, z + depth / 2), colour)


def legs(
    width: float, depth: float, height: float, colour: str, thick: float = 0.06
) -> tuple[Box, ...]:
    """Four legs at the corners of a rectangle."""
    x, z = (width - thick) / 2, (depth - thick) / 2
    return tuple(box(thick, thick, 0.0, height, colour, x=i, z=k) for i in (-x, x) for k in (-z, z))
