"""The gripper's three primitives in whole millimetres, and their nominal effects.

The frame is the table's: x towards the camera, y to the right of the image, z up, in millimetres;
the table's surface is z = 0. States are the environment's true states; nominal effects follow from
geometry without a simulator.
"""

import copy
import math
import re
from typing import Literal, NamedTuple, TypeAlias

from vagen.envs.base import State

Point: TypeAlias = tuple[int, int, int]
PrimitiveName = Literal["pick", "place", "push"]

WORKSPACE: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] = (
    (-100, 150),
    (-200, 200),
    (10, 200),
)
"""Minimum and maximum x, y, z of the gripper; other values are clipped."""

CUBE = 40
"""Side of a cube."""
APPLE = 48
"""Height and width of the apple."""
HOME: Point = (-150, 0, 225)
"""Rest position of the empty gripper: behind the workspace, out of view."""
LIFT = 200
"""Height at which the gripper carries objects."""
FINGER = 9
"""Half the fingers' width along x; closed, they are about as deep along y."""
OPENING = 38
"""From the gripper's centre to the inner face of an open finger, along y."""
PALM_REACH = 14
"""Maximum distance from its centre, along x, at which an object can be gripped."""

DRAWER_HALF = 50
"""From the tray's centre to its inner front, along x."""
DRAWER_FRONT = 62
"""From the tray's centre to the outer face of its front, along x."""
DRAWER_WIDTH = 70
"""Half the width of the drawer's front."""
DRAWER_CLOSED = -110
"""x of the tray's centre with the drawer closed."""
DRAWER_TRAVEL = 105
"""Maximum opening of the drawer."""
CABINET_TOP = 104
"""Height of the cabinet."""
TRAY_FLOOR = 10
"""Height of the tray's inner floor."""
TRAY_REST = TRAY_FLOOR + APPLE // 2
"""Height of an apple's centre in the tray; the drawer's z."""

_ACTION = re.compile(r"(pick|place|push)\s*\(([^()]*)\)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[0-9]{1,5}")


class Primitive(NamedTuple):
    """An action: `pick` and `place` at a point, `push` along a line."""

    kind: PrimitiveName
    start: Point
    end: Point | None = None
    """End of a push."""

    def __str__(self) -> str:
        numbers = (*self.start, *(self.end or ()))
        return f"{self.kind}({','.join(map(str, numbers))})"


