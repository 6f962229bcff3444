"""Computes distances and directions of objects, and the true state."""

import math
from dataclasses import dataclass
from typing import Any

from vagen.envs.base import State
from vagen.envs.navigation.world import Pose

DIRECTIONS: dict[str, int] = {
    "ahead": 0,
    "ahead-right": 45,
    "right": 90,
    "behind-right": 135,
    "behind": 180,
    "behind-left": 225,
    "left": 270,
    "ahead-left": 315,
}
"""Directions by name, in degrees clockwise from the agent's heading."""

_NAMES = list(DIRECTIONS)
MAX_OBJECTS = 5
"""Maximum number of visible objects in a state, nearest first."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An object as the simulator knows it."""

    kind: str
    colour: str | None
    x: float
    z: float
    visible: bool
    is_target: bool = False


def planar(pose: Pose, x: float, z: float) -> float:
    """Metres from the agent to a point on the floor plan."""
    return round(math.hypot(x - pose.x, z - pose.z), 4)


def bearing(pose: Pose, x: float, z: float) -> float:
    """Bearing of a point, in degrees clockwise from the agent's heading, in (-180, 180]."""
    angle = math.degrees(math.atan2(x - pose.x, z - pose.z)) - pose.rotation
    return 180.0 - (180.0 - angle) % 360.0


def direction(degrees: float) -> str:
    """The name of the eighth of the circle with a bearing."""
    return _NAMES[math.floor((degrees + 22.5) % 360.0 / 45.0)]


def name_of(entry: dict[str, Any]) -> str:
    """Name of a state's object in texts: colour, if known, and type."""
    return f"{entry['colour']} {entry['type']}" if entry["colour"] else entry["type"]


def state_of(pose: Pose, sightings: list[Sighting], **more: Any) -> State:
    """The true state of a pose.

    Args:
        pose: Pose of the agent.
        sightings: All objects, including the target.
        more: Further entries (`goal_distance`, `instruction`).

    Returns:
        `agent` (x, z in metres, rotation, horizon in degrees), `target`, `objects` (the nearest
        five other visible ones, nearest first) and `others` (further visible ones). Each object has
        `type`, `colour` (None if unknown), `distance` (metres on the floor plan, to the centre),
        `bearing` (degrees, positive to the right), `direction` and `visible`.
    """
    target = next(sighting for sighting in sightings if sighting.is_target)
    seen = [_entry(pose, other) for other in sightings if other.visible and not other.is_target]
    seen.sort(key=lambda entry: entry["distance"])
    return {
        "env_name": "Navigation",
        "agent": {"x": pose.x, "z": pose.z, "rotation": pose.rotation, "horizon": pose.horizon},
        "target": _entry(pose, target),
        "objects": seen[:MAX_OBJECTS],
        "others": seen[MAX_OBJECTS:],
        **more,
    }


def _entry(pose: Pose, sighting: Sighting) -> dict[str, Any]:
    angle = bearing(pose, sighting.x, sighting.z)
    return {
        "type": sighting.kind,
        "colour": sighting.colour,
        "distance": planar(pose, sighting.x, sighting.z),
        "bearing": round(angle, 1),
        "direction": direction(angle),
        "visible": sighting.visible,
    }
