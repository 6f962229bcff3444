"""Claims about PrimitiveSkill: positions of objects in millimetres, and the held object."""

import json
from collections.abc import Sequence
from typing import Literal

from vagen.envs.base import State
from vagen.envs.claims import Claim, read_claims, read_object, score_claims

Thing = Literal[
    "red cube", "green cube", "blue cube", "yellow cube", "purple cube", "apple", "drawer"
]
NOTHING = "nothing"
WITHIN, WITHIN_HEIGHT = 7, 10
"""Tolerance of x and y, and of z, in millimetres."""


class At(Claim):
    """Centre of an object in millimetres."""

    phrase = "{thing} at ({x}, {y}, {z})"
    subject = ("thing",)
    thing: Thing
    x: int
    y: int
    z: int

    def agreement(self, true: Claim) -> float:
        """Whether it is within the tolerance."""
        assert isinstance(true, At)
        aside = max(abs(self.x - true.x), abs(self.y - true.y))
        is_near = aside <= WITHIN and abs(self.z - true.z) <= WITHIN_HEIGHT
        return float(self.thing == true.thing and is_near)

    def is_still(self, later: Claim) -> bool:
        """Whether it has not moved beyond the tolerance."""
        return self.agreement(later) == 1.0


class Held(Claim):
    """The object in the gripper."""

    phrase = "{thing} held"
    thing: Thing


CLAIMS = (At, Held)


def truth(state: State) -> list[Claim]:
    """Positions of all objects, and the held one, if any."""
    claims: list[Claim] = [
        At.model_validate({"thing": name, "x": x, "y": y, "z": z})
        for name, (x, y, z) in state["objects"].items()
    ]
    return claims + ([Held(thing=state["held"])] if state["held"] else [])


def record(state: State) -> str:
    """The claims as JSON: `{"red cube": [-70, -40, 20], ..., "held": "nothing"}`."""
    return json.dumps({**state["objects"], "held": state["held"] or NOTHING})


def read(text: str) -> list[Claim] | None:
    """Parses sentences or `record`."""
    found = read_object(text)
    if found is None:
        return read_claims(text, CLAIMS)
    held = found.pop("held", NOTHING)
    parts = [] if held in (NOTHING, None) else [f"{held} held"]
    for thing, place in found.items():
        point = ", ".join(map(str, place)) if isinstance(place, list) else place
        parts.append(f"{thing} at ({point})")
    return read_claims("\n".join(parts), CLAIMS)


def score(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """`score_claims`, but 0 for more positions than objects."""
    count, things = (sum(isinstance(claim, At) for claim in claims) for claims in (said, true))
    return score_claims(said, true) if count <= things else 0.0
