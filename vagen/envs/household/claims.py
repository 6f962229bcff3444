"""Claims about Household: location, hand, doors, and seen positions of the task's objects."""

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from vagen.envs.base import State
from vagen.envs.claims import Claim, read_claims, read_object, score_claims
from vagen.envs.household.things import OBJECTS, PLACES, is_openable, kind_of, preposition
from vagen.envs.household.world import HALL

NOTHING = "nothing"
_THING = rf"(?:{'|'.join(OBJECTS)}) [1-9]\d?"
_PLACE = rf"(?:{'|'.join(PLACES)}) [1-9]\d?"
Thing = Annotated[str, Field(pattern=f"^{_THING}$", description="kind and number, as `mug 1`")]
Place = Annotated[str, Field(pattern=f"^{_PLACE}$", description="kind and number, as `desk 1`")]
Where = Annotated[str, Field(pattern=f"^(?:in the {HALL}|at {_PLACE})$", description="`at desk 1`")]
Held = Annotated[str, Field(pattern=f"^(?:{NOTHING}|{_THING})$", description="`mug 1` or nothing")]


class At(Claim):
    """The agent's location."""

    phrase = "i am {where}"
    where: Where


class Door(Claim):
    """Whether a place is open."""

    phrase = "{place} is {door}"
    subject = ("place",)
    place: Place
    door: Literal["open", "closed"]


class Holds(Claim):
    """The object in the agent's hand."""

    phrase = "i hold {thing}"
    thing: Held


class Condition(Claim):
    """Condition of an object."""

    phrase = "{thing} is {condition}"
    subject = None
    thing: Thing
    condition: Literal["hot", "cold", "clean"]


class Lies(Claim):
    """Location of an object; predictions cannot know contents that were not seen yet."""

    phrase = "{thing} is {side} {place}"
    subject = ("thing",)
    weight = 0.5
    thing: Thing
    side: Literal["in", "on"]
    place: Place

    def agreement(self, true: Claim) -> float:
        """Whether object and place are the same."""
        assert isinstance(true, Lies)
        return float((self.thing, self.place) == (true.thing, true.place))


CLAIMS = (At, Door, Holds, Condition, Lies)


def truth(state: State) -> list[Claim]:
    """Location, door, hand, and seen objects of the task."""
    here, held = state["at"], state["holding"]
    claims: list[Claim] = [At(where=f"in the {HALL}" if here == HALL else f"at {here}")]
    if here != HALL and is_openable(here):
        claims.append(Door(place=here, door="open" if here in state["open"] else "closed"))
    claims.append(Holds(thing=held or NOTHING))
    claims += [Condition(thing=held, condition=c) for c in state["conditions"].get(held, ())]
    kind, seen = state["goal"]["object"], set(state["seen"])
    claims += [
        _lies(name, place)
        for name, place in state["where"].items()
        if kind_of(name) == kind and place in seen
    ]
    return claims


def record(state: State) -> str:
    """Claims as JSON: `{"at": "fridge 1", "fridge 1": "open", "holding": ..., "mug 1": ...}`."""
    found: dict[str, str] = {}
    for claim in truth(state):
        match claim:
            case At():
                found["at"] = state["at"]
            case Door():
                found[claim.place] = claim.door
            case Holds():
                found["holding"] = claim.thing
            case Condition(thing=thing, condition=condition):
                found[thing] = f"{found[thing]} and {condition}" if thing in found else condition
            case Lies():
                found[claim.thing] = claim.place
    return json.dumps(found)


def read(text: str) -> list[Claim] | None:
    """Parses sentences or `record`."""
    found = read_object(text)
    if found is None:
        return read_claims(text, CLAIMS)
    parts: list[str] = []
    for name, value in found.items():
        if name == "at":
            parts.append(f"i am {'in the ' if value == HALL else 'at '}{value}")
        elif name == "holding":
            parts.append(f"i hold {value}")
        elif kind_of(str(value)) in PLACES:
            parts.append(f"{name} is {preposition(str(value))} {value}")
        else:
            parts += [f"{name} is {said}" for said in str(value).split(" and ")]
    return read_claims("\n".join(parts), CLAIMS)


def score(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """`score_claims`, but 0 if an object is both held and somewhere."""
    held = {claim.thing for claim in said if isinstance(claim, Holds)}
    if any(isinstance(claim, Lies) and claim.thing in held for claim in said):
        return 0.0
    return score_claims(said, true)


def _lies(name: str, place: str) -> Lies:
    return Lies.model_validate({"thing": name, "side": preposition(place), "place": place})
