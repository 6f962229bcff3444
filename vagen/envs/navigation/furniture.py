"""Object types: shapes, sizes, colours, and words, from the table `objects.yaml`.

An object is a set of upright boxes, or a mesh of MiniWorld with boxes for computing visibility.
Boxes are in the object's frame, in metres: x to its right (its front is +z), y up from the floor.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

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
"""Colours by name, different enough to be distinguished."""

MAIN = "main"
"""The colour in the object's name."""

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
    """`MAIN`, or a name known to `rgb`."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh from MiniWorld."""

    name: str
    """`{colour}` is replaced by the object's colour."""
    height: float
    """Height in metres after scaling."""


@dataclass(frozen=True, slots=True)
class FurnitureType:
    """A type of object."""

    name: str
    parts: tuple[Box, ...]
    colours: tuple[str, ...]
    shape: Shape
    """Its look, for instructions that must not name it."""
    uses: tuple[str, ...] = ()
    """Its uses in instructions: keys of `USES`."""
    passes_for: tuple[str, ...] = ()
    """Further possible uses, for which an instruction would be ambiguous."""
    at_wall: bool = True
    """Whether its back is against a wall."""
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
        """Height in metres."""
        return max(part.high[1] for part in self.parts)

    @property
    def radius(self) -> float:
        """Radius of the circle that blocks the agent, in metres."""
        return max(self.half_size)


def rgb(name: str, main: str) -> Rgb:
    """The colour of a part of an object with colour `main`."""
    name = main if name == MAIN else name
    return COLOURS.get(name) or _DETAILS[name]


def _box(
    width: float,
    depth: float,
    bottom: float,
    top: float,
    colour: str = MAIN,
    x: float = 0.0,
    z: float = 0.0,
) -> Box:
    return Box((x - width / 2, bottom, z - depth / 2), (x + width / 2, top, z + depth / 2), colour)


_TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("objects.yaml").read_text())

KINDS: dict[str, FurnitureType] = {
    name: FurnitureType(
        name,
        parts=tuple(_box(*part) for part in given["parts"]),
        colours=tuple(given["colours"]),
        shape=given["shape"],
        uses=tuple(given["uses"]),
        passes_for=tuple(given.get("passes_for", ())),
        at_wall=given.get("at_wall", True),
        mesh=Mesh(*given["mesh"]) if "mesh" in given else None,
    )
    for name, given in _TABLE["kinds"].items()
}
"""All types by name."""
USES: dict[str, list[str]] = _TABLE["uses"]
"""Instructions by use."""
THOR_TYPES: list[str] = _TABLE["thor_types"]
"""AI2-THOR's types of objects in the spelling of `words_of`; others are not parsed."""
