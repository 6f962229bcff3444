"""Reads a state description - a sentence, a dict or a grid - into claims.

Sentences are read in two passes. `read_events` turns words into the few things that matter (an
object, a relation, a position, a verb, ...), and `_Clause` attaches relations to the object they
are said of: `target is below and right`, `to the left there is a hole`, `I am left of the box`
(turned round), `the box is left of me and above the target` (the second half places the box
relative to another object, which claims nothing about the player).
"""

from dataclasses import dataclass, field

from vagen.judge.grid.formats import read_structured, read_symbolic
from vagen.judge.grid.lexer import Event, read_events
from vagen.judge.grid.lexicon import OTHER, PLAYER, Word
from vagen.judge.grid.statement import Claim, Form, Statement


def read_statement(text: str, env_name: str, *, coordinate_base: int = 0) -> Statement:
    """Reads what `text` claims; text that says nothing gives a statement without claims.

    Args:
        text: Any text.
        env_name: `FrozenLake` or `Sokoban`: its symbols are those of a grid.
        coordinate_base: What rows and columns in `text` count from.
    """
    symbolic = read_symbolic(text, env_name)
    if symbolic is not None:
        return symbolic
    structured = read_structured(text, coordinate_base)
    if isinstance(structured, Statement):
        return structured
    return _read_sentences(text if structured is None else structured, coordinate_base)


PARTS = len(Claim._fields)


class _Draft:
    """What has been said of one object so far."""

    def __init__(self, event: Event) -> None:
        self.name = event.name
        self.count = event.count
        self.plural = event.plural
        self.void = event.negated
        self.claims: list[list[int | None]] = [[None] * PARTS]
        self.excluded: tuple[set[int], set[int]] = (set(), set())
        self.straight = False
        self.is_related = False
        self.contradiction = False
        self.same_place_as: str | None = None

    def add(self, relation: Event) -> None:
        self.straight |= relation.straight
        self.is_related = True
        for axis, value in relation.value:
            if relation.negated:
                if axis < 2:
                    self.excluded[axis].add(value)
                continue
            said = self.claims[-1][axis]
            if said is not None and said != value:
                if self.plural:
                    self.claims.append([None] * PARTS)
                else:
                    self.contradiction = True
            self.claims[-1][axis] = value

    def finished(self) -> list[Claim]:
        if self.void:
            return []
        if len(self.claims) == 1:
            self._conclude(self.claims[0])
        claims = [claim for parts in self.claims if not (claim := Claim(*parts)).is_empty]
        if self.plural and len(self.claims) == 1:
            return claims * max(self.count, 2)
        return claims * self.count

    def denies(self, claim: Claim) -> bool:
        """Whether it only says where the object is not, and that is where `claim` has it."""
        return any(
            self.claims[0][axis] is None and claim[axis] in self.excluded[axis] for axis in (0, 1)
        )

    def _conclude(self, parts: list[int | None]) -> None:
        """Adds what follows from negations and from `directly`."""
        for axis in (0, 1):
            remaining = {-1, 0, 1} - self.excluded[axis]
            if parts[axis] is None and len(remaining) == 1:
                parts[axis] = remaining.pop()
            elif parts[axis] in self.excluded[axis]:
                self.contradiction = True
        if self.straight and (parts[0] is None) != (parts[1] is None):
            parts[0 if parts[0] is None else 1] = 0


_SAME_PLACE = Event(Word.RELATION, ((0, 0), (1, 0)))


_COMMA_THERE = [Word.AND, Word.VERB]
"""Of `to the left, there is a hole`."""
_PREDICATES = ([Word.VERB], [Word.RELATION], [Word.ROW])
"""What follows a subject of its own."""


