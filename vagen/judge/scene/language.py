"""Reads a description of what is around - sentences or JSON - into claims.

Sentences are cut into clauses at marks and at `and`. A clause that names a thing says of it what
stands before and after the name (`to my left is a red chair, 2 m away`); one that names none goes
on about the thing before (`..., about 2 m away`). Every word must play a part: a text with a word
that plays none, or that places a thing relative to another thing, is not understood.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from vagen.judge.scene.lexicon import TARGET, Role, Token, tokens_of

AHEAD, RIGHT = 0, 1
"""Axes of directions."""
_CENTRES = {
    (1, 0): 0,
    (1, 1): 45,
    (0, 1): 90,
    (-1, 1): 135,
    (-1, 0): 180,
    (-1, -1): -135,
    (0, -1): -90,
    (1, -1): -45,
}
"""Bearings, in degrees to the right, of signs on the two axes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said of one thing. A part that is not said is None."""

    kind: str
    colour: str | None = None
    bearing: float | None = None
    """Degrees to the right of where the agent looks, negative to the left."""
    exact: bool = False
    """The bearing was said in degrees."""
    excluded: tuple[float, ...] = ()
    """Bearings that the thing is said not to have."""
    metres: float | None = None
    in_view: bool | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """Everything one text claims, in its order."""

    claims: tuple[Claim, ...] = ()
    contradiction: bool = False
    """One thing is said to be left and right, near and far, ..."""
    mentions: int = 0
    """How often the thing is spoken of that is spoken of most."""
    understood: bool = True


class _NotUnderstoodError(Exception):
    """A word or a construction that plays no known part."""


def read_description(text: str) -> Description:
    """Reads what `text` claims; never raises, whatever the text is."""
    try:
        if text.lstrip().startswith("{"):
            return _read_json(text)
        return _Reader().read(tokens_of(text))
    except _NotUnderstoodError:
        return Description(understood=False)


@dataclass(slots=True)
class _Draft:
    """What has been said of a thing so far."""

    kind: str
    colour: str | None = None
    signs: list[set[int]] = field(default_factory=lambda: [set(), set()])
    slight: bool = False
    degrees: set[float] = field(default_factory=set)
    excluded: list[float] = field(default_factory=list)
    metres: set[float] = field(default_factory=set)
    in_view: set[bool] = field(default_factory=set)
    mentions: int = 1
    prefixed: bool = False
    denied: bool = False
    """There is none: `no chair is visible`."""

    @property
    def is_bare(self) -> bool:
        return not (any(self.signs) or self.degrees or self.excluded or self.metres)

    @property
    def contradicts_itself(self) -> bool:
        if self.denied:
            return not self.is_bare
        return any(len(said) > 1 for said in (*self.signs, self.degrees, self.metres, self.in_view))

    def can_be(self, other: "_Draft") -> bool:
        """Whether both can be one thing, of which the text speaks twice."""
        if self.kind != other.kind or (
            self.colour and other.colour and self.colour != other.colour
        ):
            return False
        return not any(
            ours and theirs and ours != theirs
            for ours, theirs in (
                (
                    self.signs if any(self.signs) else None,
                    other.signs if any(other.signs) else None,
                ),
                (self.metres, other.metres),
                (self.in_view, other.in_view),
                (self.degrees, other.degrees),
            )
        )

    def take(self, other: "_Draft") -> None:
        """Adds what `other` has, its name aside."""
        for axis in (AHEAD, RIGHT):
            self.signs[axis] |= other.signs[axis]
        self.slight |= other.slight
        self.degrees |= other.degrees
        self.excluded += other.excluded
        self.metres |= other.metres
        self.in_view |= other.in_view
        self.denied |= other.denied

    def finished(self) -> Claim:
        if self.denied:
            return Claim(self.kind, self.colour, in_view=False)
        bearing: float | None = None
        if self.degrees and self.signs[RIGHT]:
            bearing = next(iter(self.degrees)) * next(iter(self.signs[RIGHT]))
        elif any(self.signs):
            ahead, right = (next(iter(signs), 0) for signs in self.signs)
            bearing = _CENTRES[ahead or int(self.slight and right != 0), right]
        return Claim(
            self.kind,
            self.colour,
            bearing,
            bool(self.degrees),
            tuple(self.excluded),
            next(iter(self.metres), None),
            next(iter(self.in_view), None),
        )


class _Reader:
    """Reads the clauses of a text."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._after_and: list[bool] = []
        """Of each draft, whether `and` and nothing else stands before its clause."""

    def read(self, tokens: list[Token]) -> Description:
        joined = named = False
        begins = True
        clause: list[Token] = []
        for token in [*_with_halves(tokens), Token(Role.BREAK, True)]:
            if token.role not in (Role.AND, Role.BREAK):
                if begins and token.role is Role.VERB:
                    raise _NotUnderstoodError
                begins = False
                clause.append(token)
                continue
            ends = token.role is Role.BREAK and token.value
            names_a_thing = any(part.role is Role.THING for part in clause)
            if names_a_thing or named or ends:
                self._clause(clause, joined=joined)
                joined = token.role is Role.AND or (joined and not clause)
                clause = []
            else:  # `to my left, 2 m away, is a chair`: it is said of the first thing to come
                clause = _without_moves(clause)
            named = not ends and (named or names_a_thing)
            begins = begins or ends
        self._share()
        drafts: list[_Draft] = []
        for draft in self._drafts:
            known = next((other for other in drafts if other.can_be(draft)), None)
            if known is None:
                drafts.append(draft)
            else:
                known.colour = known.colour or draft.colour
                known.mentions += 1
                known.take(draft)
        if any(draft.kind != TARGET for draft in drafts):  # `the target is the sofa: ...`
            drafts = [draft for draft in drafts if draft.kind != TARGET or not draft.is_bare]
        claims = tuple(draft.finished() for draft in drafts)
        return Description(
            claims,
            any(draft.contradicts_itself for draft in drafts),
            max((draft.mentions for draft in drafts), default=0),
        )

    def _clause(self, tokens: list[Token], *, joined: bool) -> None:
        names_a_thing = any(token.role is Role.THING for token in tokens)
        tokens = tokens if names_a_thing else _without_moves(tokens)
        before = _Draft("") if names_a_thing or not self._drafts else None
        said = before or self._drafts[-1]
        position, colour, moving = 0, None, False
        while position < len(tokens):
            role, value = tokens[position]
            rest = tokens[position + 1 :]
            if role is Role.THING:
                draft = _Draft(value, colour, prefixed=before is not None and not before.is_bare)
                if before is not None:
                    draft.take(before)
                self._drafts.append(draft)
                self._after_and.append(joined and before is not None)
                said, before, colour, moving = draft, None, None, False
            elif role is Role.COLOUR:
                if colour is not None or not _next_is(rest, Role.THING):
                    raise _NotUnderstoodError
                colour = value
            elif role is Role.MOVE:
                moving = True
            elif _plays_no_part(tokens, position):
                raise _NotUnderstoodError
            elif not moving:
                position += _modify(said, tokens, position)
            position += 1
        if before is not None and (before.in_view or before.denied or not before.is_bare):
            raise _NotUnderstoodError  # something is said of nothing

    def _share(self) -> None:
        """`the chair and the table are ahead`, `ahead are a chair and a table`."""
        for index in range(len(self._drafts) - 1, 0, -1):
            one, two = self._drafts[index - 1], self._drafts[index]
            if self._after_and[index] and one.is_bare and not one.in_view and not two.prefixed:
                one.take(two)
        for index in range(1, len(self._drafts)):
            one, two = self._drafts[index - 1], self._drafts[index]
            if self._after_and[index] and two.is_bare and not two.in_view and one.prefixed:
                two.take(one)
                two.prefixed = True


