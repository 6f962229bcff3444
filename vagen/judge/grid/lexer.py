"""Turns the words of a description into the few events that carry meaning."""

import re
from typing import Any, NamedTuple

from vagen.judge.grid.lexicon import LEXICON, OTHER, PLAYER, Word

_WORDS = re.compile(r"[a-z]+|\d+|[^\sa-z\d]|\n")
_SAME_MEANING = (
    (re.compile(r"n['’]t\b"), " not"),
    (re.compile(r"\bno longer\b"), "not"),
    (re.compile(r"\bas well as\b"), "and"),
    (re.compile(r"[’‘]"), "'"),
    (re.compile(r"\b(it|that|there|here)'s\b"), r"\1 is"),
    (re.compile(r"\bi'm\b"), "i am"),
    (re.compile(r"\b(you|we|they)'re\b"), r"\1 are"),
    (re.compile(r"[–—‐‑−]"), "-"),
    (re.compile(r"[•·×]"), "*"),
)
"""Phrases and marks that are read as others."""
_MOST_OBJECTS = 20
"""A count above this is not a description."""
_LONGEST_NAME = 8
"""Words between an article and a verb that may name something unknown."""
_UNKNOWN: tuple[Word | None, Any] = (None, None)


class Event(NamedTuple):
    """One meaningful element of a sentence."""

    kind: Word
    value: tuple[tuple[int, int], ...] = ()
    """RELATION: (axis, direction) pairs, with (axis + 4, distance) where one is said; ROW: (axis 2
    or 3, coordinate) pairs."""
    name: str = ""
    """OBJECT: its class."""
    count: int = 1
    plural: bool = False
    negated: bool = False
    referred: bool = False
    """OBJECT: introduced by `of`, `from`, ...: what a relation refers to."""
    straight: bool = False


def read_events(text: str, base: int) -> tuple[list[list[Event]], bool]:
    """The sentences of a text as events.

    Args:
        text: Any text.
        base: What rows and columns in it count from.

    Returns:
        The sentences, and whether every word and mark of them was used.
    """
    text = text.lower()
    for pattern, meaning in _SAME_MEANING:
        text = pattern.sub(meaning, text)
    words = _WORDS.findall(text)
    lexer = _Lexer(words, base)
    while lexer.position < len(words):
        lexer.step()
    lexer.end_sentence()
    return lexer.sentences, lexer.understood


