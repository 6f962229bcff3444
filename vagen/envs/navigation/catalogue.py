"""All types of objects in the rooms, and their uses."""

from vagen.envs.navigation.furniture import MAIN, FurnitureType, Mesh, box, legs

_PLAIN = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
_SOFT = ("red", "green", "blue", "purple", "grey", "white", "pink")
_WOOD = ("brown", "white", "black")
_BALL = ("red", "yellow", "green", "blue", "purple", "grey")

_KINDS = (
    FurnitureType(
        "chair",
        (
            *legs(0.46, 0.46, 0.42, "dark wood", 0.05),
            box(0.48, 0.48, 0.42, 0.50),
            box(0.48, 0.06, 0.50, 1.00, z=-0.21),
        ),
        _PLAIN,
        "on four thin legs",
        ("sit",),
        at_wall=False,
    ),
    FurnitureType(
        "sofa",
        (
            box(1.50, 0.75, 0.08, 0.42),
            box(1.50, 0.20, 0.42, 0.85, z=-0.275),
            box(0.18, 0.75, 0.42, 0.62, x=-0.66),
            box(0.18, 0.75, 0.42, 0.62, x=0.66),
            box(0.02, 0.54, 0.42, 0.43, "black", z=0.1),
        ),
        _SOFT,
        "long and low",
        ("sit",),
        ("sleep",),
    ),
    FurnitureType(
        "bed",
        (
            box(1.10, 1.86, 0.0, 0.28, "dark wood"),
            box(1.06, 1.80, 0.28, 0.50, z=0.02),
            box(1.10, 0.06, 0.0, 0.95, "dark wood", z=-0.93),
            box(0.70, 0.36, 0.50, 0.60, "white", z=-0.65),
        ),
        ("red", "green", "blue", "purple", "pink", "yellow"),
        "long and low",
        ("sleep",),
        ("sit",),
    ),
    FurnitureType(
        "table",
        (*legs(1.10, 0.80, 0.72, MAIN, 0.07), box(1.16, 0.86, 0.72, 0.78)),
        _WOOD,
        "on four thin legs",
        ("eat",),
        ("write",),
        at_wall=False,
    ),
    FurnitureType(
        "desk",
        (
            box(0.22, 0.42, 0.0, 1.08, x=-0.45),
            box(0.92, 0.42, 0.60, 0.66, x=0.10),
            box(0.06, 0.42, 0.0, 0.60, x=0.53),
        ),
        ("brown",),
        "about as wide as high",
        ("write",),
        ("eat",),
        mesh=Mesh("office_desk", 1.08),
    ),
    FurnitureType(
        "bookshelf",
        (
            box(0.95, 0.03, 0.0, 1.80, z=-0.15),
            *(box(0.05, 0.32, 0.0, 1.80, x=x) for x in (-0.45, 0.45)),
            *(box(0.95, 0.32, y, y + 0.05) for y in (0.0, 0.44, 0.88, 1.32, 1.75)),
            box(0.24, 0.2, 0.05, 0.34, "red", x=-0.26),
            box(0.30, 0.2, 0.49, 0.80, "green", x=0.20),
            box(0.26, 0.2, 0.93, 1.22, "blue", x=-0.22),
            box(0.20, 0.2, 1.37, 1.66, "yellow", x=0.26),
        ),
        _WOOD,
        "tall",
        ("read",),
    ),
    FurnitureType(
        "wardrobe",
        (
            box(1.00, 0.55, 0.0, 1.95),
            box(0.02, 0.01, 0.05, 1.90, "black", z=0.28),
            *(box(0.03, 0.03, 0.85, 1.10, "metal", x=x, z=0.29) for x in (-0.08, 0.08)),
        ),
        _WOOD,
        "tall",
        ("hang clothes",),
    ),
    FurnitureType(
        "fridge",
        (
            box(0.68, 0.66, 0.0, 1.75),
            box(0.68, 0.01, 1.15, 1.17, "black", z=0.335),
            box(0.04, 0.05, 1.22, 1.55, "metal", x=-0.26, z=0.35),
            box(0.04, 0.05, 0.70, 1.10, "metal", x=-0.26, z=0.35),
        ),
        ("white", "grey", "red"),
        "tall",
        ("cool food",),
    ),
    FurnitureType(
        "stove",
        (
            box(0.62, 0.60, 0.0, 0.88),
            *(
                box(0.20, 0.20, 0.88, 0.90, "black", x=x, z=z)
                for x in (-0.16, 0.16)
                for z in (-0.15, 0.15)
            ),
            box(0.46, 0.02, 0.22, 0.58, "glass", z=0.305),
            box(0.50, 0.04, 0.66, 0.70, "metal", z=0.31),
        ),
        ("white", "grey", "red"),
        "about as wide as high",
        ("cook",),
    ),
    FurnitureType(
        "washing machine",
        (
            box(0.62, 0.60, 0.0, 0.88),
            box(0.38, 0.02, 0.24, 0.62, "glass", z=0.305),
            box(0.62, 0.02, 0.74, 0.86, "metal", z=0.30),
        ),
        ("white", "grey"),
        "about as wide as high",
        ("wash clothes",),
    ),
    FurnitureType(
        "sink",
        (
            box(0.18, 0.18, 0.0, 0.70, z=-0.08),
            box(0.56, 0.46, 0.70, 0.86),
            box(0.40, 0.28, 0.86, 0.87, "water", z=0.04),
            box(0.05, 0.05, 0.86, 1.05, "metal", z=-0.18),
        ),
        ("white", "pink", "green"),
        "about as wide as high",
        ("wash hands",),
    ),
    FurnitureType(
        "bathtub",
        (box(1.50, 0.72, 0.0, 0.56), box(1.34, 0.56, 0.56, 0.57, "water")),
        ("white", "pink", "green"),
        "long and low",
        ("bathe",),
        ("wash hands",),
    ),
    FurnitureType(
        "television",
        (
            box(1.05, 0.40, 0.0, 0.45, "dark wood"),
            box(0.20, 0.10, 0.45, 0.53, z=-0.05),
            box(0.98, 0.06, 0.53, 1.10, z=-0.05),
            box(0.92, 0.01, 0.56, 1.07, "glass", z=-0.015),
        ),
        ("black", "grey", "white"),
        "about as wide as high",
        ("watch a film",),
    ),
    FurnitureType(
        "piano",
        (
            box(1.30, 0.32, 0.0, 1.12, z=-0.12),
            box(1.30, 0.26, 0.55, 0.68, z=0.16),
            box(1.18, 0.14, 0.68, 0.70, "white", z=0.19),
            *legs(1.24, 0.24, 0.55, MAIN)[1::2],
        ),
        ("black", "brown", "white"),
        "about as wide as high",
        ("make music",),
    ),
    FurnitureType(
        "lamp",
        (
            box(0.30, 0.30, 0.0, 0.04, "black"),
            box(0.04, 0.04, 0.04, 1.35, "black"),
            box(0.40, 0.40, 1.30, 1.68),
        ),
        ("yellow", "red", "green", "blue", "orange", "pink"),
        "tall",
        ("light the room",),
    ),
    FurnitureType(
        "plant",
        (
            box(0.36, 0.36, 0.0, 0.36, "brown"),
            box(0.06, 0.06, 0.36, 0.70, "dark wood"),
            box(0.58, 0.58, 0.62, 0.90),
            box(0.42, 0.42, 0.90, 1.14),
            box(0.22, 0.22, 1.14, 1.32),
        ),
        ("green",),
        "pointed",
        ("water flowers",),
        at_wall=False,
    ),
    FurnitureType(
        "bin",
        (
            box(0.36, 0.36, 0.0, 0.52),
            box(0.40, 0.40, 0.52, 0.58),
            box(0.28, 0.28, 0.58, 0.585, "black"),
        ),
        ("grey", "blue", "green", "red", "yellow"),
        "about as wide as high",
        ("throw rubbish away",),
        at_wall=False,
    ),
    FurnitureType(
        "suitcase",
        (
            box(0.52, 0.24, 0.04, 0.68),
            *(box(0.06, 0.20, 0.0, 0.04, "black", x=x) for x in (-0.2, 0.2)),
            *(box(0.03, 0.03, 0.68, 0.84, "metal", x=x) for x in (-0.12, 0.12)),
            box(0.27, 0.03, 0.84, 0.87, "black"),
        ),
        ("red", "orange", "blue", "purple", "pink", "black"),
        "about as wide as high",
        ("pack for a journey",),
        at_wall=False,
    ),
    FurnitureType(
        "ball",
        (box(0.34, 0.34, 0.03, 0.37),),
        _BALL,
        "round",
        ("play",),
        at_wall=False,
        mesh=Mesh("ball_{colour}", 0.40),
    ),
    FurnitureType(
        "traffic cone",
        (box(0.36, 0.36, 0.0, 0.06), box(0.14, 0.14, 0.06, 0.58)),
        ("orange",),
        "pointed",
        ("warn drivers",),
        at_wall=False,
        mesh=Mesh("cone", 0.60),
    ),
    FurnitureType(
        "rubber duck",
        (box(0.40, 0.28, 0.0, 0.22), box(0.20, 0.20, 0.22, 0.42, x=0.08)),
        ("yellow",),
        "about as wide as high",
        ("float in a bath",),
        ("play",),
        at_wall=False,
        mesh=Mesh("duckie", 0.42),
    ),
    FurnitureType(
        "barrel",
        (box(0.48, 0.48, 0.0, 0.80),),
        ("blue",),
        "round",
        ("store oil",),
        ("throw rubbish away",),
        at_wall=False,
        mesh=Mesh("barrel", 0.80),
    ),
)

KINDS: dict[str, FurnitureType] = {kind.name: kind for kind in _KINDS}
"""All types by name."""

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
