"""The home: kinds of rooms, places and objects, effects of actions, completion of the task.

Places and objects are named by kind and number, such as `fridge 1`. The agent is at one place,
initially in the hall; it sees objects at its place unless that is closed.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

TaskKind = Literal["put", "clean", "heat", "cool", "examine", "two"]


@dataclass(frozen=True, slots=True)
class PlaceKind:
    """A kind of place for objects."""

    room: str
    preposition: str = "on"
    """Objects are `in` or `on` it."""
    openable: bool = False
    most: int = 1
    """Maximum number in a home; at least one if its room exists."""


PLACES: dict[str, PlaceKind] = {
    "countertop": PlaceKind("kitchen", most=2),
    "cabinet": PlaceKind("kitchen", "in", openable=True, most=4),
    "drawer": PlaceKind("kitchen", "in", openable=True, most=3),
    "fridge": PlaceKind("kitchen", "in", openable=True),
    "microwave": PlaceKind("kitchen", "in", openable=True),
    "sink": PlaceKind("kitchen", "in"),
    "diningtable": PlaceKind("kitchen"),
    "sofa": PlaceKind("living room"),
    "coffeetable": PlaceKind("living room"),
    "shelf": PlaceKind("living room", most=3),
    "desk": PlaceKind("living room"),
    "bed": PlaceKind("bedroom"),
    "dresser": PlaceKind("bedroom", "in", openable=True),
    "sidetable": PlaceKind("bedroom", most=2),
    "wardrobe": PlaceKind("bedroom", "in", openable=True),
    "bathtub": PlaceKind("bathroom", "in"),
    "washstand": PlaceKind("bathroom"),
    "hamper": PlaceKind("bathroom", "in", openable=True),
}
ROOMS = ("kitchen", "living room", "bedroom", "bathroom")
LAMP_PLACES = ("desk", "sidetable", "countertop")
"""Possible places of a lamp, in order of preference."""

HEATER, COOLER, CLEANER = "microwave", "fridge", "sink"
LAMP = "desklamp"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object."""

    places: tuple[str, ...]
    """Kinds of places where it is likely, in order; a task may require any place."""
    heatable: bool = False
    coolable: bool = False
    cleanable: bool = False


_SURFACES = ("countertop", "diningtable", "coffeetable", "desk", "sidetable")
_DISHES = ("countertop", "cabinet", "diningtable", "sink", "coffeetable")
_FOOD = ("countertop", "fridge", "diningtable", "sink")
_CUTLERY = ("drawer", "countertop", "diningtable", "sink")
_PAPERS = ("desk", "shelf", "bed", "sofa", "coffeetable", "sidetable", "drawer")

OBJECTS: dict[str, ObjectKind] = {
    "mug": ObjectKind((*_DISHES, "desk", "shelf"), True, True, True),
    "cup": ObjectKind((*_DISHES, "shelf"), True, True, True),
    "plate": ObjectKind(_DISHES, True, True, True),
    "bowl": ObjectKind(_DISHES, False, True, True),
    "pan": ObjectKind(("countertop", "cabinet", "sink", "diningtable"), False, True, True),
    "knife": ObjectKind(_CUTLERY, False, False, True),
    "fork": ObjectKind(_CUTLERY, False, False, True),
    "spoon": ObjectKind(_CUTLERY, False, False, True),
    "apple": ObjectKind(_FOOD, True, True, True),
    "tomato": ObjectKind(_FOOD, True, True, True),
    "potato": ObjectKind(_FOOD, True, True, True),
    "egg": ObjectKind(_FOOD, True, True, True),
    "bread": ObjectKind(("countertop", "diningtable", "cabinet"), True, True),
    "book": ObjectKind(_PAPERS),
    "newspaper": ObjectKind(_PAPERS),
    "pen": ObjectKind(_PAPERS),
    "pencil": ObjectKind(_PAPERS),
    "phone": ObjectKind((*_SURFACES, "bed", "sofa", "shelf")),
    "keychain": ObjectKind((*_SURFACES, "shelf", "drawer", "dresser")),
    "watch": ObjectKind((*_SURFACES, "dresser", "shelf", "washstand")),
    "pillow": ObjectKind(("bed", "sofa", "wardrobe")),
    "candle": ObjectKind(("shelf", "coffeetable", "washstand", "bathtub", "countertop")),
    "soap": ObjectKind(("washstand", "bathtub", "sink", "cabinet"), False, False, True),
    "towel": ObjectKind(("hamper", "bathtub", "wardrobe", "washstand"), False, False, True),
}


