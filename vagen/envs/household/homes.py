"""Options of Household; generates homes and tasks from seeds."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from vagen.envs.config import EnvConfig
from vagen.envs.household.world import (
    CLEANER,
    COOLER,
    HEATER,
    LAMP,
    LAMP_PLACES,
    OBJECTS,
    PLACES,
    ROOMS,
    Goal,
    TaskKind,
    World,
    kind_of,
)
from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of


class HouseholdConfig(EnvConfig):
    """Options of Household."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "success": 10.0, "step": 0.0},
        "vagen-new": {"format": 0.02, "success": 1.0, "step": 0.0},
    }

    render_mode: Literal["text"] = "text"
    """Always `text`."""
    max_actions_per_step: PositiveInt = 1
    """Maximum actions in one response."""
    max_steps: PositiveInt = 50
    """Actions until truncation."""
    rooms: int = Field(4, ge=1, le=4)
    """Number of rooms, including a kitchen."""
    objects: int = Field(20, ge=4, le=40)
    """Number of objects, including those of the task."""
    tasks: tuple[TaskKind, ...] = ("put", "clean", "heat", "cool", "examine", "two")
    """Kinds of tasks, drawn with equal probability."""
    show_commands: bool = False
    """Whether each observation lists the commands that have an effect."""

    @field_validator("tasks")
    @classmethod
    def _some_task(cls, tasks: tuple[TaskKind, ...]) -> tuple[TaskKind, ...]:
        if not tasks or len(set(tasks)) < len(tasks):
            raise ValueError("names each kind of task once, and at least one")
        return tasks


@dataclass(frozen=True, slots=True)
class HouseholdLevel:
    """A home with a feasible task."""

    state: dict[str, Any]
    """Result of `World.to_state`."""
    level_hash: str


def sample_level(config: HouseholdConfig, seed: int, split: Split) -> HouseholdLevel:
    """The home of a seed in a split.

    Raises:
        LevelError: None of many candidates fits.
    """
    rng = Random(seed)
    for _ in range(MAX_CANDIDATES // 10):
        world = _draw(rng, config)
        if world is None or world.is_done():
            continue
        state = world.to_state()
        digest = content_hash("Household " + json.dumps(state, sort_keys=True))
        if split_of(digest) == split:
            return HouseholdLevel(state, digest)
    raise LevelError(
        f"Household: no home of {config.rooms} rooms has a task of {', '.join(config.tasks)} in "
        f"split {split!r}; allow more rooms or tasks"
    )


def _draw(rng: Random, config: HouseholdConfig) -> World | None:
    """A home with a task; None if the drawn task is not possible in it."""
    rooms: dict[str, list[str]] = {room: [] for room in _some_rooms(rng, config.rooms)}
    for kind, place in PLACES.items():
        if place.room in rooms:
            count = 1 + draw_index(rng, place.most)
            rooms[place.room] += [f"{kind} {number + 1}" for number in range(count)]
    places = [place for held in rooms.values() for place in held]
    kinds = {kind_of(place) for place in places}
    goal = _draw_goal(rng, config.tasks[draw_index(rng, len(config.tasks))], kinds)
    if goal is None:
        return None
    lamp_place = next(place for kind in LAMP_PLACES for place in places if kind_of(place) == kind)
    return World(
        goal, rooms, _scatter(rng, config.objects, goal, places), {f"{LAMP} 1": lamp_place}
    )


def _some_rooms(rng: Random, count: int) -> list[str]:
    others = list(ROOMS[1:])
    chosen = [ROOMS[0], *(others.pop(draw_index(rng, len(others))) for _ in range(count - 1))]
    return [room for room in ROOMS if room in chosen]


def _draw_goal(rng: Random, task: TaskKind, kinds: set[str]) -> Goal | None:
    able = {
        "clean": lambda kind: kind.cleanable,
        "heat": lambda kind: kind.heatable,
        "cool": lambda kind: kind.coolable,
    }.get(task, lambda kind: True)
    objects = [name for name, kind in OBJECTS.items() if able(kind) and kinds & set(kind.places)]
    name = objects[draw_index(rng, len(objects))]
    if task == "examine":
        return Goal(task, name, LAMP)
    appliance = {"clean": CLEANER, "heat": HEATER, "cool": COOLER}.get(task)
    places = [
        kind for kind in OBJECTS[name].places if kind in kinds and kind not in (appliance, HEATER)
    ]
    return Goal(task, name, places[draw_index(rng, len(places))]) if places else None


def _scatter(rng: Random, count: int, goal: Goal, places: list[str]) -> dict[str, str]:
    """Puts objects, including those of the task, at likely places."""
    kinds = {kind_of(place) for place in places}
    expected = [name for name, kind in OBJECTS.items() if kinds & set(kind.places)]
    drawn = [goal.object] * (goal.count + draw_index(rng, 2))
    drawn += [expected[draw_index(rng, len(expected))] for _ in range(count - len(drawn))]
    where: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for name in drawn:
        numbers[name] = numbers.get(name, 0) + 1
        spots = [place for place in places if kind_of(place) in OBJECTS[name].places]
        where[f"{name} {numbers[name]}"] = spots[draw_index(rng, len(spots))]
    return where
