"""Claims about Navigation: positions of the target and the nearest visible objects."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from vagen.envs.base import State
from vagen.envs.claims import Claim, read_claims, read_object, score_claims
from vagen.envs.navigation.catalogue import KINDS
from vagen.envs.navigation.furniture import COLOURS
from vagen.envs.navigation.truth import DIRECTIONS, MAX_OBJECTS, name_of

TARGET_SEEN, TARGET_UNSEEN = 0.7, 0.3
"""Weight of the target in a score; other objects have the rest. In a long search, a target out of
view is usual and needs no look."""
SECTOR = 22.5
"""Half of an eighth of the circle, in degrees."""
LEEWAY = 12.5
"""Tolerance in degrees of a bearing outside the named direction."""
METRES, SHARE = 0.5, 0.2
"""Tolerance of a distance in metres, or as a share of it if that is larger."""
NOT_IN_VIEW = "not in view"

THOR_TYPES = (
    "alarm clock,apple,arm chair,baseball bat,basket ball,bathtub basin,blinds,book,boots,bottle,"
    "bowl,box,bread,butter knife,cabinet,candle,cd,cell phone,cloth,coffee machine,coffee table,"
    "counter top,credit card,cup,curtains,desk lamp,desktop,dining table,dish sponge,dog bed,"
    "drawer,dresser,dumbbell,egg,faucet,footstool,fork,garbage bag,hand towel,hand towel holder,"
    "kettle,key chain,knife,ladle,laptop,laundry hamper,lettuce,light switch,microwave,mirror,mug,"
    "newspaper,ottoman,painting,pan,paper towel roll,pen,pencil,pepper shaker,pillow,plate,plunger,"
    "poster,pot,potato,remote control,safe,salt shaker,scrub brush,shelf,shelving unit,"
    "shower curtain,shower door,shower head,side table,sink basin,soap bar,soap bottle,spatula,"
    "spoon,spray bottle,statue,stool,stove burner,stove knob,teddy bear,tennis racket,tissue box,"
    "toaster,toilet,toilet paper,toilet paper hanger,tomato,towel,towel holder,tv stand,"
    "vacuum cleaner,vase,watch,watering can,window,wine bottle"
)
"""AI2-THOR's types of objects in the spelling of `words_of`; others are not parsed."""

_NAMES = rf"^(?:(?:{'|'.join(COLOURS)}) )?(?:{'|'.join([*KINDS, *THOR_TYPES.split(',')])})$"
Name = Annotated[str, Field(pattern=_NAMES, description="a type with or without its colour")]
Direction = Literal[
    "ahead", "ahead-right", "right", "behind-right", "behind", "behind-left", "left", "ahead-left"
]


class Named(Claim):
    """A claim about an object."""

    phrase = ""
    subject = None
    name: Name
    _beyond: tuple["Seen", ...] = ()
    """For the true claim about the target: other visible objects, which need not be described."""

    @cached_property
    def kind(self) -> str:
        """The name without colour."""
        colour, _, rest = self.name.partition(" ")
        return rest if colour in COLOURS else self.name

    @classmethod
    def claim_words(cls) -> set[str]:
        """With the keys of `record`."""
        return super().claim_words() | {"target", "objects"}

    def names(self, other: "Named") -> bool:
        """Whether both may be about the same object: either may omit its colour."""
        kind = self.kind
        return kind == other.kind and (self.name == other.name or kind in (self.name, other.name))


