"""Rules of Household: where the agent is, what it holds, where things are and how they are."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from vagen.envs.base import State
from vagen.envs.household.things import LAMP, OBJECTS, PLACES, is_openable, kind_of, preposition
from vagen.envs.household.world import HALL
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.rules.clauses import f1, read_clauses, read_object

NOTHING = "nothing"
MOST_MENTIONS = 3
MOST_CLAIMS = 16
"""More than a state text needs: a list of all there is claims at random."""

_THING = rf"(?P<thing>(?:{'|'.join(OBJECTS)})(?: [1-9]\d?)?)"
_PLACE = rf"(?P<place>(?:{'|'.join(PLACES)})(?: [1-9]\d?)?)"
_THE = r"(?:the |a |an |one )?"
_I = r"(?:i am|i'm|you are|the agent is|agent is|the player is)"
_HOLD = (
    r"(?:(?:i|you|the agent|agent) (?:am |are |is )?|i'm )?"
    r"(?:hold|holds|holding|have|has|carry|carrying|carries)"
)
_CONDITION = {
    **dict.fromkeys(("hot", "heated", "warm"), "hot"),
    **dict.fromkeys(("cold", "cooled", "chilled"), "cold"),
    **dict.fromkeys(("clean", "cleaned", "washed"), "clean"),
}
_PATTERNS = {
    "hall": rf"{_I} (?:in|at) (?:the )?hall",
    "at": rf"(?:{_I} )?(?:standing |now )?(?:at|by|beside|in front of|next to) {_THE}{_PLACE}",
    "empty": rf"{_HOLD} nothing|(?:my|your|its) hands? (?:is|are) empty|"
    r"(?:i|you) (?:do not|don't) (?:hold|have|carry) anything|(?:i am|i'm) empty-handed|"
    r"nothing is (?:held|in my hands?)",
    "held": rf"{_HOLD} {_THE}{_THING}(?: in my hands?)?|"
    rf"{_THE}(?P<held>(?:{'|'.join(OBJECTS)})(?: [1-9]\d?)?) is (?:held|in my hands?)",
    "in": rf"(?:there is )?{_THE}{_THING} (?:is |lies |sits |stands )?(?:in|on|inside|on top of) "
    rf"{_THE}{_PLACE}|(?:in|on|inside) {_THE}(?P<where>(?:{'|'.join(PLACES)})(?: [1-9]\d?)?) "
    rf"(?:is|lies|there is) {_THE}(?P<what>(?:{'|'.join(OBJECTS)})(?: [1-9]\d?)?)",
    "open": rf"{_THE}{_PLACE} is (?P<open>open|opened|closed|shut|not open|not closed)",
    "is": rf"{_THE}{_THING} is (?P<condition>{'|'.join(_CONDITION)})",
    "lit": rf"{_THE}{LAMP}(?: 1)? is (?:switched |turned )?(?P<lit>on|off)",
}
_READERS = {name: re.compile(pattern) for name, pattern in _PATTERNS.items()}

Claim = tuple[str, ...]
"""("at", place), ("held", thing), ("in", thing, place), ("open", place, "yes"), ("is", thing,
condition) or ("lit", "on"). A thing or place without a number is any of its kind."""


@dataclass(frozen=True, slots=True)
class Home:
    """What is the case, as far as texts speak of it."""

    at: str
    held: str
    where: dict[str, str]
    opened: frozenset[str]
    conditions: dict[str, list[str]]
    lit: bool
    required: frozenset[Claim]
    """What a complete description says."""

    def weight(self, facts: Collection[Claim]) -> float:
        """What facts count: 1 each, places of things together half as much.

        A prediction cannot know what a place holds that was not seen yet.
        """
        places = sum(fact[0] == "in" for fact in facts)
        every = sum(fact[0] == "in" for fact in self.required)
        return len(facts) - places + (0.5 * places / every if every else 0.0)

    def holds(self, claim: Claim) -> bool:
        """Whether a claim is the case."""
        match claim:
            case ("at", place):
                return _is(place, self.at)
            case ("held", thing):
                return _is(thing, self.held)
            case ("in", thing, place):
                return any(
                    _is(thing, name) and _is(place, where) for name, where in self.where.items()
                )
            case ("open", place, said):
                here = place if " " in place else self.at
                return (
                    _is(place, here)
                    and is_openable(here)
                    and (here in self.opened) == (said == "yes")
                )
            case ("is", thing, condition):
                names = [self.held, *self.where] if " " in thing else [self.held]
                return any(
                    _is(thing, name) and condition in self.conditions.get(name, ())
                    for name in names
                )
            case ("lit", said):
                return self.lit == (said == "on")
        return False


class HouseholdRules(Rules[tuple[Claim, ...], Home]):
    """A description must say where the agent is or what it holds; both and more complete it."""

    env_name: ClassVar[str] = "Household"
    vocabulary: ClassVar[frozenset[str]] = frozenset(
        {
            *("i", "am", "at", "in", "on", "the", "is", "hold", "nothing", "hall", "open"),
            *("closed", "hot", "cold", "clean", LAMP, *OBJECTS, *PLACES),
        }
    )

    def read(self, text: str) -> Reading[tuple[Claim, ...]]:
        """The claims of sentences or of JSON."""
        found = _read_json(text) if text.lstrip().startswith("{") else read_clauses(text, _read)
        if found is None:
            return Reading((), understood=False)
        flags = []
        if not found:
            flags.append("no_entity")
        elif not any(claim[0] in ("at", "held", "in") for claim in found):
            flags.append("no_relation")
        if len(found) > MOST_CLAIMS or any(found.count(c) >= MOST_MENTIONS for c in found):
            flags.append("repeated")
        claims = tuple(dict.fromkeys(found))
        if _contradict(claims):
            flags.append("contradiction")
        return Reading(claims, tuple(flags))

    def truth(self, state: State) -> Home:
        """Relations of the home, and those that a complete description states."""
        at, held = state["at"], state["holding"] or NOTHING
        required: set[Claim] = {("at", at), ("held", held)}
        if at != HALL and is_openable(at):
            required.add(("open", at, "yes" if at in state["open"] else "no"))
        required |= {("is", held, condition) for condition in state["conditions"].get(held, ())}
        required |= {
            ("in", name, place)
            for name, place in state["where"].items()
            if kind_of(name) == state["goal"]["object"] and place in state["seen"]
        }
        return Home(
            at,
            held,
            state["where"],
            frozenset(state["open"]),
            state["conditions"],
            bool(state["lit"]),
            frozenset(required),
        )

    def score(self, content: tuple[Claim, ...], truth: Home) -> tuple[float, tuple[str, ...]]:
        """Harmonic mean of precision and recall."""
        right = [claim for claim in content if truth.holds(claim)]
        said = [fact for fact in truth.required if any(_covers(claim, fact) for claim in right)]
        return f1(len(right), len(content), truth.weight(truth.required), truth.weight(said)), ()

    def has_changed(self, content: tuple[Claim, ...], before: Home, after: Home) -> bool:
        """Whether a claim holds in one state only, or what it is about differs."""
        return any(
            before.holds(claim) != after.holds(claim)
            or (claim[0] == "at" and before.at != after.at)
            or (claim[0] == "held" and before.held != after.held)
            for claim in content
        )

    def describe(self, state: State) -> str:
        """Every relation that a text could speak of."""
        truth = self.truth(state)
        lines = [
            f"The agent is {'in the hall' if truth.at == HALL else f'at {truth.at}'}.",
            f"It holds {truth.held}.",
            f"Open places: {', '.join(state['open']) or 'none'}.",
            f"The {LAMP} is {'on' if truth.lit else 'off'}.",
        ]
        for name, place in sorted(truth.where.items()):
            lines.append(f"{name} is {preposition(place)} {place}.")
        for name, conditions in sorted(truth.conditions.items()):
            lines.append(f"{name} is {' and '.join(conditions)}.")
        return "\n".join(lines)

    def canonical(self, state: State) -> str:
        """What the truth depends on."""
        keys = ("at", "holding", "where", "open", "conditions", "lit", "seen")
        return json.dumps([state["goal"]["object"], *(state[key] for key in keys)], sort_keys=True)


def _is(said: str, name: str) -> bool:
    """Whether a name, or a kind where no number is said, is that of a thing."""
    return said == name or said == kind_of(name)


def _covers(claim: Claim, fact: Claim) -> bool:
    """Whether a right claim states a fact, by name or by kind."""
    return len(claim) == len(fact) and all(map(_is, claim, fact))


def _contradict(claims: tuple[Claim, ...]) -> bool:
    """Whether something is said to be at two places, held and not, open and closed, ..."""
    said: dict[tuple[str, ...], str] = {}
    for claim in claims:
        if claim[0] == "is":
            subject, value = ("warmth", claim[1]), claim[2]
            if value == "clean":
                continue
        elif claim[0] in ("at", "held", "lit"):
            subject, value = (claim[0],), claim[1]
        elif " " not in claim[1]:
            continue  # two things of a kind can be in two places
        else:
            subject, value = claim[:2], claim[2]
        if said.setdefault(subject, value) != value:
            return True
    held = said.get(("held",))
    return held is not None and any(
        claim[0] == "in" and claim[1] == held and " " in held for claim in claims
    )


def _read(clause: str) -> list[Claim] | None:
    """The claim of a clause."""
    for name, pattern in _READERS.items():
        match = pattern.fullmatch(clause)
        if match is None:
            continue
        parts = match.groupdict()
        match name:
            case "hall":
                return [("at", HALL)]
            case "at":
                return [("at", parts["place"])]
            case "empty":
                return [("held", NOTHING)]
            case "held":
                return [("held", parts["thing"] or parts["held"])]
            case "in":
                return [("in", parts["thing"] or parts["what"], parts["place"] or parts["where"])]
            case "open":
                is_open = parts["open"] in ("open", "opened", "not closed")
                return [("open", parts["place"], "yes" if is_open else "no")]
            case "is":
                return [("is", parts["thing"], _CONDITION[parts["condition"]])]
            case "lit":
                return [("lit", parts["lit"])]
    return None


def _read_json(text: str) -> list[Claim] | None:
    """`{"at": ..., "holding": ..., "fridge 1": "open", "mug 1": "desk 1", "mug 2": "hot"}`."""
    found = read_object(text)
    if found is None or not all(isinstance(value, str) for value in found.values()):
        return None
    claims: list[Claim] = []
    for key, value in found.items():
        name, value = key.lower().strip(), value.lower().strip()
        if name == "at" and (value == HALL or kind_of(value) in PLACES):
            claims.append(("at", value))
        elif name in ("holding", "held") and (value == NOTHING or kind_of(value) in OBJECTS):
            claims.append(("held", value))
        elif kind_of(name) in OBJECTS and kind_of(value) in PLACES:
            claims.append(("in", name, value))
        elif kind_of(name) in OBJECTS and all(word in _CONDITION for word in value.split(" and ")):
            claims += [("is", name, _CONDITION[word]) for word in value.split(" and ")]
        elif kind_of(name) in PLACES and value in ("open", "closed"):
            claims.append(("open", name, "yes" if value == "open" else "no"))
        else:
            return None
    return claims
