"""Generates levels of Navigation from seeds, without a simulator: a plan, a task and a start.

Each style of tasks yields pairs of a target and an instruction that no other object of the plan
satisfies. The start is 2.51 to 3 m from the visible target, or 3.5 to 5 m from it with any rotation
(`anywhere`); in `long_horizon` it is farther away, behind a door and out of view.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from vagen.envs.levels import LevelError, Split, content_hash, split_of
from vagen.envs.navigation.config import NavigationConfig, TaskStyle
from vagen.envs.navigation.furniture import KINDS, USES
from vagen.envs.navigation.planner import Planner
from vagen.envs.navigation.rooms import QUARTER, Draw, Plan, Thing, draw_plan
from vagen.envs.navigation.world import Pose, World

MAX_PLANS = 2_000
"""Number of plans per level before its options count as impossible."""

MAX_MOVES = 24
"""Maximum moves to a target: some of the thirty actions are turns."""

START_DISTANCE = (2.51, 3.0)
ANY_DISTANCE = (3.5, 5.0)
FAR_DISTANCE = (3.0, 6.5)
"""Start distances from the target in metres: `long_horizon`, `anywhere`, other styles."""

CLEARLY = 0.7
"""Minimum difference of distances in metres to call an object nearer or farther."""
_STARTS = 16


@dataclass(frozen=True, slots=True)
class NavigationLevel:
    """A furnished plan with a task and a start."""

    plan: Plan
    style: TaskStyle
    target: int
    """Index of the target object."""
    instruction: str
    start: Pose
    moves: int
    """Minimum number of moves into reach of the object."""
    level_hash: str


def sample_level(config: NavigationConfig, seed: int, split: Split) -> NavigationLevel:
    """The level of a seed in a split: the first candidate that satisfies all options.

    Raises:
        LevelError: None of many candidates does.
    """
    draw = Draw(seed)
    in_reach = MAX_MOVES * config.move_metres + config.goal_metres > START_DISTANCE[0]
    for _ in range(MAX_PLANS if in_reach else 0):
        level = _candidate(config, draw, split)
        if level is not None:
            return level
    raise LevelError(
        f"Navigation: none of {MAX_PLANS} furnished plans has a target of "
        f"{', '.join(config.tasks)} that moves of {config.move_metres} m bring nearer than "
        f"{config.goal_metres} m, in split {split!r}; raise success_distance "
        f"or step_size"
    )


def _candidate(config: NavigationConfig, draw: Draw, split: Split) -> NavigationLevel | None:
    style = draw.choice(config.tasks)
    doubles = 1 if style == "complex_instruction" else draw.index(2)
    two_rooms, kinds = style == "long_horizon", config.kinds or KINDS
    plan = draw_plan(draw, two_rooms=two_rooms, doubles=doubles, kinds=kinds)
    task = draw_task(style, draw, plan)
    # The plan alone decides the split, so that splits share no furnished room.
    if task is None or split_of(content_hash(_text(asdict(plan)))) != split:
        return None
    world = World(plan, config.field_of_view)
    start = draw_start(style, draw, world, task, anywhere=config.starts == "anywhere")
    if start is None:
        return None
    content = [asdict(plan), style, task.target, task.instruction, asdict(start)]
    thing = plan.things[task.target]
    planner = Planner(world, (thing.x, thing.z), step=config.move_metres, reach=config.goal_metres)
    moves = planner.moves_needed(start, MAX_MOVES)
    if moves is None:
        return None
    digest = content_hash(_text(content))
    return NavigationLevel(plan, style, task.target, task.instruction, start, moves, digest)


def _text(content: Any) -> str:
    return f"Navigation {json.dumps(content, sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class Task:
    """A target in a plan and its instruction."""

    target: int
    """Index of the target object."""
    instruction: str


def draw_task(style: TaskStyle, draw: Draw, plan: Plan) -> Task | None:
    """A task of a style; None if the plan has none."""
    tasks = _WRITERS[style](draw, plan)
    return draw.choice(tasks) if tasks else None


def draw_start(
    style: TaskStyle, draw: Draw, world: World, task: Task, *, anywhere: bool = False
) -> Pose | None:
    """A start pose with the target visible for some rotation; None if there is none."""
    target = world.plan.things[task.target]
    far = style == "long_horizon"
    low, high = FAR_DISTANCE if far else ANY_DISTANCE if anywhere else START_DISTANCE
    for _ in range(_STARTS):
        away, angle = draw.between(low, high), math.tau * draw.between(0.0, 1.0)
        x = round(target.x + away * math.sin(angle), 2)
        z = round(target.z + away * math.cos(angle), 2)
        turns = draw.shuffled(range(4))
        if not low <= math.hypot(x - target.x, z - target.z) <= high:
            continue
        inside = _room_of(world.plan, x, z)
        if inside is None or (inside == target.room) == far or not world.is_free(x, z):
            continue
        for turn in turns:
            pose = Pose(x, z, QUARTER * turn)
            if (task.target in world.in_view(pose)) != far:
                # `turns` is shuffled, so its first entry is a random rotation.
                return replace(pose, rotation=QUARTER * turns[0]) if anywhere and not far else pose
    return None


def _room_of(plan: Plan, x: float, z: float) -> int | None:
    for index, room in enumerate(plan.rooms):
        if room.west < x < room.east and room.south < z < room.north:
            return index
    return None


def _alone(plan: Plan, *, room: int | None = None) -> list[int]:
    """Objects that are the only one of their type."""
    kinds = [thing.kind for thing in plan.things]
    return [
        index
        for index, thing in enumerate(plan.things)
        if kinds.count(thing.kind) == 1 and room in (None, thing.room)
    ]


def _base(draw: Draw, plan: Plan) -> list[Task]:
    return [
        Task(index, draw.choice(_BASE).format(plan.things[index].kind)) for index in _alone(plan)
    ]


def _common_sense(draw: Draw, plan: Plan) -> list[Task]:
    tasks = []
    for index in _alone(plan):
        for use in plan.things[index].spec.uses:
            fit = [
                thing
                for thing in plan.things
                if use in thing.spec.uses or use in thing.spec.passes_for
            ]
            if len(fit) == 1:
                tasks.append(Task(index, draw.choice(USES[use])))
    return tasks


def _visual_appearance(draw: Draw, plan: Plan) -> list[Task]:
    looks = [(thing.colour, thing.spec.shape) for thing in plan.things]
    return [
        Task(index, draw.choice(_LOOKS).format(colour=colour, shape=shape))
        for index, (colour, shape) in enumerate(looks)
        if looks.count((colour, shape)) == 1
    ]


def _complex_instruction(draw: Draw, plan: Plan) -> list[Task]:
    """Asks for the one of two objects of a type that is nearer to (or farther from) a third."""
    tasks = []
    alone = _alone(plan)
    for one, thing in enumerate(plan.things):
        for two, other in enumerate(plan.things):
            if one == two or thing.kind != other.kind:
                continue
            for anchor in alone:
                mark = plan.things[anchor]
                near, away = _apart(thing, mark), _apart(other, mark)
                if abs(near - away) < CLEARLY:
                    continue
                sentence = draw.choice(_NEARER if near < away else _FARTHER)
                bystander = plan.things[draw.choice(alone)].kind
                opening = draw.choice(_ASIDES).format(bystander)
                tasks.append(Task(one, opening + sentence.format(thing.kind, mark.kind)))
    return tasks


def _long_horizon(draw: Draw, plan: Plan) -> list[Task]:
    return [
        Task(index, draw.choice(_SEARCH).format(plan.things[index].kind)) for index in _alone(plan)
    ]


def _apart(one: Thing, other: Thing) -> float:
    return math.hypot(one.x - other.x, one.z - other.z)


_WRITERS: dict[TaskStyle, Callable[[Draw, Plan], list[Task]]] = {
    "base": _base,
    "common_sense": _common_sense,
    "visual_appearance": _visual_appearance,
    "complex_instruction": _complex_instruction,
    "long_horizon": _long_horizon,
}

_BASE = ("Go to the {}.", "Walk up to the {}.", "Find the {} and go to it.")
_SEARCH = (
    "The {} is out of sight. Look for it and go to it.",
    "Search for the {}, which cannot be seen from here, and go to it.",
)
_LOOKS = (
    "Go to the {colour} thing that is {shape}.",
    "Find what is {colour} and {shape}, and go to it.",
)
_NEARER = (
    "Of the two things called {0}, go to the one that is nearer to the {1}.",
    "Go to the {0} that stands closest to the {1}.",
)
_FARTHER = (
    "Of the two things called {0}, go to the one that is farther from the {1}.",
    "Go to the {0} that stands farthest from the {1}.",
)
_ASIDES = (
    "",
    "I looked for my keys behind the {} and found them. ",
    "The {} does not matter now. ",
)
