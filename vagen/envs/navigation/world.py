"""The space of a plan: free positions, moves, and visibility.

Collisions are those of MiniWorld: the agent is a circle that must not come nearer to a wall, or to
the circle of an object, than their radii. A move that would end in one, or pass through one (steps
are longer than MiniWorld's), is not made. Visibility is computed with a ray through each cell of a
coarse image: an object is visible if some rays hit it first. Neither needs a simulator.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vagen.envs.navigation.rooms import (
    AGENT_RADIUS,
    CAMERA_HEIGHT,
    DOOR_HEIGHT,
    DOOR_WIDTH,
    QUARTER,
    WALL_HEIGHT,
    Door,
    Plan,
    Thing,
)

ACTIONS = (
    "moveahead",
    "moveback",
    "moveright",
    "moveleft",
    "rotateright",
    "rotateleft",
    "lookup",
    "lookdown",
)
"""VAGEN's names, in its order."""

BEARINGS = {"moveahead": 0, "moveright": 90, "moveback": 180, "moveleft": 270}
"""Direction of each move, in degrees clockwise from the agent's heading."""
TURNS = {"rotateright": QUARTER, "rotateleft": -QUARTER}
TILT = 30
TILTS = {"lookup": -TILT, "lookdown": TILT}
HORIZONS = (-30, 60)
"""Limits of tilting, in degrees below the horizon, as in AI2-THOR."""

RAYS = 48
"""Number of rays along each side of the image."""
SEEN_RAYS = 4
"""Minimum number of rays that hit a visible object: about a six-hundredth of the image."""

_STRIDE = 0.25
"""Distance between checked points of a move in metres; walls and objects are wider."""
_WALL = 0.01
_STEP_X, _STEP_Z = (0, 1, 0, -1), (1, 0, -1, 0)
"""East and north components of a step at 0, 90, 180 and 270 degrees."""


Corner = tuple[float, float, float]
"""x, y and z in metres."""


@dataclass(frozen=True, slots=True)
class Pose:
    """Position and direction of the agent."""

    x: float
    z: float
    rotation: int
    """Degrees clockwise from north: a multiple of 90."""
    horizon: int = 0
    """Degrees of the view below the horizon: a multiple of 30."""


