"""Generates floor plans with one or two furnished rooms.

Coordinates are metres on the floor plan, x to the east and z to the north. Angles are in degrees,
clockwise from north, seen from above. All are whole centimetres and quarter turns, so that a plan
has one text and one hash.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from vagen.envs.navigation.furniture import KINDS, FurnitureType

AGENT_RADIUS = 0.20
"""Radius of the agent's collision circle in metres."""
CAMERA_HEIGHT = 1.5
WALL_HEIGHT = 2.74
DOOR_HEIGHT = 2.2
DOOR_WIDTH = 1.4
QUARTER = 90

FLOORS = ("wood", "wood_planks", "floor_tiles_bw", "marble", "concrete_tiles")
WALLS = ("drywall", "stucco", "brick_wall", "cinder_blocks", "white")
"""Textures from MiniWorld."""

_GAP = 0.12
"""Minimum distance between the circles of two objects in metres."""
_TRIES = 40

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Room:
    """A rectangle of floor with walls around it."""

    west: float
    east: float
    south: float
    north: float
    floor: str
    wall: str


@dataclass(frozen=True, slots=True)
class Door:
    """An opening in the wall that two rooms share."""

    x: float
    z: float
    along_x: bool
    """Whether the wall runs east-west."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A piece of furniture at its position."""

    kind: str
    colour: str
    x: float
    z: float
    angle: int
    """Direction of its front in degrees."""
    room: int

    @property
    def name(self) -> str:
        """Its colour and type."""
        return f"{self.colour} {self.kind}"

    @property
    def spec(self) -> FurnitureType:
        """Its type."""
        return KINDS[self.kind]

    @property
    def half_size(self) -> tuple[float, float]:
        """Half of its extent on the floor plan along x and z, in metres."""
        half_x, half_z = self.spec.half_size
        return (half_z, half_x) if self.angle % 180 else (half_x, half_z)


@dataclass(frozen=True, slots=True)
class Plan:
    """The rooms of a level and their furniture."""

    rooms: tuple[Room, ...]
    door: Door | None
    things: tuple[Thing, ...]


class Draw:
    """Random choices from `random()` only: equal in every Python version."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    def index(self, count: int) -> int:
        """A uniform index below `count`."""
        return int(self._rng.random() * count)

    def choice(self, items: Sequence[ItemT]) -> ItemT:
        """A uniform member."""
        return items[self.index(len(items))]

    def shuffled(self, items: Sequence[ItemT]) -> list[ItemT]:
        """All members in a random order."""
        left = list(items)
        return [left.pop(self.index(len(left))) for _ in range(len(left))]

    def between(self, low: float, high: float) -> float:
        """A uniform number in whole centimetres."""
        return round(low + (high - low) * self._rng.random(), 2)


def draw_plan(draw: Draw, *, two_rooms: bool, doubles: int, kinds: Iterable[str]) -> Plan:
    """Generates a furnished plan.

    Args:
        draw: The random generator.
        two_rooms: Whether there is a second room with a door.
        doubles: Number of additional objects of an existing type in the (first) room; 0 makes
            every type in the plan unique.
        kinds: Possible types of objects.

    Returns:
        The plan, with fewer objects if there was no space.
    """
    rooms = [_draw_room(draw, 0.0, 0.0)]
    door = None
    if two_rooms:
        other, door = _draw_neighbour(draw, rooms[0])
        rooms.append(other)
    names = draw.shuffled(sorted(kinds))
    things: list[Thing] = []
    for index in range(len(rooms)):
        wanted = 6 + draw.index(3) - 2 * (len(rooms) - 1)
        chosen = [names.pop() for _ in range(min(wanted, len(names)))]
        if doubles and index == 0:
            twin = next((name for name in chosen if len(KINDS[name].colours) > 1), chosen[0])
            chosen += [twin] * doubles
        for name in sorted(chosen, key=lambda name: -KINDS[name].radius):
            thing = _place(draw, name, index, rooms, door, things)
            if thing is not None:
                things.append(thing)
    return Plan(tuple(rooms), door, tuple(things))


def _draw_room(draw: Draw, west: float, south: float) -> Room:
    width, depth = 5.0 + 0.5 * draw.index(5), 5.0 + 0.5 * draw.index(5)
    return Room(west, west + width, south, south + depth, draw.choice(FLOORS), draw.choice(WALLS))


def _draw_neighbour(draw: Draw, room: Room) -> tuple[Room, Door]:
    """A second room at one of the four walls of the first, and the door between them."""
    side = draw.index(4)
    shape = _draw_room(draw, 0.0, 0.0)
    width, depth = shape.east, shape.north
    if side % 2 == 0:  # north or south: they share a wall along x
        west = room.west + 0.5 * (draw.index(5) - 2)
        south = room.north if side == 0 else room.south - depth
        low, high = max(west, room.west), min(west + width, room.east)
        door = Door(_doorway(draw, low, high), south if side == 0 else room.south, True)
    else:
        south = room.south + 0.5 * (draw.index(5) - 2)
        west = room.east if side == 1 else room.west - width
        low, high = max(south, room.south), min(south + depth, room.north)
        door = Door(west if side == 1 else room.west, _doorway(draw, low, high), False)
    return Room(west, west + width, south, south + depth, shape.floor, shape.wall), door


def _doorway(draw: Draw, low: float, high: float) -> float:
    return draw.between(low + DOOR_WIDTH / 2 + 0.2, high - DOOR_WIDTH / 2 - 0.2)


def _place(
    draw: Draw, name: str, index: int, rooms: list[Room], door: Door | None, things: list[Thing]
) -> Thing | None:
    """An object of a type at a free position; None if there is none."""
    kind, room = KINDS[name], rooms[index]
    worn = {thing.colour for thing in things if thing.kind == name}
    colour = draw.choice([colour for colour in kind.colours if colour not in worn] or kind.colours)
    for _ in range(_TRIES):
        angle = QUARTER * draw.index(4)
        thing = Thing(name, colour, *_spot(draw, kind, room, angle), angle, index)
        if _is_free(thing, door, things):
            return thing
    return None


def _spot(draw: Draw, kind: FurnitureType, room: Room, angle: int) -> tuple[float, float]:
    """A position in the room: with the back to the wall behind it, or anywhere."""
    half_x, half_z = kind.half_size
    if angle % 180:
        half_x, half_z = half_z, half_x
    west, east = room.west + half_x + 0.04, room.east - half_x - 0.04
    south, north = room.south + half_z + 0.04, room.north - half_z - 0.04
    x, z = draw.between(west, east), draw.between(south, north)
    if kind.at_wall:
        if angle % 180:
            x = round(west if angle == QUARTER else east, 2)
        else:
            z = round(south if angle == 0 else north, 2)
    return x, z


def _is_free(thing: Thing, door: Door | None, things: list[Thing]) -> bool:
    if door is not None:
        reach = DOOR_WIDTH / 2 + 0.3 + thing.spec.radius
        if (thing.x - door.x) ** 2 + (thing.z - door.z) ** 2 < reach**2:
            return False
    half_x, half_z = thing.half_size
    for other in things:
        across, along = abs(thing.x - other.x), abs(thing.z - other.z)
        reach = thing.spec.radius + other.spec.radius + _GAP
        if across**2 + along**2 < reach**2:
            return False
        other_x, other_z = other.half_size
        if across < half_x + other_x + _GAP and along < half_z + other_z + _GAP:
            return False
    return True