def _without_moves(tokens: list[Token]) -> list[Token]:
    """A clause without a thing, up to where somebody moves: `after turning right, ...`."""
    for index, token in enumerate(tokens):
        if token.role is Role.MOVE or (
            token.role is Role.AFTER and _moves_first(tokens[index + 1 :])
        ):
            return tokens[:index]
    return tokens


def _plays_no_part(tokens: list[Token], position: int) -> bool:
    """Whether the token is unknown, or opens what only looks like a description."""
    role = tokens[position].role
    if role is Role.AFTER:
        return not _moves_first(tokens[position + 1 :])
    return role is Role.UNKNOWN or _refers_to_a_thing(tokens, position)


def _modify(said: _Draft, tokens: list[Token], position: int) -> int:
    """Adds what the token at `position` says; returns how many further tokens it used."""
    role, value = tokens[position]
    match role:
        case Role.WAY:
            said.signs[value[0]].add(value[1])
        case Role.SLIGHTLY:
            said.slight = True
        case Role.LENGTH:
            said.metres.add(value)
        case Role.NUMBER:
            following = tokens[position + 1] if position + 1 < len(tokens) else Token(Role.BREAK)
            if following.role is Role.UNIT:
                said.metres.add(value * following.value)
                return 1
            if following.role is Role.DEGREES:
                said.degrees.add(value)
                return 1
            if following.role is not Role.BREAK:
                raise _NotUnderstoodError
            said.metres.add(value)
        case Role.SEEN:
            said.in_view.add(True)
        case Role.UNSEEN:
            said.in_view.add(False)
        case Role.NOT | Role.NO:
            return _negate(said, tokens, position)
        case Role.UNIT | Role.DEGREES | Role.HALF:
            raise _NotUnderstoodError
    return 0