class _Lexer:
    """Turns words into events, phrase by phrase."""

    def __init__(self, words: list[str], base: int) -> None:
        self.words = words
        self.base = base
        self.roles = [LEXICON.get(word, _UNKNOWN) for word in words]
        self.position = 0
        self.sentences: list[list[Event]] = []
        self.events: list[Event] = []
        self.understood = True
        self.number: int | None = None
        """Number just read, for `two boxes`."""
        self.distance: int | None = None
        """Number of cells just read, for `two cells below`."""
        self.ordinal = False
        self.negated = False
        self.negation_is_open = False
        """Nothing has been found yet that the last negation denies."""
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
        self._drop_number()
        self.events.append(event)
        self.article = False

    def relate(self, *value: tuple[int, int]) -> None:
        if self.number is not None and not self.ordinal:
            self.distance = self.number
            self._drop_number(used=True)
        if self.distance is not None:
            if len(value) == 1 and value[0][1]:
                value = (*value, (value[0][0] + 4, self.distance))
            else:
                self.understood = False
            self.distance = None
        # `Not above and left` may deny both or the one that is not said: it says nothing.
        self.understood &= not self.negated or (self.negation_is_open and len(value) == 1)
        self.emit(Event(Word.RELATION, value, negated=self.negated, straight=self.straight))
        self.straight = self.referred = self.no_object = self.negation_is_open = False

    def end_sentence(self) -> None:
        """Closes the sentence; a negation that denied nothing may deny what was said before."""
        self._drop_number()
        self.understood &= not self.negation_is_open
        self.sentences.append(self.events)
        self.events = []
        self.negated = self.negation_is_open = self.no_object = False
        self.referred = self.straight = self.article = False
        self.distance = None

    def _drop_number(self, *, used: bool = False) -> None:
        """Forgets the number just read; one that nothing used is not understood."""
        if self.number is not None and not used:
            self.understood = False
        self.number, self.ordinal = None, False

    def _set_number(self, value: int, *, ordinal: bool = False) -> None:
        self._drop_number()
        if self._is_label():
            return
        self.number, self.ordinal = value, ordinal

    def _is_label(self) -> bool:
        """Whether a number only counts sentences or objects: `1. target`, `hole 2: above`."""
        after, before = self.word(1), self.word(-1)
        if not self.events and before in ("", "\n") and after in (".", ")", ":"):
            self.position += 1
            return True
        return (
            self._follows(Word.OBJECT)
            and self.role(-1) in (Word.OBJECT, Word.NUMBER_MARK)
            and self.role(1) in (Word.VERB, Word.RELATION, Word.ON)
        )

    def step(self) -> None:
        """Consumes one phrase."""
        role, value = self.roles[self.position]
        match role:
            case None:
                self._unknown()
            case Word.OBJECT:
                self._object(*value)
            case Word.RELATION:
                self._directed(value)
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
                self._set_number(value)
            case Word.ORDINAL:
                self._set_number(value, ordinal=True)
            case Word.VERB | Word.ON | Word.AGAIN | Word.IT:
                if role is Word.VERB:
                    self._question()
                    self.referred = False
                    self.negated &= not self._follows(Word.AND) or self.negation_is_open
                self.emit(Event(role, negated=role is Word.ON and self.negation_is_open))
            case Word.AND:
                self.emit(Event(role))
                if self.word(0) in _CONTRAST:
                    self.understood &= not self.negation_is_open
                    self.negated = self.negation_is_open = False
            case Word.END:
                self.end_sentence()
            case Word.NOT | Word.NO:
                # Two negations of one thing would have to be weighed against each other.
                self.understood &= not self.negation_is_open
                self.negated = self.negation_is_open = True
                self.no_object |= self.word(0) == "no"
            case Word.OF:
                self._of()
            case Word.ARTICLE:
                self.article = True
            case Word.MOVE:
                self._move()
            case Word.PLACE | Word.UNIT:
                self._unit(role)
            case Word.OTHER_ONE:
                self.understood &= self.role(1) in (Word.OBJECT, Word.PLACE, Word.NUMBER)
            case Word.PLAIN:
                self._question()
                self.understood &= (
                    self.word(0) != "far"
                    or self.word(1) != "from"
                    or (self.role(2) in (Word.OBJECT, Word.ARTICLE))
                )
            case Word.NUMBER_MARK:
                pass
            case Word.MARK:
                self._mark()
        self.position += 1

    def _question(self) -> None:
        """`is the target above` and `does it lie above` ask."""
        if self.position == 0 or self.role(-1) is Word.END:
            self.understood &= self.word(0) not in _ASKING

    def _directed(self, value: tuple[tuple[int, int], ...]) -> None:
        if self.word(0) == "right" and self.word(1) in _AFTER_RIGHT:
            self.straight = True
            return
        # A `higher row` is one with a lower index to some and above to others.
        if self.word(0) in _COMPARED and self.role(1) in (Word.ROW, Word.COLUMN):
            self.understood = False
        self.relate(*value)

    def _of(self) -> None:
        """`other than below`, `far from left`: only `to` may stand before a relation."""
        self.referred = True
        if self.word(0) != "to":
            self.understood &= self.role(1) not in _DIRECTIONAL

    def _unit(self, role: Word) -> None:
        """`two cells` is a distance if a relation follows; `the cell is ...` speaks of a cell."""
        if self.number is not None and not self.ordinal:
            number = self.number
            self._drop_number(used=True)
            offset = 1
            while self.role(offset) in _BEFORE_RELATION:
                offset += 1
            if self.role(offset) is Word.RELATION:
                self.distance = number
            else:  # what is not said of a direction cannot be checked
                self.understood = False
            return
        self._drop_number(used=self.ordinal)
        if self.article and role is Word.PLACE and self.role(1) is Word.VERB:
            self.emit(Event(Word.OBJECT, name=OTHER, referred=self.referred))
            self.referred = False

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
        self._drop_number(used=True)
        # `No hole is left` speaks of holes; `not the hole is left` takes back what follows it.
        self.understood &= self.no_object or not self.negation_is_open
        self.no_object |= self.negation_is_open
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
        self.negated = self.negation_is_open = self.no_object = self.referred = False

    def _unknown(self) -> None:
        word = self.word(0)
        if _is_number(word):
            ordinal = self.word(1) in ("st", "nd", "rd", "th")
            self._set_number(int(word), ordinal=ordinal)
            self.position += ordinal
            return
        self.understood = False
        self._drop_number(used=True)
        index = 1
        while index < _LONGEST_NAME and self.role(index) in (Word.PLAIN, None) and self.word(index):
            index += 1
        if self.article and self.role(index) is Word.VERB:
            self.emit(Event(Word.OBJECT, name=OTHER, referred=self.referred))
            self.referred = False

    def _mark(self) -> None:
        """A position `(2, 3)`; any other bracket or dash says nothing."""
        opening = self.word(0)
        if opening in _CLOSING:
            row, comma, column, closing = (self.word(offset) for offset in range(1, 5))
            if (
                _is_number(row) and comma == "," and _is_number(column)
                and closing == _CLOSING[opening]
            ):  # fmt: skip
                self._place((2, int(row) - self.base), (3, int(column) - self.base))
                self.position += 4

    def _coordinate(self, axis: int) -> None:
        """`row 2`, `row index 2`, `second row`; `2 rows below` is a distance."""
        if self.number is not None and self.ordinal:
            value = self.number - 1
            self._drop_number(used=True)
            self._place((axis, value))
            return
        if self.number is not None:
            self._unit(Word.UNIT)
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
            self._place((axis, number - self.base))
            self.position += offset

    def _place(self, *value: tuple[int, int]) -> None:
        """A position; a denied one says nothing of where the object is."""
        self.understood &= not self.negated
        self.emit(Event(Word.ROW, value))

    def _same(self) -> None:
        """`same row`, `same row and column`, `same place`, `in your row`."""
        mine = self.word(0) in ("my", "your")
        if mine and self.role(1) is Word.PLACE and self.role(2) is Word.VERB:
            self.emit(Event(Word.OBJECT, name=PLAYER))  # `my position is row 1, column 2`
            self.position += 1
            return
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
        self.negated = self.negation_is_open = False