class World:
    """A plan as space: collisions and visibility."""

    def __init__(self, plan: Plan, field_of_view: float = 100.0) -> None:
        """Prepares a plan; `field_of_view` is the angle of the image's side, in degrees."""
        self.plan = plan
        self.field_of_view = field_of_view
        self._walls = wall_segments(plan)
        self.is_free = functools.cache(self._is_free)
        """Whether the agent can be at an x and a z."""
        self._circles = [(thing.x, thing.z, thing.spec.radius) for thing in plan.things]

    def _is_free(self, x: float, z: float) -> bool:
        if any(math.hypot(x - a, z - b) < AGENT_RADIUS + radius for a, b, radius in self._circles):
            return False
        return all(_distance(x, z, wall) >= AGENT_RADIUS for wall in self._walls)

    def after(self, pose: Pose, action: str, step: float) -> Pose:
        """The pose after an action, unchanged if it is blocked."""
        if action in TURNS:
            return replace(pose, rotation=(pose.rotation + TURNS[action]) % 360)
        if action in TILTS:
            horizon = pose.horizon + TILTS[action]
            return replace(pose, horizon=min(max(horizon, HORIZONS[0]), HORIZONS[1]))
        quarter = (pose.rotation + BEARINGS[action]) % 360 // QUARTER
        pieces = math.ceil(step / _STRIDE)
        x, z = pose.x, pose.z
        for piece in range(1, pieces + 1):
            x = round(pose.x + step * piece / pieces * _STEP_X[quarter], 4)
            z = round(pose.z + step * piece / pieces * _STEP_Z[quarter], 4)
            if not self.is_free(x, z):
                return pose
        return replace(pose, x=x, z=z)

    @functools.cached_property
    def _boxes(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Low and high corners of all boxes, [boxes, 2, 3], and the object of each (-1: wall)."""
        corners = [(low, high) for thing in self.plan.things for low, high, _ in boxes_of(thing)]
        owners = [i for i, thing in enumerate(self.plan.things) for _ in thing.spec.parts]
        for low, high in _door_walls(self.plan):
            corners.append((low, high))
            owners.append(-1)
        return np.array(corners), np.array(owners)

    def hits(self, pose: Pose) -> NDArray[np.intp]:
        """The first hit of each ray of the image.

        Returns:
            Index of the object, or -1 for a wall, floor or ceiling: [RAYS, RAYS], the top row
            first.
        """
        rays, sides = _rays(pose.rotation, pose.horizon, self.field_of_view)
        boxes, owners = self._boxes
        boxes = boxes - np.array((pose.x, CAMERA_HEIGHT, pose.z))
        # A box is outside the image if its farthest corner is outside one of the image's sides.
        farthest = np.where(sides[:, None] > 0, boxes[:, 1], boxes[:, 0])  # [sides, boxes, 3]
        inside = (np.einsum("sbx,sx->sb", farthest, sides) > 0).all(0)
        if not inside.any():
            return np.full((RAYS, RAYS), -1)
        boxes, owners = boxes[inside].astype(np.float32), owners[inside]
        with np.errstate(divide="ignore"):
            slope = 1.0 / rays
        enter = np.zeros((len(rays), len(boxes)), np.float32)
        leave = np.full_like(enter, np.inf)
        for axis in range(3):
            one, two = (np.outer(slope[:, axis], boxes[:, end, axis]) for end in (0, 1))
            np.maximum(enter, np.minimum(one, two), out=enter)
            np.minimum(leave, np.maximum(one, two), out=leave)
        enter[enter > leave] = np.inf
        first = enter.argmin(1)
        missed = np.isinf(enter[np.arange(len(rays)), first])
        return np.where(missed, -1, owners[first]).reshape(RAYS, RAYS)

    def in_view(self, pose: Pose) -> frozenset[int]:
        """Indices of the objects that are visible from a pose."""
        hits = self.hits(pose)
        counts = np.bincount(hits[hits >= 0], minlength=len(self.plan.things))
        return frozenset(np.flatnonzero(counts >= SEEN_RAYS).tolist())


def boxes_of(thing: Thing) -> list[tuple[Corner, Corner, str]]:
    """The boxes of an object in the room: low corner, high corner (x, y, z) and colour of each."""
    quarter = thing.angle // QUARTER
    front_x, front_z = _STEP_X[quarter], _STEP_Z[quarter]
    boxes = []
    for part in thing.spec.parts:
        xs, zs = [], []
        for right, _, front in (part.low, part.high):
            xs.append(thing.x + right * front_z + front * front_x)
            zs.append(thing.z - right * front_x + front * front_z)
        low = (min(xs), part.low[1], min(zs))
        boxes.append((low, (max(xs), part.high[1], max(zs)), part.colour))
    return boxes


def wall_segments(plan: Plan) -> list[tuple[float, float, float, float]]:
    """Walls as (x, z, x, z), without the door."""
    segments = []
    for room in plan.rooms:
        for z in (room.south, room.north):
            segments += _with_door((room.west, z, room.east, z), plan.door)
        for x in (room.west, room.east):
            segments += _with_door((x, room.south, x, room.north), plan.door)
    return segments


def _with_door(
    wall: tuple[float, float, float, float], door: Door | None
) -> list[tuple[float, float, float, float]]:
    x0, z0, x1, z1 = wall
    half = DOOR_WIDTH / 2
    if door is not None and door.along_x and z0 == z1 == door.z and x0 < door.x < x1:
        return [(x0, z0, door.x - half, z0), (door.x + half, z0, x1, z0)]
    if door is not None and not door.along_x and x0 == x1 == door.x and z0 < door.z < z1:
        return [(x0, z0, x0, door.z - half), (x0, door.z + half, x0, z1)]
    return [wall]


def _door_walls(plan: Plan) -> list[tuple[Corner, Corner]]:
    """The wall with the door as boxes: two beside the door and one above."""
    door = plan.door
    if door is None:
        return []
    half, far = DOOR_WIDTH / 2, 50.0
    pieces = []
    for low, high, bottom in ((-far, -half, 0.0), (half, far, 0.0), (-half, half, DOOR_HEIGHT)):
        x = (door.x + low, door.x + high) if door.along_x else (door.x - _WALL, door.x + _WALL)
        z = (door.z - _WALL, door.z + _WALL) if door.along_x else (door.z + low, door.z + high)
        pieces.append(((x[0], bottom, z[0]), (x[1], WALL_HEIGHT, z[1])))
    return pieces


def _distance(x: float, z: float, wall: tuple[float, float, float, float]) -> float:
    """Distance of a point from a segment along x or z."""
    x0, z0, x1, z1 = wall
    return math.hypot(x - min(max(x, x0), x1), z - min(max(z, z0), z1))


@functools.lru_cache(maxsize=64)
def _rays(
    rotation: int, horizon: int, field_of_view: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Directions through the cells of the image, and its four sides.

    Returns:
        Rays (x, y, z), row by row from the top, [RAYS * RAYS, 3]; and inward normals of the
            four sides of the view's pyramid, [4, 3].
    """
    half = math.tan(math.radians(field_of_view / 2))
    offsets = ((np.arange(RAYS) + 0.5) / RAYS * 2 - 1) * half
    tilt, quarter = math.radians(horizon), rotation // QUARTER
    front_x, front_z = _STEP_X[quarter], _STEP_Z[quarter]

    def directions(right: NDArray[np.float64], down: NDArray[np.float64]) -> NDArray[np.float64]:
        ahead = math.cos(tilt) - down * math.sin(tilt)
        up = -math.sin(tilt) - down * math.cos(tilt)
        x = ahead * front_x + right * front_z
        z = ahead * front_z - right * front_x
        return np.stack([x, up, z], -1)

    corners = directions(np.array([-half, half, half, -half]), np.array([-half, -half, half, half]))
    sides = np.cross(corners, np.roll(corners, -1, 0))
    sides *= np.sign(sides @ corners.mean(0))[:, None]
    right, down = np.meshgrid(offsets, offsets)
    return directions(right, down).reshape(-1, 3).astype(np.float32), sides
