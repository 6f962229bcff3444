"""Kinds of rooms, places and objects, and their uses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlaceKind:
    """A kind of place for objects."""

    room: str
    preposition: str = "on"
    """Objects are `in` or `on` it."""
    openable: bool = False
    most: int = 1
    """Maximum number in a home; at least one if its room exists."""


PLACES: dict[str, PlaceKind] = {
    "countertop": PlaceKind("kitchen", most=2),
    "cabinet": PlaceKind("kitchen", "in", openable=True, most=4),
    "drawer": PlaceKind("kitchen", "in", openable=True, most=3),
    "fridge": PlaceKind("kitchen", "in", openable=True),
    "microwave": PlaceKind("kitchen", "in", openable=True),
    "sink": PlaceKind("kitchen", "in"),
    "diningtable": PlaceKind("kitchen"),
    "sofa": PlaceKind("living room"),
    "coffeetable": PlaceKind("living room"),
    "shelf": PlaceKind("living room", most=3),
    "desk": PlaceKind("living room"),
    "bed": PlaceKind("bedroom"),
    "dresser": PlaceKind("bedroom", "in", openable=True),
    "sidetable": PlaceKind("bedroom", most=2),
    "wardrobe": PlaceKind("bedroom", "in", openable=True),
    "bathtub": PlaceKind("bathroom", "in"),
    "washstand": PlaceKind("bathroom"),
    "hamper": PlaceKind("bathroom", "in", openable=True),
}
ROOMS = ("kitchen", "living room", "bedroom", "bathroom")
LAMP_PLACES = ("desk", "sidetable", "countertop")
"""Possible places of a lamp, in order of preference."""

HEATER, COOLER, CLEANER = "microwave", "fridge", "sink"
LAMP = "desklamp"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object."""

    places: tuple[str, ...]
    """Kinds of places where it is likely, in order; a task may require any place."""
    heatable: bool = False
    coolable: bool = False
    cleanable: bool = False


_SURFACES = ("countertop", "diningtable", "coffeetable", "desk", "sidetable")
_DISHES = ("countertop", "cabinet", "diningtable", "sink", "coffeetable")
_FOOD = ("countertop", "fridge", "diningtable", "sink")
_CUTLERY = ("drawer", "countertop", "diningtable", "sink")
_PAPERS = ("desk", "shelf", "bed", "sofa", "coffeetable", "sidetable", "drawer")

OBJECTS: dict[str, ObjectKind] = {
    "mug": ObjectKind((*_DISHES, "desk", "shelf"), True, True, True),
    "cup": ObjectKind((*_DISHES, "shelf"), True, True, True),
    "plate": ObjectKind(_DISHES, True, True, True),
    "bowl": ObjectKind(_DISHES, False, True, True),
    "pan": ObjectKind(("countertop", "cabinet", "sink", "diningtable"), False, True, True),
    "knife": ObjectKind(_CUTLERY, False, False, True),
    "fork": ObjectKind(_CUTLERY, False, False, True),
    "spoon": ObjectKind(_CUTLERY, False, False, True),
    "apple": ObjectKind(_FOOD, True, True, True),
    "tomato": ObjectKind(_FOOD, True, True, True),
    "potato": ObjectKind(_FOOD, True, True, True),
    "egg": ObjectKind(_FOOD, True, True, True),
    "bread": ObjectKind(("countertop", "diningtable", "cabinet"), True, True),
    "book": ObjectKind(_PAPERS),
    "newspaper": ObjectKind(_PAPERS),
    "pen": ObjectKind(_PAPERS),
    "pencil": ObjectKind(_PAPERS),
    "phone": ObjectKind((*_SURFACES, "bed", "sofa", "shelf")),
    "keychain": ObjectKind((*_SURFACES, "shelf", "drawer", "dresser")),
    "watch": ObjectKind((*_SURFACES, "dresser", "shelf", "washstand")),
    "pillow": ObjectKind(("bed", "sofa", "wardrobe")),
    "candle": ObjectKind(("shelf", "coffeetable", "washstand", "bathtub", "countertop")),
    "soap": ObjectKind(("washstand", "bathtub", "sink", "cabinet"), False, False, True),
    "towel": ObjectKind(("hamper", "bathtub", "wardrobe", "washstand"), False, False, True),
}


def kind_of(name: str) -> str:
    """The kind of a numbered object: `fridge` of `fridge 1`."""
    return name.rpartition(" ")[0]


def preposition(place: str) -> str:
    """`in` or `on`, depending on the place."""
    return PLACES[kind_of(place)].preposition


def is_openable(place: str) -> bool:
    """Whether a place has a door or a lid."""
    return PLACES[kind_of(place)].openable
