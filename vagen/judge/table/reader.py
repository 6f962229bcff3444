"""Reads what a text says of things on a table: places in millimetres, and what is held.

A text is read clause by clause, and each clause must be one of a few sentences from its first word
to its last. A clause that is none of them makes the whole text one that is not understood: what is
not understood claims nothing.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A position in millimetres."""

    x: float
    y: float
    z: float | None = None
    """None if only the place on the table is said."""


@dataclass(slots=True)
class Statement:
    """What a text states. Things go by `red cube`, `apple`, `drawer`."""

    places: dict[str, Place] = field(default_factory=dict)
    mentions: dict[str, int] = field(default_factory=dict)
    """How often each thing is placed."""
    held: set[str] = field(default_factory=set)
    not_held: set[str] = field(default_factory=set)
    nothing_held: bool = False
    drawer_closed: bool | None = None
    on: set[tuple[str, str]] = field(default_factory=set)
    """(upper, lower) pairs; in a drawer counts as on it."""
    contradiction: bool = False

    @property
    def says_something(self) -> bool:
        """Whether anything is stated at all."""
        rest = self.held or self.not_held or self.nothing_held or self.on
        return bool(self.places or rest or self.drawer_closed is not None)

    def place(self, name: str, place: Place) -> None:
        """Adds a position; another one for the same thing is a contradiction."""
        known = self.places.setdefault(name, place)
        if known != place:
            if known[:2] != place[:2] or None not in (known.z, place.z):
                self.contradiction = True
            self.places[name] = max(known, place, key=lambda one: one.z is not None)
        self.mentions[name] = self.mentions.get(name, 0) + 1

    def close_drawer(self, closed: bool) -> None:
        """Adds whether the drawer is closed."""
        self.contradiction |= self.drawer_closed not in (None, closed)
        self.drawer_closed = closed

    def check(self) -> "Statement":
        """Sees whether what is said of the gripper fits together."""
        self.contradiction |= bool(self.held & self.not_held)
        self.contradiction |= self.nothing_held and bool(self.held)
        return self


COLOURS = (
    *("red", "green", "blue", "yellow", "purple", "orange", "pink"),
    *("white", "black", "grey", "gray", "brown", "cyan"),
)
_NOUNS = "cube block apple drawer"
_NUMBER = r"[+-]?\d{1,4}(?:\.\d{1,3})?"
_POSITION = re.compile(
    rf"[(\[] ?({_NUMBER}) ?, ?({_NUMBER})(?: ?, ?({_NUMBER}))? ?[)\]](?: ?mm\b)?"
    rf"|[(\[]?\bx ?[=:]? ?({_NUMBER})(?: ?mm)? ?(?:,? and|,)? ?\by ?[=:]? ?({_NUMBER})(?: ?mm)?"
    rf"(?: ?(?:,? and|,)? ?\bz ?[=:]? ?({_NUMBER})(?: ?mm)?)?[)\]]?"
    rf"|(?<![\d.,(\[-])(?<!, )({_NUMBER}) ?, ?({_NUMBER}) ?, ?({_NUMBER})(?: ?mm\b)?(?! ?[,\d)\]])"
)
"""`(1, 2, 3)`, `x=1, y=2, z=3` or `1, 2, 3`, with or without a unit; z may be missing."""
_MARK = "@"
"""Stands for a position that was read; the gate lets no text write it unnoticed."""
_THING = rf"(?:(?:{'|'.join(COLOURS)}) (?:cube|block)|(?:red )?apple|(?:wooden )?drawer)"
_IS = (
    "is|are|lies|sits|rests|stands|stays|remains|has been|will be|will lie|will stay|will remain|"
    "ends up|will end up|will sit|will rest|moves to|moved to|will move to|is moved to|"
    "has moved to|has been moved to|will be moved to"
)
_STANDING = (
    "located|positioned|placed|found|lying|sitting|resting|situated|standing|stacked|put|"
    "stay|remain"
)
_POINT = "position|coordinates|coordinate|location|point"
_WHERE = rf"(?: (?:{_STANDING}))*(?: on table)?(?: (?:at|in|has|with))?(?: (?:{_POINT}))?(?: of)?"
"""What may stand between a thing's verb and its place."""
_HELD = (
    "held|gripped|grasped|carried|lifted|picked up|held up|in gripper|in hand|in grip|"
    "between fingers|in its fingers"
)
_HOLDER = "gripper|robot|robot gripper|hand|arm|robot arm|i|it"
_HOLDS = (
    "holds|hold|is holding|am holding|grips|is gripping|grasps|is grasping|carries|is carrying|"
    "will hold|will be holding|has gripped|has"
)
_BY = rf"(?: by (?:{_HOLDER}|fingers))?"
_SENTENCES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "place",
            rf"(?:(?:{_POINT}|middle|center|centre) of )?(?P<thing>{_THING})"
            rf"(?:(?:['’]s)? (?:{_POINT}|middle|center|centre))?(?: (?:{_IS}))?{_WHERE} {_MARK}",
        ),
        (
            "held",
            rf"(?P<thing>{_THING})(?: (?:{_IS}))? (?:being )?(?:{_HELD}){_BY}"
            rf"(?:(?: and)?{_WHERE} {_MARK})?",
        ),
        (
            "held",
            rf"(?:{_HOLDER}) (?:{_HOLDS}) (?P<thing>{_THING})"
            rf"(?:{_WHERE} {_MARK})?",
        ),
        ("not_held", rf"(?P<thing>{_THING}) (?:is|will be) (?:not|no longer) (?:{_HELD}){_BY}"),
        (
            "nothing",
            rf"(?:nothing|no cube|no thing|no object)(?: is| will be)? (?:{_HELD}){_BY}"
            rf"|(?:{_HOLDER}) (?:is|will be|stays|remains) (?:empty|open)|(?:{_HOLDER}) "
            rf"(?:{_HOLDS}) (?:nothing|no cube|no object)|gripper:? empty|held:? nothing"
            rf"|(?:{_HOLDER}) (?:is not holding|does not hold) (?:anything|any cube)",
        ),
        ("drawer", r"drawer (?:is |stays |remains |will be )?(?P<how>open|opened|closed|shut)"),
        (
            "on",
            rf"(?P<thing>{_THING})(?: (?:{_IS}))?(?: stacked| lying| sitting| placed)? "
            rf"(?:on|on top of|in|inside|upon) (?P<lower>{_THING})(?:{_WHERE} {_MARK})?",
        ),
        ("neutral", r"after (?:that|this|(?:my |these |both )?actions?)|then|now"),
    )
)
_FILLERS = re.compile(r"\b(?:there (?:is|are)|the|a|an|currently|still|now|then|i see|i observe)\b")
_OPENING = re.compile(
    rf"^(?:(?:current )?(?:{_POINT}|positions|locations|objects|things|state)(?: are| is)?:)"
)
_BULLET = re.compile(r"^[-*•] ")
_ENDS = re.compile(r"[;\n!]|\.(?!\d)|, and\b|,|\band\b(?! at\b)|\bwhile\b|\bwhereas\b|\bbut\b")

