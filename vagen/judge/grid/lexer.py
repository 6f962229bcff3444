"""Turns the words of a description into the few events that carry meaning."""

import re
from typing import Any, NamedTuple

from vagen.judge.grid.lexicon import LEXICON, OTHER, PLAYER, Word

_WORDS = re.compile(r"[a-z]+|\d+|[^\sa-z\d]|\n")
_NOT = re.compile(r"n['’]t\b")
_MOST_OBJECTS = 20
"""A count above this is not a description."""
_UNKNOWN: tuple[Word | None, Any] = (None, None)


class Event(NamedTuple):
    """One meaningful element of a sentence."""

    kind: Word
    value: tuple[tuple[int, int], ...] = ()
    """RELATION: (axis, direction) pairs; ROW: (axis 2 or 3, coordinate) pairs."""
    name: str = ""
    """OBJECT: its class."""
    count: int = 1
    plural: bool = False
    negated: bool = False
    referred: bool = False
    """OBJECT: introduced by `of`, `from`, ...: what a relation refers to."""
    straight: bool = False


def read_events(text: str, base: int) -> list[list[Event]]:
    """The sentences of a text as events.

    Args:
        text: Any text.
        base: What rows and columns in it count from.
    """
    words = _WORDS.findall(_NOT.sub(" not", text.lower()))
    lexer = _Lexer(words, base)
    while lexer.position < len(words):
        lexer.step()
    return [*lexer.sentences, lexer.events]