def kind_of(name: str) -> str:
    """The kind of a numbered object: `fridge` of `fridge 1`."""
    return name.rpartition(" ")[0]


def preposition(place: str) -> str:
    """`in` or `on`, depending on the place."""
    return PLACES[kind_of(place)].preposition


def is_openable(place: str) -> bool:
    """Whether a place has a door or a lid."""
    return PLACES[kind_of(place)].openable


HALL = "hall"
CONDITIONS: dict[str, str] = {"heat": "hot", "cool": "cold", "clean": "clean"}
"""Condition of an object, by the task that requires it and by the command that creates it."""
APPLIANCES = {"hot": HEATER, "cold": COOLER, "clean": CLEANER}
"""Kind of place that creates a condition."""

_NAME = r"([a-z]+ [1-9]\d?)"
_COMMANDS = {
    "look": re.compile(r"look"),
    "go": re.compile(f"go to {_NAME}"),
    "open": re.compile(f"open {_NAME}"),
    "close": re.compile(f"close {_NAME}"),
    "take": re.compile(f"take {_NAME} from {_NAME}"),
    "put": re.compile(f"put {_NAME} (?:in|on|in/on) {_NAME}"),
    "heat": re.compile(f"heat {_NAME} with {_NAME}"),
    "cool": re.compile(f"cool {_NAME} with {_NAME}"),
    "clean": re.compile(f"clean {_NAME} with {_NAME}"),
    "use": re.compile(f"use {_NAME}"),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a task."""

    task: TaskKind
    object: str
    """Kind of the object."""
    place: str
    """Kind of the destination; the lamp's kind for `examine`."""

    @property
    def count(self) -> int:
        """Number of objects."""
        return 2 if self.task == "two" else 1

    @property
    def condition(self) -> str | None:
        """Required condition of the object: `hot`, `cold` or `clean`."""
        return CONDITIONS.get(self.task)

    def text(self) -> str:
        """The task in words."""
        if self.task == "examine":
            return f"look at a {self.object} under the {LAMP}"
        what = f"two {self.object}s" if self.count == 2 else f"a {self.object}"
        if self.condition is not None:
            what = f"a {self.condition} {self.object}"
        return f"put {what} {PLACES[self.place].preposition} a {self.place}"


def read_command(text: str) -> str | None:
    """The canonical form of a command about existing things; None if it is not a command."""
    plain = " ".join(text.lower().split())
    if len(plain) > 80:
        return None
    for verb, pattern in _COMMANDS.items():
        match = pattern.fullmatch(plain)
        if match is None:
            continue
        names = match.groups()
        kinds: tuple[Any, ...] = (OBJECTS, PLACES) if len(names) == 2 else (PLACES,)
        if verb == "use":
            kinds = ({LAMP},)
        # `look` has no names.
        if all(kind_of(name) in known for name, known in zip(names, kinds, strict=False)):
            return put_command(*names) if verb == "put" else plain
        return None
    return None


def put_command(thing: str, place: str) -> str:
    """`put mug 1 on desk 1`."""
    return f"put {thing} {preposition(place)} {place}"


@dataclass(slots=True)
class World:
    """State of a home."""

    goal: Goal
    rooms: dict[str, list[str]]
    """Places by room."""
    where: dict[str, str]
    """Place of each object that is not held."""
    lamps: dict[str, str]
    """Place of each lamp."""
    at: str = HALL
    holding: str | None = None
    opened: set[str] = field(default_factory=set)
    conditions: dict[str, frozenset[str]] = field(default_factory=dict)
    """Conditions of objects: `hot` or `cold`, and `clean`; objects without any are missing."""
    lit: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    """Places whose contents the agent has seen."""

    def copy(self) -> "World":
        """A deep copy."""
        return replace(
            self,
            where=dict(self.where),
            opened=set(self.opened),
            conditions=dict(self.conditions),
            lit=set(self.lit),
            seen=set(self.seen),
        )

    @property
    def places(self) -> list[str]:
        """All places."""
        return [place for places in self.rooms.values() for place in places]

    def is_closed(self, place: str) -> bool:
        """Whether a place must be opened first."""
        return is_openable(place) and place not in self.opened

    def contents(self, place: str) -> list[str]:
        """Objects at a place, whether open or closed."""
        return sorted(name for name, where in self.where.items() if where == place)

    def visible(self) -> list[str]:
        """Objects that are visible at the agent's location."""
        return [] if self.at == HALL or self.is_closed(self.at) else self.contents(self.at)

    def has(self, name: str, condition: str) -> bool:
        """Whether an object is hot, cold or clean."""
        return condition in self.conditions.get(name, ())

    def is_done(self) -> bool:
        """Whether the task is complete."""
        goal = self.goal
        if goal.task == "examine":
            held = self.holding is not None and kind_of(self.holding) == goal.object
            return held and any(self.lamps[lamp] == self.at for lamp in self.lit)
        return sum(map(self.is_placed, self.where)) >= goal.count

    def is_placed(self, name: str) -> bool:
        """Whether an object satisfies the task."""
        goal = self.goal
        return (
            kind_of(name) == goal.object
            and kind_of(self.where.get(name, " ")) == goal.place
            and (goal.condition is None or self.has(name, goal.condition))
        )

    def do(self, command: str) -> bool:
        """Executes a canonical command; returns whether it had an effect."""
        verb = command.split(" ", 1)[0]
        match = _COMMANDS[verb].fullmatch(command)
        assert match is not None, command
        names = match.groups()
        if verb in CONDITIONS:
            thing, place = names
            done = self._treat(thing, place, CONDITIONS[verb])
        else:
            done = verb == "look" or getattr(self, f"_{verb}")(*names)
        if done and self.at != HALL and not self.is_closed(self.at):
            self.seen.add(self.at)
        return done

    def commands(self) -> list[str]:
        """All commands with an effect now."""
        found = [f"go to {place}" for place in self.places if place != self.at]
        if self.at == HALL:
            return [*found, "look"]
        here, held = self.at, self.holding
        if is_openable(here):
            found.append(f"{'open' if self.is_closed(here) else 'close'} {here}")
        if held is None:
            found += [f"take {name} from {here}" for name in self.visible()]
        else:
            if not self.is_closed(here):
                found.append(put_command(held, here))
            found += [
                f"{verb} {held} with {here}"
                for verb, condition in CONDITIONS.items()
                if self._can_treat(held, here, condition)
            ]
        found += [f"use {lamp}" for lamp, place in self.lamps.items() if place == here]
        return [*found, "look"]

    def _go(self, place: str) -> bool:
        if place not in self.places or place == self.at:
            return False
        self.at = place
        return True

    def _open(self, place: str) -> bool:
        if place != self.at or not self.is_closed(place):
            return False
        self.opened.add(place)
        return True

    def _close(self, place: str) -> bool:
        if place != self.at or place not in self.opened:
            return False
        self.opened.discard(place)
        return True

    def _take(self, name: str, place: str) -> bool:
        if place != self.at or self.holding is not None or name not in self.visible():
            return False
        del self.where[name]
        self.holding = name
        return True

    def _put(self, name: str, place: str) -> bool:
        if place != self.at or self.holding != name or self.is_closed(place):
            return False
        self.where[name] = place
        self.holding = None
        return True

    def _can_treat(self, name: str, place: str, condition: str) -> bool:
        kind = OBJECTS[kind_of(name)]
        able = {"hot": kind.heatable, "cold": kind.coolable, "clean": kind.cleanable}[condition]
        here = place == self.at and self.holding == name
        return able and here and kind_of(place) == APPLIANCES[condition]

    def _treat(self, name: str, place: str, condition: str) -> bool:
        if not self._can_treat(name, place, condition):
            return False
        kept = self.conditions.get(name, frozenset())
        if condition != "clean":
            kept = kept - {"hot", "cold"}
        self.conditions[name] = kept | {condition}
        return True

    def _use(self, lamp: str) -> bool:
        if self.lamps.get(lamp) != self.at:
            return False
        self.lit ^= {lamp}
        return True

    def to_state(self) -> dict[str, Any]:
        """JSON-serialisable true state."""
        goal = self.goal
        return {
            "goal": {"task": goal.task, "object": goal.object, "place": goal.place},
            "rooms": {room: list(places) for room, places in self.rooms.items()},
            "at": self.at,
            "holding": self.holding,
            "where": dict(sorted(self.where.items())),
            "open": sorted(self.opened),
            "conditions": {name: sorted(found) for name, found in sorted(self.conditions.items())},
            "lamps": dict(self.lamps),
            "lit": sorted(self.lit),
            "seen": sorted(self.seen),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "World":
        """Inverse of `to_state`."""
        return cls(
            goal=Goal(**state["goal"]),
            rooms=state["rooms"],
            where=dict(state["where"]),
            lamps=state["lamps"],
            at=state["at"],
            holding=state["holding"],
            opened=set(state["open"]),
            conditions={name: frozenset(found) for name, found in state["conditions"].items()},
            lit=set(state["lit"]),
            seen=set(state["seen"]),
        )