VOCABULARY = frozenset(
    re.findall(
        r"[a-z]+",
        " ".join([*COLOURS, _NOUNS, _IS, _STANDING, _POINT, _HELD, _HOLDER, _HOLDS])
        + " the a an and mm x y z at fingers by nothing empty open closed on top of in",
    )
)
"""Words of these sentences."""


def read_statement(text: str) -> Statement | None:
    """What a text states; None if any part of it is not understood. Never raises."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _read_dict(stripped)
    lower = stripped.lower().replace("−", "-")
    if _MARK in lower:
        return None
    places = [_place(match) for match in _POSITION.finditer(lower)]
    lower = _POSITION.sub(f" {_MARK} ", lower)
    # A dash with a space on both sides; a minus sign before brackets is no dash.
    lower = re.sub(rf"(?:->|[:=,–—]|-(?=  ))+ *(?={_MARK})", " ", lower)
    statement, left = Statement(), iter(places)
    for clause in _ENDS.split(_OPENING.sub(" ", _FILLERS.sub(" ", lower).strip())):
        words = _BULLET.sub("", " ".join(clause.split()))
        if words and not _read_clause(words, statement, left):
            return None
    return statement.check()


def _read_clause(words: str, statement: Statement, places: Any) -> bool:
    """Adds what a clause states; whether it is one of the sentences."""
    for kind, pattern in _SENTENCES:
        match = pattern.fullmatch(words)
        if match is None:
            continue
        found = match.groupdict()
        thing = _name(found.get("thing") or "")
        if _MARK in words:
            statement.place(thing, next(places))
        match kind:
            case "held":
                statement.held.add(thing)
            case "not_held":
                statement.not_held.add(thing)
            case "nothing":
                statement.nothing_held = True
            case "drawer":
                statement.close_drawer(found["how"] in ("closed", "shut"))
            case "on":
                statement.on.add((thing, _name(found["lower"])))
        return True
    return False


def _place(match: re.Match[str]) -> Place:
    numbers = [float(group) for group in match.groups() if group is not None]
    return Place(*numbers)


def _name(words: str) -> str:
    """A thing's name in states."""
    *colour, noun = words.replace("block", "cube").split() or [""]
    return f"{colour[0]} cube" if noun == "cube" and colour else noun


def _read_dict(text: str) -> Statement | None:
    """A dict from things to `[x, y, z]`, with `held`; None if it is anything else."""
    text = text.replace("'", '"').replace("None", "null").replace("(", "[").replace(")", "]")
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    statement = Statement()
    for pair in pairs:
        if not isinstance(pair, tuple):
            return None
        key, value = pair
        name = _thing(key)
        if name is not None and _is_position(value):
            statement.place(name, Place(*map(float, value)))
        elif key.lower() == "held" and value in (None, "", "none", "nothing"):
            statement.nothing_held = True
        elif key.lower() == "held" and isinstance(value, str) and _thing(value) is not None:
            statement.held.add(_thing(value) or "")
        else:
            return None
    return statement.check()


def _thing(key: str) -> str | None:
    """The thing that a key names, such as `red_cube` or `red cube position`."""
    words = key.lower().replace("_", " ").removesuffix(" position").strip()
    return _name(words) if re.fullmatch(_THING, words) else None


def _is_position(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 2 <= len(value) <= 3
        and all(type(number) in (int, float) and abs(number) < 10_000 for number in value)
    )
