"""What Navigation's state texts claim: where the target and the nearest things in view are."""

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
from vagen.envs.navigation.truth import DIRECTIONS, MOST_OBJECTS, name_of

TARGET_SEEN, TARGET_UNSEEN = 0.7, 0.3
"""Share of the target in a score, the other things having the rest: that the target is not in view
is true of most states of a long search, and takes no look."""
SECTOR = 22.5
"""Half of an eighth of the circle, in degrees."""
LEEWAY = 12.5
"""Degrees by which a bearing may lie outside the direction that is named."""
METRES, SHARE = 0.5, 0.2
"""A distance may be wrong by so many metres, or by this share of itself if that is more."""
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
"""AI2-THOR's types of objects, as `words_of` spells them; others are not read."""

_NAMES = rf"^(?:(?:{'|'.join(COLOURS)}) )?(?:{'|'.join([*KINDS, *THOR_TYPES.split(',')])})$"
Name = Annotated[str, Field(pattern=_NAMES, description="a type with or without its colour")]
Direction = Literal[
    "ahead", "ahead-right", "right", "behind-right", "behind", "behind-left", "left", "ahead-left"
]


class Named(Claim):
    """Speaks of a thing."""

    phrase = ""
    subject = None
    name: Name
    _beyond: tuple["Seen", ...] = ()
    """Of a target that is the case: what else is in view and need not be described."""

    @cached_property
    def kind(self) -> str:
        """The name without a colour."""
        colour, _, rest = self.name.partition(" ")
        return rest if colour in COLOURS else self.name

    @classmethod
    def claim_words(cls) -> set[str]:
        """With the keys of `record`."""
        return super().claim_words() | {"target", "objects"}

    def names(self, other: "Named") -> bool:
        """Whether both can be about one thing: one of them may leave its colour out."""
        kind = self.kind
        return kind == other.kind and (self.name == other.name or kind in (self.name, other.name))


class Seen(Named):
    """Where a thing in view is, from where the agent looks."""

    phrase = "{name} is {direction} at {distance} m"
    direction: Direction
    distance: float = Field(ge=0, le=100)
    """Metres; of what is true to the nearest half."""
    _exact: tuple[float, float] = (0.0, 0.0)
    """Of what is true: its bearing in degrees to the right, its distance in metres."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Seen":
        """The truth of a thing of a state, which knows more than it says."""
        distance = round(2 * entry["distance"]) / 2
        claim = cls.model_construct(
            name=name_of(entry), direction=entry["direction"], distance=distance
        )
        claim._exact = entry["bearing"], entry["distance"]
        return claim

    def agreement(self, true: Claim) -> float:
        """Whether it is there within the tolerances of bearing and distance."""
        assert isinstance(true, Seen)
        if not self.names(true):
            return 0.0
        bearing, metres = true._exact
        turned = abs((DIRECTIONS[self.direction] - bearing + 180.0) % 360.0 - 180.0)
        off = abs(self.distance - metres)
        return float(turned <= SECTOR + LEEWAY and off <= max(METRES, SHARE * metres))


class Unseen(Named):
    """That a thing is not in view."""

    phrase = f"{{name}} is {NOT_IN_VIEW}"

    def agreement(self, true: Claim) -> float:
        """By the thing."""
        assert isinstance(true, Unseen)
        return float(self.names(true))


CLAIMS = (Seen, Unseen)


def truth(state: State, *, everything: bool) -> list[Claim]:
    """The target first, then the nearest other things in view.

    Args:
        state: Of Navigation.
        everything: Whether things beside the target are to be described. If not, the nearest one
            is where the target is out of view: that alone could be said without looking.
    """
    entry = state["target"]
    others = [Seen.of(other) for other in (*state["objects"], *state["others"])]
    if entry["visible"]:
        target, count = Seen.of(entry), MOST_OBJECTS if everything else 0
    else:
        names = {other.kind for other in others}
        name = name_of(entry) if entry["type"] in names else entry["type"]
        target, count = Unseen.model_construct(name=name), MOST_OBJECTS if everything else 1
    target._beyond = tuple(others[count:])
    return [target, *others[:count]]


def record(state: State, *, everything: bool) -> str:
    """The same as JSON: `{"target": "red sofa", "direction": "ahead", ..., "objects": [...]}`."""
    target, *objects = [_record(claim) for claim in truth(state, everything=everything)]
    flat = {"target": target.pop("name"), **target}
    return json.dumps({**flat, "objects": objects} if everything or objects else flat)


def read(text: str) -> list[Claim] | None:
    """The claims of sentences, or of `record`."""
    found = read_object(text)
    if found is None:
        return read_claims(text, CLAIMS)
    name, objects = found.pop("target", None), found.pop("objects", [])
    if not isinstance(objects, list):
        return None
    return read_claims("\n".join(map(_sentence, ({**found, "name": name}, *objects))), CLAIMS)


def score(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """The target's share if it is right, and the F1 of the other things.

    0 for a text that speaks of a thing which is not there, or of more of a name than there are.
    Right claims about things in view that need not be described neither help nor harm.
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
    """Whether more claims are about things of one name, or type, than there are."""
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
    """What a record says; itself, which says nothing, if it is none."""
    match record:
        case {"name": name, "direction": "not in view", **rest} if not rest:
            return f"{name} is {NOT_IN_VIEW}"
        case {"name": name, "direction": way, "distance": metres, **rest} if not rest:
            return f"{name} is {way} at {metres} m"
    return str(record)