def read_primitive(text: str) -> Primitive | None:
    """Parses a primitive, clipped to the workspace; None if invalid.

    Coordinates are integers, optionally signed; spaces and case are ignored.
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        return None
    kind: PrimitiveName = match[1].lower()  # type: ignore[assignment]
    fields = [field.strip() for field in match[2].split(",")]
    if len(fields) != (6 if kind == "push" else 3):
        return None
    if not all(_NUMBER.fullmatch(field) for field in fields):
        return None
    numbers = [int(field) for field in fields]
    return Primitive(kind, _clip(numbers[:3]), _clip(numbers[3:]) if kind == "push" else None)


def nominal(state: State, action: Primitive) -> State:
    """The nominal state after `action`; does not change `state`."""
    after = copy.deepcopy(state)
    if action.kind == "pick":
        _nominal_pick(after, action.start)
    elif action.kind == "place":
        _nominal_place(after, action.start)
    else:
        assert action.end is not None
        _nominal_push(after, action.start, action.end)
    if after["held"] is None:
        after["gripper"] = list(HOME)
    return after


def resting_on(state: State, name: str) -> str | None:
    """The object on top of `name`; None if there is none."""
    x, y, z = state["objects"][name]
    reach = CUBE * 3 // 4
    for other, (ox, oy, oz) in state["objects"].items():
        if other in (name, "drawer", state["held"]) or oz - z <= CUBE // 2:
            continue
        if abs(ox - x) < reach and abs(oy - y) < reach:
            return other
    return None


def height_below(state: State, x: float, y: float, without: str) -> int:
    """Height of the surface under (x, y): the table, the tray's floor, or the top of a cube."""
    top = 0
    for name, (ox, oy, oz) in state["objects"].items():
        if name == without:
            continue
        if name == "drawer":
            if abs(x - ox) < DRAWER_HALF and abs(y - oy) < DRAWER_WIDTH:
                top = max(top, TRAY_FLOOR)
        elif abs(x - ox) < CUBE // 2 and abs(y - oy) < CUBE // 2:
            top = max(top, oz + CUBE // 2)
    return top


def half_height(name: str) -> int:
    """Distance from the centre of an object to its bottom."""
    return (APPLE if name == "apple" else CUBE) // 2


def _clip(point: list[int]) -> Point:
    x, y, z = (
        min(max(value, low), high) for value, (low, high) in zip(point, WORKSPACE, strict=True)
    )
    return x, y, z


def _nominal_pick(state: State, point: Point) -> None:
    if state["held"] is not None:
        _drop(state)
    x, y, z = point
    for name, place in state["objects"].items():
        reach = half_height(name)
        if name == "drawer" or abs(place[2] - z) > reach:
            continue
        if abs(place[0] - x) <= PALM_REACH and abs(place[1] - y) < OPENING - reach:
            # The fingers close along y, which centres the object between them.
            state["objects"][name] = [place[0], y, LIFT + place[2] - z]
            state["held"] = name
            state["gripper"] = [x, y, LIFT]
            return


def _nominal_place(state: State, point: Point) -> None:
    name = state["held"]
    if name is None:
        return
    held, gripper = state["objects"][name], state["gripper"]
    state["objects"][name] = [
        at + there - here for at, there, here in zip(point, held, gripper, strict=True)
    ]
    _drop(state)


def _drop(state: State) -> None:
    name = state["held"]
    x, y, _ = state["objects"][name]
    state["objects"][name][2] = height_below(state, x, y, name) + half_height(name)
    state["held"] = None


def _nominal_push(state: State, start: Point, end: Point) -> None:
    if state["held"] is not None:
        held, gripper = state["objects"][state["held"]], state["gripper"]
        state["objects"][state["held"]] = [
            at + there - here
            for at, there, here in zip((*end[:2], LIFT), held, gripper, strict=True)
        ]
        state["gripper"] = [*end[:2], LIFT]
        return
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    if length < 1:
        return
    ux, uy = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    if "drawer" in state["objects"] and _push_drawer(state, start, end):
        return
    for name, place in state["objects"].items():
        if name == "drawer":
            continue
        reach = half_height(name) + FINGER
        dx, dy = place[0] - start[0], place[1] - start[1]
        along, aside = dx * ux + dy * uy, dy * ux - dx * uy
        if (
            0 < along < length + reach
            and abs(aside) < half_height(name)
            and (abs(place[2] - start[2]) < half_height(name))
        ):
            step = length + reach - along
            place[0], place[1] = round(place[0] + ux * step), round(place[1] + uy * step)


def _push_drawer(state: State, start: Point, end: Point) -> bool:
    """Pushes the drawer in, with its content; returns whether the push met its front."""
    drawer = state["objects"]["drawer"]
    front = drawer[0] + DRAWER_FRONT + FINGER
    in_reach = abs(start[1] - drawer[1]) < DRAWER_WIDTH and start[2] < TRAY_FLOOR + DRAWER_WIDTH
    if not in_reach or start[0] < front or end[0] >= front:
        return False
    moved = max(end[0] - DRAWER_FRONT - FINGER, DRAWER_CLOSED) - drawer[0]
    for name, (x, y, _) in state["objects"].items():
        if (
            name != "drawer"
            and abs(x - drawer[0]) < DRAWER_HALF
            and (abs(y - drawer[1]) < DRAWER_WIDTH)
        ):
            state["objects"][name][0] += moved
    drawer[0] += moved
    return True
