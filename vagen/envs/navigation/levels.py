"""Generates levels of Navigation from seeds, without a simulator."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from vagen.envs.levels import LevelError, Split, content_hash, split_of
from vagen.envs.navigation.catalogue import KINDS
from vagen.envs.navigation.config import NavigationConfig, TaskStyle
from vagen.envs.navigation.planner import Planner
from vagen.envs.navigation.rooms import Draw, Plan, draw_plan
from vagen.envs.navigation.tasks import START_DISTANCE, draw_start, draw_task
from vagen.envs.navigation.world import Pose, World

MAX_PLANS = 2_000
"""Number of plans per level before its options count as impossible."""

MAX_MOVES = 24
"""Maximum moves to a target: some of the thirty actions are turns."""


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