class Seen(Named):
    """Position of a visible object relative to the agent."""

    phrase = "{name} is {direction} at {distance} m"
    direction: Direction
    distance: float = Field(ge=0, le=100)
    """Metres; true claims are rounded to the nearest half."""
    _exact: tuple[float, float] = (0.0, 0.0)
    """For true claims: bearing in degrees to the right, and distance in metres."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Seen":
        """The true claim about an object of a state."""
        distance = round(2 * entry["distance"]) / 2
        claim = cls.model_construct(
            name=name_of(entry), direction=entry["direction"], distance=distance
        )
        claim._exact = entry["bearing"], entry["distance"]
        return claim

    def agreement(self, true: Claim) -> float:
        """Whether bearing and distance are within the tolerances."""
        assert isinstance(true, Seen)
        if not self.names(true):
            return 0.0
        bearing, metres = true._exact
        turned = abs((DIRECTIONS[self.direction] - bearing + 180.0) % 360.0 - 180.0)
        off = abs(self.distance - metres)
        return float(turned <= SECTOR + LEEWAY and off <= max(METRES, SHARE * metres))


class Unseen(Named):
    """An object is not visible."""

    phrase = f"{{name}} is {NOT_IN_VIEW}"

    def agreement(self, true: Claim) -> float:
        """Whether the object is the same."""
        assert isinstance(true, Unseen)
        return float(self.names(true))


CLAIMS = (Seen, Unseen)


def truth(state: State, *, everything: bool) -> list[Claim]:
    """The target first, then the nearest other visible objects.

    Args:
        state: A state of Navigation.
        everything: Whether to describe other objects. If not, the nearest one is included while the
            target is not visible, since that could be said without looking.
    """
    entry = state["target"]
    others = [Seen.of(other) for other in (*state["objects"], *state["others"])]
    if entry["visible"]:
        target, count = Seen.of(entry), MAX_OBJECTS if everything else 0
    else:
        names = {other.kind for other in others}
        name = name_of(entry) if entry["type"] in names else entry["type"]
        target, count = Unseen.model_construct(name=name), MAX_OBJECTS if everything else 1
    target._beyond = tuple(others[count:])
    return [target, *others[:count]]


def record(state: State, *, everything: bool) -> str:
    """The claims as JSON: `{"target": "red sofa", "direction": "ahead", ..., "objects": [...]}`."""
    target, *objects = [_record(claim) for claim in truth(state, everything=everything)]
    flat = {"target": target.pop("name"), **target}
    return json.dumps({**flat, "objects": objects} if everything or objects else flat)


def read(text: str) -> list[Claim] | None:
    """Parses sentences or `record`."""
    found = read_object(text)
    if found is None:
        return read_claims(text, CLAIMS)
    name, objects = found.pop("target", None), found.pop("objects", [])
    if not isinstance(objects, list):
        return None
    return read_claims("\n".join(map(_sentence, ({**found, "name": name}, *objects))), CLAIMS)


def score(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """The target's weight if it is correct, plus the weighted F1 of other objects.

    0 for a text with an object that is not there, or with more of a name than there are. Correct
    claims about further visible objects do not count.
    """
    target, *asked = [fact for fact in true if isinstance(fact, Named)]
    things = [target, *asked, *target._beyond]
    rest = [claim for claim in said if isinstance(claim, Named)]
    if _are_too_many(rest, things):
        return 0.0
    credit = 0.0
    if about := [claim for claim in rest if claim.names(target)]:
        best = max(about, key=lambda claim: _agreement(claim, target))
        credit = _agreement(best, target)
        rest.remove(best)
    rest = [claim for claim in rest if not any(_agreement(claim, t) for t in target._beyond)]
    if not rest and not asked:
        return credit
    share = TARGET_SEEN if isinstance(target, Seen) else TARGET_UNSEEN
    return share * credit + (1 - share) * score_claims(rest, asked)


def _are_too_many(said: Sequence[Named], things: Sequence[Named]) -> bool:
    """Whether there are more claims about a name or type than objects."""
    names, kinds = (Counter(getattr(c, by) for c in said) for by in ("name", "kind"))
    most = Counter(thing.kind for thing in things)
    return any(
        names[claim.name] > sum(claim.names(thing) for thing in things)
        or kinds[claim.kind] > most[claim.kind]
        for claim in said
    )


def _agreement(claim: Claim, fact: Claim) -> float:
    return claim.agreement(fact) if type(claim) is type(fact) else 0.0


def _record(claim: Claim) -> dict[str, Any]:
    fields = claim.model_dump()
    return fields if isinstance(claim, Seen) else {**fields, "direction": NOT_IN_VIEW}


def _sentence(record: Any) -> str:
    """The sentence of a record; an invalid record is returned unchanged."""
    match record:
        case {"name": name, "direction": "not in view", **rest} if not rest:
            return f"{name} is {NOT_IN_VIEW}"
        case {"name": name, "direction": way, "distance": metres, **rest} if not rest:
            return f"{name} is {way} at {metres} m"
    return str(record)