def _negate(said: _Draft, tokens: list[Token], position: int) -> int:
    """Adds what is denied from `position` on; returns how many further tokens it used."""
    if tokens[position].role is Role.NO:
        if not _next_is(tokens[position + 1 :], Role.THING, Role.COLOUR):
            raise _NotUnderstoodError
        said.denied = True
        return 0
    used = 1
    while position + used < len(tokens):
        role, value = tokens[position + used]
        if role is Role.SEEN:
            said.in_view.add(False)
            return used
        if role is Role.WAY:
            signs = [0, 0]
            signs[value[0]] = value[1]
            said.excluded.append(_CENTRES[signs[0], signs[1]])
            return used
        if role not in (Role.FILLER, Role.VERB, Role.ARTICLE, Role.ME):
            break
        used += 1
    raise _NotUnderstoodError


def _refers_to_a_thing(tokens: list[Token], position: int) -> bool:
    """Whether the token opens a place relative to a thing: `left of the table`, `behind it`."""
    role, value = tokens[position]
    if role is Role.OF or (role is Role.WAY and value == (AHEAD, -1)):
        following = tokens[position + 1 :]
        if role is Role.WAY and not (following and following[0].role is Role.ARTICLE):
            return False
        return _next_is(following, Role.THING, Role.COLOUR)
    return False


def _moves_first(tokens: list[Token]) -> bool:
    """Whether somebody moves before a thing is named."""
    roles = (token.role for token in tokens)
    return next((role for role in roles if role in (Role.MOVE, Role.THING)), None) is Role.MOVE


def _next_is(tokens: list[Token], *roles: Role) -> bool:
    """Whether the next word, articles aside, has one of the roles."""
    following = next((token for token in tokens if token.role is not Role.ARTICLE), None)
    return following is not None and following.role in roles


def _with_halves(tokens: list[Token]) -> list[Token]:
    """`two and a half` as one number."""
    result: list[Token] = []
    for token in tokens:
        tail = [part.role for part in result[-3:]]
        if token.role is Role.HALF and tail[-3:] == [Role.NUMBER, Role.AND, Role.ARTICLE]:
            result[-3:] = [Token(Role.NUMBER, result[-3].value + 0.5)]
        else:
            result.append(token)
    return result


_KEYS = {"name", "type", "colour", "color", "direction", "distance"}


def _read_json(text: str) -> Description:
    """`{"target": name, "direction": ..., "distance": ..., "objects": [{"name": ...}, ...]}`."""
    try:
        content = json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise _NotUnderstoodError from error
    if not isinstance(content, dict):
        raise _NotUnderstoodError
    objects = content.pop("objects", [])
    if not isinstance(objects, list):
        raise _NotUnderstoodError
    if "target" in content:
        objects = [{"name": content.pop("target"), **content}, *objects]
    elif content:
        raise _NotUnderstoodError
    claims: list[Claim] = []
    contradiction = False
    for record in objects:
        part = _Reader().read(tokens_of(_sentence(record)))
        if len(part.claims) != 1:
            raise _NotUnderstoodError
        claims += part.claims
        contradiction |= part.contradiction
    return Description(tuple(claims), contradiction)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise _NotUnderstoodError
    return dict(pairs)


def _sentence(record: Any) -> str:
    """A record as the words it stands for."""
    if not isinstance(record, dict) or set(record) - _KEYS:
        raise _NotUnderstoodError
    distance = record.get("distance", "")
    if isinstance(distance, int | float) and not isinstance(distance, bool):
        distance = f"{distance} m"
    words = [
        record.get("colour", record.get("color", "")),
        record.get("name", record.get("type", "")),
        record.get("direction", ""),
        distance,
    ]
    if not all(isinstance(word, str) for word in words):
        raise _NotUnderstoodError
    return " ".join(words)
