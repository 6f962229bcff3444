"""The four tasks: instructions, success, stages, and plans.

All functions read only the true state, so that the rewards, the expert, its predictions and the
potential use the same tests.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import hypot
from typing import Literal, get_args

from vagen.envs.base import State
from vagen.envs.primitive_skill.primitives import (
    CUBE,
    DRAWER_CLOSED,
    DRAWER_FRONT,
    DRAWER_HALF,
    DRAWER_WIDTH,
    FINGER,
    TRAY_REST,
    WORKSPACE,
    Point,
    Primitive,
    half_height,
    height_below,
    nominal,
    resting_on,
)

Task = Literal["AlignTwoCube", "PlaceTwoCube", "StackThreeCube", "PutAppleInDrawer"]
TASKS: tuple[Task, ...] = get_args(Task)

ALIGNED = 10
"""Maximum |x| of an aligned cube."""
TARGETS: tuple[tuple[int, int], tuple[int, int]] = ((80, -100), (80, 100))
"""Left and right target of PlaceTwoCube."""
TARGET_RADIUS = 50
CLOSED_WITHIN = 8
"""Maximum opening of a drawer that counts as closed."""
CLEAR_X, CLEAR_Y = 50, 80
"""Minimum distance of two centres in x or in y for an open gripper to fit."""


def instruction(task: Task, names: list[str]) -> str:
    """Instruction of a task.

    Args:
        task: The task.
        names: Objects by role: both cubes; left and right; bottom, middle and top; apple.
    """
    match task:
        case "AlignTwoCube":
            return f"Align the {names[0]} and the {names[1]} on the line x = 0."
        case "PlaceTwoCube":
            (lx, ly), (rx, ry) = TARGETS
            return (
                f"Place the {names[0]} on the left target, at ({lx}, {ly}), and the {names[1]} on "
                f"the right target, at ({rx}, {ry})."
            )
        case "StackThreeCube":
            return (
                f"Stack the {names[1]} on the {names[0]}, and then the {names[2]} on the "
                f"{names[1]}."
            )
        case "PutAppleInDrawer":
            return "Put the apple in the drawer and close the drawer."


def subgoals(state: State) -> list[bool]:
    """Whether each part of the task is done, in the usual order."""
    task, names, held = state["task"], state["goal"], state["held"]
    places = state["objects"]
    if task == "AlignTwoCube":
        return [abs(places[name][0]) <= ALIGNED for name in names]
    if task == "PlaceTwoCube":
        return [
            held != name and hypot(places[name][0] - x, places[name][1] - y) <= TARGET_RADIUS
            for name, (x, y) in zip(names, TARGETS, strict=True)
        ]
    if task == "StackThreeCube":
        return [
            held not in (lower, upper) and _is_on(places[upper], places[lower])
            for lower, upper in pairwise(names)
        ]
    inside = held != "apple" and _is_inside(places["apple"], places["drawer"])
    return [inside, inside and places["drawer"][0] <= DRAWER_CLOSED + CLOSED_WITHIN]


def is_solved(state: State) -> bool:
    """Whether the task is done."""
    return all(subgoals(state))


def stages(state: State) -> int:
    """Number of stages reached: one per gripped object that must move, one per part done."""
    done = subgoals(state)
    gripped = 0
    if state["task"] == "PutAppleInDrawer":
        return 1 if state["held"] == "apple" else 2 * done[0] + done[1]
    for name, is_done in zip(_movers(state), done, strict=True):
        gripped += state["held"] == name and not is_done
    return 2 * sum(done) + gripped


def primitives_left(state: State) -> float:
    """Minimum number of remaining primitives, 0 if the task is done."""
    done, held = subgoals(state), state["held"]
    if state["task"] == "PutAppleInDrawer":
        return float((0 if done[0] else 1 if held == "apple" else 2) + (not done[1]))
    left = 0.0
    for name, is_done in zip(_movers(state), done, strict=True):
        if not is_done:
            left += 1 if held == name else 2
    if held is not None and left == 2 * done.count(False):
        left += 1  # the held object must be put down first
    return left


def plan(state: State, count: int) -> Iterator[Primitive]:
    """Up to `count` primitives towards success, each after the previous one's nominal effect."""
    for _ in range(count):
        if is_solved(state):
            return
        action = _next(state)
        yield action
        state = nominal(state, action)