@dataclass(slots=True)
class _Clause:
    """Attaches the relations of one sentence to objects."""

    drafts: list[_Draft]
    """Of the whole text; the clause appends to it."""
    subjects: list[_Draft] = field(default_factory=list)
    joinable: bool = False
    """Nothing has been said of the subjects yet: `the target and the hole are ...`."""
    said: list[Event] = field(default_factory=list)
    """Relations of the subjects whose reference is still open (the player unless it follows)."""
    pending: list[Event] = field(default_factory=list)
    """Relations that came before any object."""
    understood: bool = True
    """Every relation and position was said of some object."""
    on_is_negated: bool = False
    """Of the last `on`: where the object is not says nothing of where it is."""

    def read(self, events: list[Event]) -> None:
        position = 0
        while position < len(events):
            event = events[position]
            before = events[position - 1].kind if position else Word.END
            after = events[position + 1].kind if position + 1 < len(events) else Word.END
            match event.kind:
                case Word.OBJECT:
                    self._object(event, before, after)
                case Word.RELATION:
                    position = self._relation(events, position)
                case Word.ROW:
                    self.understood &= bool(self.subjects)
                    for draft in self.subjects:
                        draft.add(event)
                    self.joinable = False
                case Word.VERB:
                    self.joinable = False
                case Word.ON:
                    self.on_is_negated = event.negated
                case Word.AGAIN if self.subjects:
                    self._close()
                    self._start(Event(Word.OBJECT, name=self.subjects[0].name))
                case Word.IT:
                    self._pronoun()
            position += 1
        self._close()
        self.understood &= not self.pending

    def _object(self, event: Event, before: Word, after: Word) -> None:
        if before is Word.ON and self.subjects and not self.said:
            self.understood &= not self.on_is_negated
            self.said.append(_SAME_PLACE)
            self._refer(event)
        elif (event.referred or before is Word.RELATION) and self._is_reference(event, after):
            self._refer(event)
        elif before is Word.AND and self.joinable and self.subjects:
            self._start(event, join=True)
        else:
            self.understood &= not (before is Word.VERB and self._equates(event))
            self._close()
            self._start(event)
            if before is Word.VERB and self.pending:
                self.said, self.pending = self.pending, []

    def _equates(self, event: Event) -> bool:
        """Whether one thing is called another: `the target is a hole`."""
        names = {draft.name for draft in self.subjects} - {PLAYER, OTHER}
        said = self.said or self.pending or any(draft.is_related for draft in self.subjects)
        return bool(names) and not said and event.name not in (*names, PLAYER, OTHER)

    def _is_reference(self, event: Event, after: Word) -> bool:
        if not (self.said or self.pending):
            return False
        if event.referred or event.name == PLAYER:
            return True
        if after is Word.VERB:
            return not self.subjects
        return after not in (Word.RELATION, Word.ROW)

    def _refer(self, event: Event) -> None:
        """The open relations are relative to `event`."""
        if not self.subjects:
            if event.name != PLAYER:
                self.pending.clear()
            return
        if event.name == PLAYER:
            self._close()
            return
        if self.subjects[0].name == PLAYER:
            draft = _Draft(event)
            self.drafts.append(draft)
            self._turn(draft)
        elif self.said == [_SAME_PLACE]:
            self.subjects[0].same_place_as = event.name
        self.said = []

    def _turn(self, draft: _Draft) -> None:
        """Adds to `draft` what is said of the player relative to it, seen from the player."""
        for relation in self.said:
            turned = tuple((axis, -value if axis < 2 else value) for axis, value in relation.value)
            draft.add(relation._replace(value=turned))

    def _pronoun(self) -> None:
        """`it` is the object last spoken of: what a relation refers to, or the new subject."""
        objects = [draft for draft in self.drafts if draft.name != PLAYER]
        if not self.said:
            self.subjects = objects[-1:]
        elif objects and self.subjects[0].name == PLAYER:
            self._turn(objects[-1])
        self.said = []

    def _relation(self, events: list[Event], position: int) -> int:
        """Takes the relation at `position`; returns the last position it used."""
        end = position
        while end + 1 < len(events) and events[end + 1].kind is Word.RELATION:
            end += 1
        subject = end + 1
        if not self.subjects and [e.kind for e in events[subject : subject + 2]] == _COMMA_THERE:
            subject += 1
        if subject < len(events) and events[subject].name == PLAYER:
            subject += 1
        kinds = [event.kind for event in events[subject : subject + 3]]
        if kinds[:2] == [Word.VERB, Word.OBJECT] and kinds[2:] != [Word.VERB]:
            subject += 1
        elif subject == end + 1 or kinds[:1] != [Word.OBJECT] or kinds[1:2] in _PREDICATES:
            subject = len(events)
        inverted = subject < len(events) and events[subject].name != PLAYER
        if inverted and not events[subject].referred:
            self._close()
            self._start(events[subject])
            self.said = [*self.pending, *events[position : end + 1]]
            self.pending = []
            self._close()
            return subject
        (self.said if self.subjects else self.pending).append(events[position])
        self.joinable = False
        return position

    def _start(self, event: Event, *, join: bool = False) -> None:
        draft = _Draft(event)
        self.drafts.append(draft)
        self.subjects = [*self.subjects, draft] if join else [draft]
        self.joinable = True

    def _close(self) -> None:
        """The open relations are relative to the player."""
        for draft in self.subjects:
            if draft.name != PLAYER:
                for relation in self.said:
                    draft.add(relation)
        self.said = []


def _read_sentences(text: str, base: int) -> Statement:
    drafts: list[_Draft] = []
    sentences, understood = read_events(text, base)
    for events in sentences:
        clause = _Clause(drafts)
        clause.read(events)
        understood &= clause.understood
    claims: dict[str, list[Claim]] = {}
    player: Claim | None = None
    contradiction = False
    for draft in drafts:
        found = draft.finished()
        contradiction |= draft.contradiction and draft.name != OTHER
        if draft.name == PLAYER:
            for claim in found:
                merged = claim if player is None else player.merged(claim)
                contradiction |= merged is None
                player = merged or player
        elif found and draft.name != OTHER:
            claims.setdefault(draft.name, []).extend(found)
    counts: dict[str, int] = {}
    for draft in drafts:
        counts[draft.name] = max(counts.get(draft.name, 1), draft.count)
        for claim in claims.get(draft.name, ()):
            # `There are no targets` and `it is not left` deny what is said elsewhere.
            contradiction |= draft.denies(claim) or (draft.void and not draft.is_related)
    for draft in drafts:
        if draft.same_place_as in claims and draft.name not in claims:
            claims[draft.name] = claims[draft.same_place_as][:1]
    return Statement(
        form=Form.LANGUAGE,
        claims={name: tuple(found) for name, found in claims.items()},
        named=frozenset(draft.name for draft in drafts) - {OTHER},
        player=player,
        counts=counts,
        contradiction=contradiction,
        understood=understood,
    )
