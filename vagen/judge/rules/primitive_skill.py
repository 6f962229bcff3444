"""Rules of PrimitiveSkill: where things are in millimetres, and what the gripper holds."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from vagen.envs.base import State
from vagen.envs.primitive_skill.primitives import DRAWER_CLOSED
from vagen.envs.primitive_skill.tasks import CLOSED_WITHIN
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.table.reader import VOCABULARY, Place, Statement, read_statement

WITHIN = 7
"""Millimetres that a stated x or y may be off."""
WITHIN_HEIGHT = 10
"""Millimetres that a stated z may be off."""
ON_TOP, BESIDE = 20, 30
"""A thing is on another if it is this much higher and no farther aside."""
MOST_MENTIONS = 3
"""How often a description may place one thing."""


class Truth(NamedTuple):
    """What a right description of a table says."""

    places: Mapping[str, Place]
    held: str | None
    """What the gripper holds."""

    def is_on(self, upper: str, lower: str) -> bool:
        """Whether a thing lies on another or, for a drawer, in it."""
        if upper not in self.places or lower not in self.places or upper == self.held:
            return False
        above, below = self.places[upper], self.places[lower]
        if lower == "drawer":
            return abs(above.x - below.x) < 50 and abs(above.y - below.y) < 70
        aside = max(abs(above.x - below.x), abs(above.y - below.y))
        return aside <= BESIDE and (above.z or 0) - (below.z or 0) > ON_TOP

    def is_closed(self) -> bool:
        """Whether the drawer is closed."""
        return "drawer" in self.places and self.places["drawer"].x <= DRAWER_CLOSED + CLOSED_WITHIN


class PrimitiveSkillRules(Rules[Statement, Truth]):
    """A description places things by coordinates and says what is held.

    The score is the F1 over statements: each thing of the table, and what is held if anything is,
    should be stated once. What needs no coordinates to be said (nothing is held, a drawer is open,
    one thing lies on another) earns nothing if it is so, and counts as a wrong statement if not.
    """

    env_name: ClassVar[str] = "PrimitiveSkill"
    vocabulary: ClassVar[frozenset[str]] = VOCABULARY

    def read(self, text: str) -> Reading[Statement]:
        """The statements of sentences or of a dict."""
        statement = read_statement(text)
        if statement is None:
            return Reading(Statement(), understood=False)
        flags = []
        if not statement.places and not statement.held:
            flags.append("no_relation" if statement.says_something else "no_entity")
        if statement.contradiction or len(statement.held) > 1:
            flags.append("contradiction")
        if any(count > MOST_MENTIONS for count in statement.mentions.values()):
            flags.append("repeated")
        return Reading(statement, tuple(flags))

    def truth(self, state: State) -> Truth:
        """Where everything is."""
        places = {name: Place(*place) for name, place in state["objects"].items()}
        return Truth(MappingProxyType(places), state["held"])

    def score(self, content: Statement, truth: Truth) -> tuple[float, tuple[str, ...]]:
        """F1 of the statements; more things than the table has are worth none."""
        if len(content.places) > len(truth.places):
            return 0.0, ("contradiction",)
        right = float(sum(name == truth.held for name in content.held))
        for name, place in content.places.items():
            right += _credit(place, truth.places.get(name))
        stated = len(content.places) + len(content.held) + _mistakes(content, truth)
        expected = len(truth.places) + (truth.held is not None)
        return 2 * right / (stated + expected), ()

    def has_changed(self, content: Statement, before: Truth, after: Truth) -> bool:
        """Whether a thing that is placed moved beyond the tolerance, or another thing is held."""
        if before.held != after.held:
            return True
        return any(
            _credit(before.places[name], after.places[name]) < 1
            for name in content.places
            if name in before.places and name in after.places
        )

    def describe(self, state: State) -> str:
        """Where each thing is and what is held, a sentence each."""
        truth = self.truth(state)
        lines = [
            "Coordinates (x, y, z) are millimetres: x towards the camera, y to the right, z up. "
            f"A stated x or y may be off by {WITHIN}, z by {WITHIN_HEIGHT}."
        ]
        lines += [
            f"The {name} is at ({place.x}, {place.y}, {place.z})."
            for name, place in sorted(truth.places.items())
        ]
        lines.append(f"The gripper holds {f'the {truth.held}' if truth.held else 'nothing'}.")
        if "drawer" in truth.places:
            lines.append(f"The drawer is {'closed' if truth.is_closed() else 'open'}.")
        return "\n".join(lines)

    def canonical(self, state: State) -> str:
        """Things with their places by name, and what is held: the order says nothing."""
        return json.dumps([sorted(state["objects"].items()), state["held"]])


def _credit(place: Place, true: Place | None) -> float:
    """1 for a right position, .5 for a right (x, y) without z, else 0."""
    if true is None or abs(place.x - true.x) > WITHIN or abs(place.y - true.y) > WITHIN:
        return 0.0
    if place.z is None or true.z is None:
        return 0.5
    return float(abs(place.z - true.z) <= WITHIN_HEIGHT)


def _mistakes(content: Statement, truth: Truth) -> int:
    """Statements without coordinates that are wrong."""
    wrong = sum(not truth.is_on(upper, lower) for upper, lower in content.on)
    wrong += sum(name == truth.held for name in content.not_held)
    wrong += content.nothing_held and truth.held is not None
    wrong += content.drawer_closed is not None and content.drawer_closed != truth.is_closed()
    return wrong