def are_clear(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether an open gripper can take the object at `one` without touching that at `other`."""
    return abs(one[0] - other[0]) >= CLEAR_X or abs(one[1] - other[1]) >= CLEAR_Y


def _next(state: State) -> Primitive:
    held = state["held"]
    if held is not None:
        return _put(state, held)
    done = subgoals(state)
    if state["task"] == "PutAppleInDrawer" and done[0]:
        return _close(state)
    name = _movers(state)[done.index(False)]
    return _pick(state, name)


def _movers(state: State) -> list[str]:
    """The object that each part of the task moves."""
    return state["goal"][1:] if state["task"] == "StackThreeCube" else state["goal"]


def _pick(state: State, name: str) -> Primitive:
    while (above := resting_on(state, name)) is not None:
        name = above
    x, y, z = state["objects"][name]
    return Primitive("pick", (x, y, z))


def _put(state: State, name: str) -> Primitive:
    """Puts the held object at its destination, or out of the way."""
    spots = [spot for spot in _spots(state, name) if _is_free(state, name, spot)]
    x, y = spots[0] if spots else next(_spots(state, name))
    place, gripper = state["objects"][name], state["gripper"]
    z = height_below(state, x, y, name) + half_height(name)
    if name == "apple" and (x, y) == tuple(state["objects"]["drawer"][:2]):
        z = TRAY_REST
    offset = [there - here for there, here in zip(place, gripper, strict=True)]
    target = (x - offset[0], y - offset[1], z - offset[2])
    clipped = (min(max(v, lo), hi) for v, (lo, hi) in zip(target, WORKSPACE, strict=True))
    return Primitive("place", tuple(clipped))  # type: ignore[arg-type]


def _spots(state: State, name: str) -> Iterator[tuple[int, int]]:
    """Possible destinations of an object, best first."""
    task, names, places = state["task"], state["goal"], state["objects"]
    here = places[name]
    if task == "AlignTwoCube":
        yield 0, here[1]
        yield from ((0, y) for y in range(-180, 181, 20))
    elif task == "PlaceTwoCube":
        x, y = TARGETS[names.index(name)]
        yield x, y
        yield from ((x + dx, y + dy) for dx in (-20, 20) for dy in (-20, 20))
    elif task == "StackThreeCube" and names.index(name) > 0:
        low = places[names[names.index(name) - 1]]
        yield low[0], low[1]
    elif task == "PutAppleInDrawer":
        yield places["drawer"][0], places["drawer"][1]
    for x in range(-60, 141, 50):
        for y in range(-160, 161, 40):
            yield x, y


def _is_free(state: State, name: str, spot: tuple[int, int]) -> bool:
    """Whether the gripper can put an object there, on top of others but clear of the rest."""
    return all(
        are_clear(spot, (x, y)) or max(abs(x - spot[0]), abs(y - spot[1])) < CUBE // 2
        for other, (x, y, _) in state["objects"].items()
        if other not in (name, "drawer")
    )


def _close(state: State) -> Primitive:
    x, y, _ = state["objects"]["drawer"]
    start: Point = (min(x + DRAWER_FRONT + FINGER + 16, WORKSPACE[0][1]), y, 40)
    return Primitive("push", start, (DRAWER_CLOSED + DRAWER_FRONT + FINGER - 2, y, 40))


def _is_on(upper: list[int], lower: list[int]) -> bool:
    aside = hypot(upper[0] - lower[0], upper[1] - lower[1])
    return aside < CUBE / 2 and upper[2] - lower[2] > CUBE / 2


def _is_inside(apple: list[int], drawer: list[int]) -> bool:
    return (
        abs(apple[0] - drawer[0]) < DRAWER_HALF
        and abs(apple[1] - drawer[1]) < DRAWER_WIDTH
        and apple[2] < TRAY_REST + 15
    )
