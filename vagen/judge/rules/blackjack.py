"""Rules of Blackjack: the hand's sum, whether an ace in it is usable, the dealer's card."""

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from vagen.envs.base import State
from vagen.envs.blackjack.game import RANKS, SUITS
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.rules.clauses import f1, read_clauses, read_object

_NUMBERS = (
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
    *("twenty-one", "twenty-two", "twenty-three", "twenty-four", "twenty-five", "twenty-six"),
    *("twenty-seven", "twenty-eight", "twenty-nine", "thirty"),
)
_NUMBER_OF = {
    **{word: number for number, word in enumerate(_NUMBERS, start=2)},
    **{word.replace("-", " "): number for number, word in enumerate(_NUMBERS, start=2)},
    **{str(number): number for number in range(2, 32)},
}
_RANK_OF = {
    **{rank.lower(): rank for rank in RANKS},
    **dict(zip(_NUMBERS, map(str, range(2, 11)), strict=False)),
    **{"ace": "A", "jack": "J", "queen": "Q", "king": "K"},
}


def _any_of(words: Any) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_N = rf"(?P<sum>{_any_of(_NUMBER_OF)})"
_SUIT = rf"(?: of (?:{_any_of(SUITS)}))?"
_R = rf"(?P<rank>{_any_of(_RANK_OF)}){_SUIT}"
_CARD = rf"(?:(?:a|an|the) )?(?:{_any_of(_RANK_OF)}){_SUIT}"
_MY = r"(?:my|your|the|our|the player's|player's)"
_HAND = (
    r"(?:hand|cards|sum|total|hand's sum|hand total|hand sum|hand value|card sum|card total|count)"
)
_WITH_ACE = r"(?:with (?:a|an|one) usable ace)"
_NO_ACE = r"(?:(?:with no|without(?: an?| any)?) usable aces?)"

_SUM = [
    rf"(?:{_MY} )?{_HAND} (?:is|are|=|equals|equal|comes to|makes|totals|adds up to|add up to|"
    rf"sums to|sum to|is worth|are worth|counts|count|of|(?:is|are) now)? ?(?:a |an )?"
    rf"(?:(?P<kind>soft|hard) )?{_N}(?: points)?(?: (?:(?P<ace>{_WITH_ACE})|(?P<none>{_NO_ACE})))?",
    r"(?:i|you|the player|player) (?:have|has|hold|holds|am at|are at|is at|stand at|stands at|"
    r"sit at) "
    rf"(?:a |an )?(?:(?:total|sum) of |total )?(?:a |an )?(?:(?P<kind>soft|hard) )?{_N}"
    rf"(?: points)?(?: (?:(?P<ace>{_WITH_ACE})|(?P<none>{_NO_ACE})))?",
    rf"(?:a )?(?P<kind>soft|hard) {_N}",
]
_ACE = [
    r"(?:(?:i|you|the player|it) (?:have|has|hold|holds) |there is |there's |with )?"
    r"(?:(?P<ace>(?:a|an|one|my|the)?)|(?P<none>no)) ?usable ace",
    r"(?:(?:i|you|the player|it) (?:have|has) |there is )?(?P<none>no) ace (?:that |which )?"
    r"(?:is usable|counts (?:as )?(?:11|eleven))",
    r"(?P<ace>(?:my|the|an|one) ace (?:is usable|counts (?:as )?(?:11|eleven)))",
    r"(?P<none>(?:my|the) ace (?:is not usable|counts (?:as )?(?:1|one)))",
    r"(?P<none>without (?:a )?usable ace)",
]
_DEALER = [
    rf"(?:the )?dealer (?:is )?(?:shows|showing|has shown|has|holds) (?:a |an |the )?{_R}"
    r"(?: (?:face up|showing|up))?",
    r"(?:the )?dealer(?:'s)? (?:(?:face-up|face up|up|upturned|visible|shown|open|first|showing) )?"
    rf"(?:card|upcard|up-card) (?:is|=) (?:a |an |the )?{_R}",
    rf"(?:the )?dealer's (?:a |an |the )?{_R}",
]
_CARDS = [
    rf"(?:{_MY} (?:hand|cards) (?:is|are|hold|holds)|(?:i|you|the player) (?:hold|holds|have|has)) "
    rf"(?P<cards>{_CARD}(?:(?:, and|,| and) {_CARD})+)",
]
_PATTERNS = [re.compile(pattern) for pattern in (*_SUM, *_ACE, *_DEALER, *_CARDS)]
_CARD_NAME = re.compile(rf"\b({_any_of(_RANK_OF)}){_SUIT}\b")

WEIGHTS = {"sum": 0.5, "dealer": 0.4, "ace": 0.1, "cards": 0.3}
"""What each fact is worth: most hands have no usable ace, so that saying so says little."""
REQUIRED = ("sum", "dealer", "ace")
MOST_MENTIONS = 3