_AFTER_RIGHT = frozenset(("above", "below", "over", "under", "underneath", "beneath"))
"""`right above` is adverb and relation: directly above."""
_AFTER_ONE = frozenset((Word.RELATION, Word.SAME, Word.STRAIGHT, Word.ON, Word.OF))
_CONTRAST = frozenset(("but", ",", "while", "whereas"))
_CLOSING = {"(": ")", "[": "]"}
_BEFORE_NUMBER = frozenset(("index", "number", "no", "#", "=", ":"))
_BEFORE_DIRECTION = frozenset(
    (
        Word.ARTICLE,
        Word.PLAIN,
        Word.UNIT,
        Word.PLACE,
        Word.OBJECT,
        Word.OF,
        Word.MINE,
        Word.NUMBER,
        Word.STRAIGHT,
    )
)
_BEFORE_RELATION = frozenset((Word.ARTICLE, Word.PLAIN, Word.STRAIGHT, Word.OF, Word.MINE))
_DIRECTIONAL = frozenset((Word.RELATION, Word.SAME, Word.LEVEL, Word.ALIGNED, Word.HERE))
_ASKING = frozenset(("is", "are", "be", "can", "do", "does", "has", "have", "will", "would"))
"""First words of questions and of orders."""
_COMPARED = frozenset(("higher", "lower", "upper"))


def _is_number(word: str) -> bool:
    return 0 < len(word) < 4 and word.isascii() and word.isdecimal()
