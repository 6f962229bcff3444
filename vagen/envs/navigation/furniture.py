"""What stands in the rooms: shapes, sizes, colours, and how language speaks of each thing.

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
class Part:
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
class Kind:
    """A type of thing."""

    name: str
    parts: tuple[Part, ...]
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
        """Metres."""
        return max(part.high[1] for part in self.parts)

    @property
    def radius(self) -> float:
        """Of the circle that holds the agent off, in metres."""
        return max(self.half_size)


def rgb(name: str, main: str) -> Rgb:
    """The colour of a part of a thing whose own colour is `main`."""
    name = main if name == MAIN else name
    return COLOURS.get(name) or _DETAILS[name]


def _box(
    width: float,
    depth: float,
    bottom: float,
    top: float,
    colour: str = MAIN,
    *,
    x: float = 0.0,
    z: float = 0.0,
) -> Part:
    """A box of a width and a depth about (`x`, `z`)."""
    return Part((x - width / 2, bottom, z - depth / 2), (x + width / 2, top, z + depth / 2), colour)


def _legs(width: float, depth: float, height: float, colour: str, thick: float = 0.06):
    """Four legs at the corners of a rectangle."""
    x, z = (width - thick) / 2, (depth - thick) / 2
    return tuple(
        _box(thick, thick, 0.0, height, colour, x=i, z=k) for i in (-x, x) for k in (-z, z)
    )


_PLAIN = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
_SOFT = ("red", "green", "blue", "purple", "grey", "white", "pink")
_WOOD = ("brown", "white", "black")
_BALL = ("red", "yellow", "green", "blue", "purple", "grey")

_KINDS = (
    Kind(
        "chair",
        (
            *_legs(0.46, 0.46, 0.42, "dark wood", 0.05),
            _box(0.48, 0.48, 0.42, 0.50),
            _box(0.48, 0.06, 0.50, 1.00, z=-0.21),
        ),
        _PLAIN,
        "on four thin legs",
        ("sit",),
        at_wall=False,
    ),
    Kind(
        "sofa",
        (
            _box(1.50, 0.75, 0.08, 0.42),
            _box(1.50, 0.20, 0.42, 0.85, z=-0.275),
            _box(0.18, 0.75, 0.42, 0.62, x=-0.66),
            _box(0.18, 0.75, 0.42, 0.62, x=0.66),
            _box(0.02, 0.54, 0.42, 0.43, "black", z=0.1),
        ),
        _SOFT,
        "long and low",
        ("sit",),
        ("sleep",),
    ),
    Kind(
        "bed",
        (
            _box(1.10, 1.86, 0.0, 0.28, "dark wood"),
            _box(1.06, 1.80, 0.28, 0.50, z=0.02),
            _box(1.10, 0.06, 0.0, 0.95, "dark wood", z=-0.93),
            _box(0.70, 0.36, 0.50, 0.60, "white", z=-0.65),
        ),
        ("red", "green", "blue", "purple", "pink", "yellow"),
        "long and low",
        ("sleep",),
        ("sit",),
    ),
    Kind(
        "table",
        (*_legs(1.10, 0.80, 0.72, MAIN, 0.07), _box(1.16, 0.86, 0.72, 0.78)),
        _WOOD,
        "on four thin legs",
        ("eat",),
        ("write",),
        at_wall=False,
    ),
    Kind(
        "desk",
        (
            _box(0.22, 0.42, 0.0, 1.08, x=-0.45),
            _box(0.92, 0.42, 0.60, 0.66, x=0.10),
            _box(0.06, 0.42, 0.0, 0.60, x=0.53),
        ),
        ("brown",),
        "about as wide as high",
        ("write",),
        ("eat",),
        mesh=Mesh("office_desk", 1.08),
    ),
    Kind(
        "bookshelf",
        (
            _box(0.95, 0.03, 0.0, 1.80, z=-0.15),
            *(_box(0.05, 0.32, 0.0, 1.80, x=x) for x in (-0.45, 0.45)),
            *(_box(0.95, 0.32, y, y + 0.05) for y in (0.0, 0.44, 0.88, 1.32, 1.75)),
            _box(0.24, 0.2, 0.05, 0.34, "red", x=-0.26),
            _box(0.30, 0.2, 0.49, 0.80, "green", x=0.20),
            _box(0.26, 0.2, 0.93, 1.22, "blue", x=-0.22),
            _box(0.20, 0.2, 1.37, 1.66, "yellow", x=0.26),
        ),
        _WOOD,
        "tall",
        ("read",),
    ),
    Kind(
        "wardrobe",
        (
            _box(1.00, 0.55, 0.0, 1.95),
            _box(0.02, 0.01, 0.05, 1.90, "black", z=0.28),
            *(_box(0.03, 0.03, 0.85, 1.10, "metal", x=x, z=0.29) for x in (-0.08, 0.08)),
        ),
        _WOOD,
        "tall",
        ("hang clothes",),
    ),
    Kind(
        "fridge",
        (
            _box(0.68, 0.66, 0.0, 1.75),
            _box(0.68, 0.01, 1.15, 1.17, "black", z=0.335),
            _box(0.04, 0.05, 1.22, 1.55, "metal", x=-0.26, z=0.35),
            _box(0.04, 0.05, 0.70, 1.10, "metal", x=-0.26, z=0.35),
        ),
        ("white", "grey", "red"),
        "tall",
        ("cool food",),
    ),
    Kind(
        "stove",
        (
            _box(0.62, 0.60, 0.0, 0.88),
            *(
                _box(0.20, 0.20, 0.88, 0.90, "black", x=x, z=z)
                for x in (-0.16, 0.16)
                for z in (-0.15, 0.15)
            ),
            _box(0.46, 0.02, 0.22, 0.58, "glass", z=0.305),
            _box(0.50, 0.04, 0.66, 0.70, "metal", z=0.31),
        ),
        ("white", "grey", "red"),
        "about as wide as high",
        ("cook",),
    ),
    Kind(
        "washing machine",
        (
            _box(0.62, 0.60, 0.0, 0.88),
            _box(0.38, 0.02, 0.24, 0.62, "glass", z=0.305),
            _box(0.62, 0.02, 0.74, 0.86, "metal", z=0.30),
        ),
        ("white", "grey"),
        "about as wide as high",
        ("wash clothes",),
    ),
    Kind(
        "sink",
        (
            _box(0.18, 0.18, 0.0, 0.70, z=-0.08),
            _box(0.56, 0.46, 0.70, 0.86),
            _box(0.40, 0.28, 0.86, 0.87, "water", z=0.04),
            _box(0.05, 0.05, 0.86, 1.05, "metal", z=-0.18),
        ),
        ("white", "pink", "green"),
        "about as wide as high",
        ("wash hands",),
    ),
    Kind(
        "bathtub",
        (_box(1.50, 0.72, 0.0, 0.56), _box(1.34, 0.56, 0.56, 0.57, "water")),
        ("white", "pink", "green"),
        "long and low",
        ("bathe",),
        ("wash hands",),
    ),
    Kind(
        "television",
        (
            _box(1.05, 0.40, 0.0, 0.45, "dark wood"),
            _box(0.20, 0.10, 0.45, 0.53, z=-0.05),
            _box(0.98, 0.06, 0.53, 1.10, z=-0.05),
            _box(0.92, 0.01, 0.56, 1.07, "glass", z=-0.015),
        ),
        ("black", "grey", "white"),
        "about as wide as high",
        ("watch a film",),
    ),
    Kind(
        "piano",
        (
            _box(1.30, 0.32, 0.0, 1.12, z=-0.12),
            _box(1.30, 0.26, 0.55, 0.68, z=0.16),
            _box(1.18, 0.14, 0.68, 0.70, "white", z=0.19),
            *_legs(1.24, 0.24, 0.55, MAIN)[1::2],
        ),
        ("black", "brown", "white"),
        "about as wide as high",
        ("make music",),
    ),
    Kind(
        "lamp",
        (
            _box(0.30, 0.30, 0.0, 0.04, "black"),
            _box(0.04, 0.04, 0.04, 1.35, "black"),
            _box(0.40, 0.40, 1.30, 1.68),
        ),
        ("yellow", "red", "green", "blue", "orange", "pink"),
        "tall",
        ("light the room",),
    ),
    Kind(
        "plant",
        (
            _box(0.36, 0.36, 0.0, 0.36, "brown"),
            _box(0.06, 0.06, 0.36, 0.70, "dark wood"),
            _box(0.58, 0.58, 0.62, 0.90),
            _box(0.42, 0.42, 0.90, 1.14),
            _box(0.22, 0.22, 1.14, 1.32),
        ),
        ("green",),
        "pointed",
        ("water flowers",),
        at_wall=False,
    ),
    Kind(
        "bin",
        (
            _box(0.36, 0.36, 0.0, 0.52),
            _box(0.40, 0.40, 0.52, 0.58),
            _box(0.28, 0.28, 0.58, 0.585, "black"),
        ),
        ("grey", "blue", "green", "red", "yellow"),
        "about as wide as high",
        ("throw rubbish away",),
        at_wall=False,
    ),
    Kind(
        "suitcase",
        (
            _box(0.52, 0.24, 0.04, 0.68),
            *(_box(0.06, 0.20, 0.0, 0.04, "black", x=x) for x in (-0.2, 0.2)),
            *(_box(0.03, 0.03, 0.68, 0.84, "metal", x=x) for x in (-0.12, 0.12)),
            _box(0.27, 0.03, 0.84, 0.87, "black"),
        ),
        ("red", "orange", "blue", "purple", "pink", "black"),
        "about as wide as high",
        ("pack for a journey",),
        at_wall=False,
    ),
    Kind(
        "ball",
        (_box(0.34, 0.34, 0.03, 0.37),),
        _BALL,
        "round",
        ("play",),
        at_wall=False,
        mesh=Mesh("ball_{colour}", 0.40),
    ),
    Kind(
        "traffic cone",
        (_box(0.36, 0.36, 0.0, 0.06), _box(0.14, 0.14, 0.06, 0.58)),
        ("orange",),
        "pointed",
        ("warn drivers",),
        at_wall=False,
        mesh=Mesh("cone", 0.60),
    ),
    Kind(
        "rubber duck",
        (_box(0.40, 0.28, 0.0, 0.22), _box(0.20, 0.20, 0.22, 0.42, x=0.08)),
        ("yellow",),
        "about as wide as high",
        ("float in a bath",),
        ("play",),
        at_wall=False,
        mesh=Mesh("duckie", 0.42),
    ),
    Kind(
        "barrel",
        (_box(0.48, 0.48, 0.0, 0.80),),
        ("blue",),
        "round",
        ("store oil",),
        ("throw rubbish away",),
        at_wall=False,
        mesh=Mesh("barrel", 0.80),
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""Every type of thing by its name."""