class _Lexer:
    """Turns words into events, phrase by phrase."""

    def __init__(self, words: list[str], base: int) -> None:
        self.words = words
        self.base = base
        self.roles = [LEXICON.get(word, _UNKNOWN) for word in words]
        self.position = 0
        self.sentences: list[list[Event]] = []
        self.events: list[Event] = []
        self.number: int | None = None
        """Number just read, for `two boxes`."""
        self.ordinal = False
        self.negated = False
        self.no_object = False
        self.referred = False
        self.article = False
        self.straight = False

    def role(self, offset: int) -> Word | None:
        index = self.position + offset
        return self.roles[index][0] if 0 <= index < len(self.roles) else None

    def word(self, offset: int) -> str:
        index = self.position + offset
        return self.words[index] if 0 <= index < len(self.words) else ""

    def _follows(self, *kinds: Word) -> bool:
        """Whether the last event is of one of `kinds`."""
        return bool(self.events) and self.events[-1].kind in kinds

    def _is_another(self) -> bool:
        """Whether `one` stands for a further object: `a hole above and one below`."""
        return self._follows(Word.AND, Word.VERB) and self.role(1) in _AFTER_ONE

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.number, self.article, self.ordinal = None, False, False

    def relate(self, *value: tuple[int, int]) -> None:
        self.emit(Event(Word.RELATION, value, negated=self.negated, straight=self.straight))
        self.straight = self.referred = self.no_object = False

    def step(self) -> None:
        """Consumes one phrase."""
        role, value = self.roles[self.position]
        match role:
            case None:
                self._unknown()
            case Word.OBJECT:
                self._object(*value)
            case Word.RELATION:
                if self.word(0) == "right" and self.word(1) in _AFTER_RIGHT:
                    self.straight = True
                else:
                    self.relate(*value)
            case Word.SAME | Word.MINE:
                self._same()
            case Word.LEVEL:
                self.relate((0, 0))
            case Word.HERE:
                self.relate((0, 0), (1, 0))
            case Word.ALIGNED:
                self._aligned()
            case Word.STRAIGHT:
                self.straight = True
            case Word.ROW | Word.COLUMN:
                self._coordinate(2 if role is Word.ROW else 3)
            case Word.NUMBER if self.word(0) == "one" and self._is_another():
                self.emit(Event(Word.AGAIN))
            case Word.NUMBER:
                self.number = value
            case Word.ORDINAL:
                self.number, self.ordinal = value, True
            case Word.VERB | Word.ON | Word.AGAIN | Word.IT:
                if role is Word.VERB:
                    self.referred = False
                    self.negated &= not self._follows(Word.AND)
                self.emit(Event(role))
            case Word.AND:
                self.emit(Event(role))
                if self.word(0) in _CONTRAST:
                    self.negated = False
            case Word.END:
                self.sentences.append(self.events)
                self.events = []
                self.negated = self.no_object = self.referred = self.straight = False
            case Word.NOT:
                self.negated = True
            case Word.NO:
                self.no_object = self.negated = True
            case Word.OF:
                self.referred = True
            case Word.ARTICLE:
                self.article = True
            case Word.MOVE:
                self._move()
            case Word.FILLER:
                self._filler()
        self.position += 1

    def _object(self, name: str, plural: bool) -> None:
        if name == PLAYER and self.word(1) in ("'", "’") and self.word(2) == "s":
            self.position += 2
            return
        last = self.events[-1] if self.events else None
        if last is not None and last.kind is Word.OBJECT and last.name == name and not plural:
            return
        count = self.number if self.number and not self.ordinal else 1
        if self.number == 0:
            self.no_object = True
        self.emit(
            Event(
                Word.OBJECT,
                name=name,
                count=min(count, _MOST_OBJECTS),
                plural=plural,
                negated=self.no_object,
                referred=self.referred,
            )
        )
        self.negated = self.no_object = self.referred = False

    def _unknown(self) -> None:
        word = self.word(0)
        if word.isdecimal():
            self.number = int(word) if len(word) < 4 else None
            self.ordinal = False
            if self.word(1) in ("st", "nd", "rd", "th"):
                self.ordinal = True
                self.position += 1
            return
        index = 1
        while self.role(index) in (Word.FILLER, None) and self.word(index):
            index += 1
        if self.article and self.role(index) is Word.VERB:
            self.emit(Event(Word.OBJECT, name=OTHER, referred=self.referred))
            self.referred = False

    def _filler(self) -> None:
        """A position `(2, 3)`; any other mark or unit says nothing."""
        opening = self.word(0)
        if opening in _CLOSING:
            row, comma, column, closing = (self.word(offset) for offset in range(1, 5))
            if (
                _is_number(row) and comma == "," and _is_number(column)
                and closing == _CLOSING[opening]
            ):  # fmt: skip
                self.emit(
                    Event(Word.ROW, ((2, int(row) - self.base), (3, int(column) - self.base)))
                )
                self.position += 4
                return
        self.number = None

    def _coordinate(self, axis: int) -> None:
        """`row 2`, `row index 2`, `second row`; `2 rows below` is a distance and says nothing."""
        if self.number is not None and self.ordinal:
            self.emit(Event(Word.ROW, ((axis, self.number - 1),)))
            return
        offset = 1
        while self.word(offset) in _BEFORE_NUMBER:
            offset += 1
        word = self.word(offset)
        spelled = LEXICON.get(word, _UNKNOWN)
        number = int(word) if _is_number(word) else None
        if spelled[0] is Word.NUMBER and word != "both":
            number = spelled[1]
        if number is not None and not self.word(0).endswith("s"):
            self.emit(Event(Word.ROW, ((axis, number - self.base),)))
            self.position += offset
        self.number = None

    def _same(self) -> None:
        """`same row`, `same row and column`, `same place`, `in your row`."""
        value: list[tuple[int, int]] = []
        offset = used = 1
        while True:
            role = self.role(offset)
            if role in (Word.ROW, Word.LEVEL):
                value.append((0, 0))
            elif role is Word.COLUMN:
                value.append((1, 0))
            elif role is Word.PLACE:
                value += [(0, 0), (1, 0)]
            else:
                break
            if _is_number(self.word(offset + 1)):
                break
            used = offset + 1
            offset += 2 if self.role(offset + 1) is Word.AND else 1
            if self.word(offset) in ("the", "same"):
                offset += 1 + (self.word(offset + 1) == "same")
        if value and used > 1:
            self.relate(*dict.fromkeys(value))
            self.position += used - 1

    def _aligned(self) -> None:
        around = {self.word(-1), self.word(1)}
        if "horizontally" in around:
            self.relate((0, 0))
        elif "vertically" in around:
            self.relate((1, 0))
        self.straight = False
        self.position += self.word(1) in ("horizontally", "vertically")

    def _move(self) -> None:
        """Skips the direction of an action: `move right`, `push the box up and left`."""
        offset, used = 1, 0
        while (role := self.role(offset)) is not None:
            if role is Word.RELATION:
                used = offset
            elif role is Word.AND and self.word(offset) != "," and used:
                pass
            elif used or role not in _BEFORE_DIRECTION:
                break
            offset += 1
        self.position += used


_AFTER_RIGHT = frozenset(("above", "below", "over", "under", "underneath", "beneath"))
"""`right above` is adverb and relation: directly above."""
_AFTER_ONE = frozenset((Word.RELATION, Word.SAME, Word.STRAIGHT, Word.ON, Word.OF))
_CONTRAST = frozenset(("but", ",", "while", "whereas"))
_CLOSING = {"(": ")", "[": "]"}
_BEFORE_NUMBER = frozenset(("index", "number", "no", "#", "=", ":"))
_BEFORE_DIRECTION = frozenset(
    (Word.ARTICLE, Word.FILLER, Word.OBJECT, Word.OF, Word.MINE, Word.NUMBER, Word.STRAIGHT)
)


def _is_number(word: str) -> bool:
    return 0 < len(word) < 4 and word.isascii() and word.isdecimal()