Fact = tuple[str, Any]
"""Name and value: ("sum", 16), ("ace", False), ("dealer", "6"), ("cards", ("7", "9"))."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is the case."""

    sum: int
    ace: bool
    dealer: str
    cards: tuple[str, ...]

    def holds(self, fact: Fact) -> bool:
        """Whether a claimed fact is one."""
        name, value = fact
        return getattr(self, name) == value


class BlackjackRules(Rules[tuple[Fact, ...], Facts]):
    """A description must say the sum; dealer's card and ace complete it."""

    env_name: ClassVar[str] = "Blackjack"
    vocabulary: ClassVar[frozenset[str]] = frozenset(
        {
            *("sum", "is", "with", "no", "usable", "ace", "dealer", "shows"),
            *("hand", "cards", "total", "my", "the"),
        }
    )

    def read(self, text: str) -> Reading[tuple[Fact, ...]]:
        """The claims of sentences or of JSON."""
        found = _read_json(text) if text.lstrip().startswith("{") else read_clauses(text, _read)
        if found is None:
            return Reading((), understood=False)
        names = [name for name, _ in found]
        flags = []
        if not found:
            flags.append("no_entity")
        elif "sum" not in names:
            flags.append("no_relation")
        if any(names.count(name) >= MOST_MENTIONS for name in names):
            flags.append("repeated")
        if len({name for name, _ in set(found)}) < len(set(found)):
            flags.append("contradiction")
        return Reading(tuple(dict.fromkeys(found)), tuple(flags))

    def truth(self, state: State) -> Facts:
        """The hand and the dealer's first card."""
        return Facts(
            state["sum"],
            state["usable_ace"],
            state["dealer_shows"],
            tuple(sorted(rank for rank, _ in state["player"])),
        )

    def score(self, content: tuple[Fact, ...], truth: Facts) -> tuple[float, tuple[str, ...]]:
        """Weighted harmonic mean of precision and recall."""
        right = [fact for fact in content if truth.holds(fact)]
        return f1(
            sum(WEIGHTS[name] for name, _ in right),
            sum(WEIGHTS[name] for name, _ in content),
            sum(WEIGHTS[name] for name in REQUIRED),
            sum(WEIGHTS[name] for name, _ in right if name in REQUIRED),
        ), ()

    def has_changed(self, content: tuple[Fact, ...], before: Facts, after: Facts) -> bool:
        """Whether a fact that is spoken of has another value."""
        return any(getattr(before, name) != getattr(after, name) for name, _ in content)

    def describe(self, state: State) -> str:
        """The hands in sentences."""
        truth = self.truth(state)
        ace = "An ace in it counts 11" if truth.ace else "No ace in it counts 11"
        return (
            f"The player's cards are {', '.join(f'{r} of {s}' for r, s in state['player'])}: their "
            f"sum is {truth.sum}. {ace}.\nThe dealer's first card is a {truth.dealer}."
        )

    def canonical(self, state: State) -> str:
        """The facts."""
        truth = self.truth(state)
        return json.dumps([truth.sum, truth.ace, truth.dealer, truth.cards])


def _read(clause: str) -> list[Fact] | None:
    """The facts of a clause."""
    for pattern in _PATTERNS:
        match = pattern.fullmatch(clause)
        if match is None:
            continue
        parts = match.groupdict()
        facts: list[Fact] = []
        if parts.get("cards"):
            ranks = [_RANK_OF[name] for name in _CARD_NAME.findall(parts["cards"])]
            return [("cards", tuple(sorted(ranks)))]
        if parts.get("rank"):
            return [("dealer", _RANK_OF[parts["rank"]])]
        if parts.get("sum"):
            facts.append(("sum", _NUMBER_OF[parts["sum"]]))
        if parts.get("kind"):
            facts.append(("ace", parts["kind"] == "soft"))
        if parts.get("none"):
            facts.append(("ace", False))
        elif parts.get("ace") is not None:
            facts.append(("ace", True))
        return facts
    return None


def _read_json(text: str) -> list[Fact] | None:
    found = read_object(text)
    if found is None or set(found) - {"sum", "ace", "dealer_shows"}:
        return None
    facts: list[Fact] = []
    if "sum" in found:
        if type(found["sum"]) is not int:
            return None
        facts.append(("sum", found["sum"]))
    if "ace" in found:
        if found["ace"] not in ("usable", "none"):
            return None
        facts.append(("ace", found["ace"] == "usable"))
    if "dealer_shows" in found:
        rank = _RANK_OF.get(str(found["dealer_shows"]).lower())
        if rank is None:
            return None
        facts.append(("dealer", rank))
    return facts