USES: dict[str, tuple[str, ...]] = {
    "sit": (
        "My legs are tired. Go to the thing one sits on.",
        "Find something to sit down on and go there.",
    ),
    "sleep": (
        "It is late and I want to sleep all night. Go to where one does that.",
        "Go to the thing that one sleeps in.",
    ),
    "eat": ("Dinner is ready. Go to where plates would be laid for a meal.",),
    "write": ("I have to write a letter. Go to the thing one writes at.",),
    "read": ("I would like to pick a novel to read. Go to where it would be kept.",),
    "hang clothes": ("These shirts should hang. Go to where clothes are hung.",),
    "cool food": (
        "The milk must stay cold. Go to where it belongs.",
        "Go to the thing that keeps food cold.",
    ),
    "cook": ("I want to fry an egg. Go to the thing one cooks on.",),
    "wash clothes": ("These socks are dirty. Go to the thing that washes clothes.",),
    "wash hands": ("My hands are dirty. Go to where one washes hands.",),
    "bathe": ("I want to lie in hot water. Go to where one does that.",),
    "watch a film": ("I want to watch the news. Go to the thing that shows it.",),
    "make music": ("I want to play a song by hand. Go to the instrument.",),
    "light the room": ("It is getting dark. Go to the thing that gives light.",),
    "water flowers": ("I have a can of water for what grows here. Go to it.",),
    "throw rubbish away": ("This paper is rubbish. Go to where it is thrown away.",),
    "pack for a journey": ("I am leaving on a trip. Go to the thing to pack clothes in.",),
    "play": ("I want to kick something for fun. Go to the toy for that.",),
    "warn drivers": ("There are road works. Go to the thing that warns drivers of them.",),
    "float in a bath": ("A child wants its bath toy. Go to the toy that floats.",),
    "store oil": ("I have oil to store. Go to the container for it.",),
}
"""Instructions by use."""
