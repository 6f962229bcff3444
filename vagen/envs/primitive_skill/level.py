"""Draws levels, the initial positions of objects, from a seed without a simulator."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of
from vagen.envs.primitive_skill.primitives import (
    DRAWER_CLOSED,
    DRAWER_TRAVEL,
    TRAY_REST,
    Point,
    half_height,
)
from vagen.envs.primitive_skill.tasks import TARGETS, Task, are_clear

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.12, 0.12),
    "green": (0.12, 0.66, 0.2),
    "blue": (0.1, 0.3, 0.9),
    "yellow": (0.95, 0.8, 0.1),
    "purple": (0.6, 0.15, 0.75),
}
"""RGB colours of cubes by name."""

CUBES = {"AlignTwoCube": 2, "PlaceTwoCube": 2, "StackThreeCube": 3, "PutAppleInDrawer": 0}
DECOY_APART = 45
"""Minimum distance along x or y between a decoy and other listed positions, in millimetres."""
MAX_YAW = 15
"""Maximum initial rotation of a cube in degrees."""


@dataclass(frozen=True, slots=True)
class Thing:
    """An object on the table."""

    name: str
    x: int
    y: int
    yaw: int = 0
    """Rotation about the vertical in degrees."""


@dataclass(frozen=True, slots=True)
class SkillLevel:
    """The start of an episode."""

    task: Task
    things: tuple[Thing, ...]
    """Objects by role in the task."""
    order: tuple[str, ...]
    """Order of names in observations, independent of the roles."""
    drawer: tuple[int, int] | None
    """x and y of the tray's centre."""
    level_hash: str


def sample_level(task: Task, seed: int, split: Split) -> SkillLevel:
    """The level of a seed in a split.

    Raises:
        LevelError: None of many candidates fits; this never happens with released tasks.
    """
    rng = Random(f"PrimitiveSkill {task} {seed}")
    draw = _draw_apple if task == "PutAppleInDrawer" else _draw_cubes
    for _ in range(MAX_CANDIDATES):
        drawn = draw(rng, task)
        if drawn is None:
            continue
        things, drawer = drawn
        content = " ".join(f"{t.name},{t.x},{t.y},{t.yaw}" for t in things)
        digest = content_hash(f"PrimitiveSkill {task} {content} {drawer}")
        if split_of(digest) != split:
            continue
        names = [thing.name for thing in things] + ["drawer"] * (drawer is not None)
        return SkillLevel(task, things, tuple(_shuffled(rng, names)), drawer, digest)
    raise LevelError(f"PrimitiveSkill: no level of {task} was found for seed {seed} in {split!r}")


def listed(level: SkillLevel, count: int) -> list[str | Point]:
    """Objects to list in observations, with `count` additional empty positions.

    These are possible positions of such objects, clearly separate from all others; there are fewer
    if there is no space.
    """
    rng = Random(f"PrimitiveSkill decoys {level.level_hash}")
    taken = [(thing.x, thing.y) for thing in level.things]
    if level.drawer is not None:
        taken.append(level.drawer)
    decoys: list[Point] = []
    for _ in range(MAX_CANDIDATES):
        if len(decoys) == count:
            break
        place = _draw_decoy(rng, level)
        if place is not None and all(
            max(abs(place[0] - x), abs(place[1] - y)) >= DECOY_APART for x, y in taken
        ):
            taken.append(place[:2])
            decoys.append(place)
    return _shuffled(rng, [*level.order, *decoys]) if decoys else [*level.order]


def _draw_decoy(rng: Random, level: SkillLevel) -> Point | None:
    """A possible position of one of the level's objects; None if it does not fit."""
    drawer = level.drawer
    if drawer is None:
        spot = (_between(rng, -90, 140), _between(rng, -175, 175))
        partner = level.things[draw_index(rng, len(level.things))]
        fits = FITS[level.task]([spot, (partner.x, partner.y)])
        return (*spot, half_height(partner.name)) if fits else None
    if draw_index(rng, 8) == 0:
        return (*_draw_drawer(rng), TRAY_REST)
    spot = _draw_apple_spot(rng, drawer)
    return None if spot is None else (*spot, half_height("apple"))


ItemT = TypeVar("ItemT")
Drawn = tuple[tuple[Thing, ...], tuple[int, int] | None]


def _draw_cubes(rng: Random, task: Task) -> Drawn | None:
    count = CUBES[task]
    colours = _shuffled(rng, list(COLOURS))[:count]
    places = [(_between(rng, -90, 140), _between(rng, -175, 175)) for _ in range(count)]
    if not FITS[task](places):
        return None
    things = tuple(
        Thing(f"{colour} cube", x, y, _between(rng, -MAX_YAW, MAX_YAW))
        for colour, (x, y) in zip(colours, places, strict=True)
    )
    return things, None


def _draw_apple(rng: Random, task: Task) -> Drawn | None:
    drawer = _draw_drawer(rng)
    spot = _draw_apple_spot(rng, drawer)
    if spot is None:
        return None
    x, y = spot
    return (Thing("apple", x, y),), drawer


def _draw_drawer(rng: Random) -> tuple[int, int]:
    x = DRAWER_CLOSED + _between(rng, DRAWER_TRAVEL - 20, DRAWER_TRAVEL)
    return x, _between(rng, -80, 80)


def _draw_apple_spot(rng: Random, drawer: tuple[int, int]) -> tuple[int, int] | None:
    x, y = _between(rng, -80, 140), _between(rng, -170, 170)
    return None if abs(y - drawer[1]) < 145 and x < 110 else (x, y)


def _all_clear(places: list[tuple[int, int]]) -> bool:
    return all(are_clear(one, other) for i, one in enumerate(places) for other in places[i + 1 :])


def _fits_align(places: list[tuple[int, int]]) -> bool:
    """Whether both must move, and straight paths to the line do not cross."""
    return all(abs(x) >= 35 for x, _ in places) and abs(places[0][1] - places[1][1]) >= 85


def _fits_place(places: list[tuple[int, int]]) -> bool:
    """Whether neither is near a target."""
    return _all_clear(places) and all(
        are_clear(place, target) and abs(place[0] - target[0]) + abs(place[1] - target[1]) > 90
        for place in places
        for target in TARGETS
    )


FITS: dict[str, Callable[[list[tuple[int, int]]], bool]] = {
    "AlignTwoCube": _fits_align,
    "PlaceTwoCube": _fits_place,
    "StackThreeCube": _all_clear,
}


def _between(rng: Random, low: int, high: int) -> int:
    return low + draw_index(rng, high - low + 1)


def _shuffled(rng: Random, names: list[ItemT]) -> list[ItemT]:
    names = list(names)
    for last in range(len(names) - 1, 0, -1):
        other = draw_index(rng, last + 1)
        names[last], names[other] = names[other], names[last]
    return names
