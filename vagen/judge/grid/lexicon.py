"""The words of spatial descriptions: what each one contributes to a statement."""

from enum import IntEnum, auto
from typing import Any


class Word(IntEnum):
    """Roles a word can play."""

    OBJECT = auto()
    RELATION = auto()
    """Value: tuple of (axis, direction); axis 0 is vertical, 1 horizontal."""
    SAME = auto()
    """`same`: of what is said by the words after it."""
    LEVEL = auto()
    """In the player's row without the word `same`."""
    ALIGNED = auto()
    STRAIGHT = auto()
    """The other axis does not differ: `directly below`."""
    ROW = auto()
    COLUMN = auto()
    PLACE = auto()
    HERE = auto()
    VERB = auto()
    AND = auto()
    END = auto()
    OF = auto()
    """The next object is the one that a relation refers to."""
    ON = auto()
    NOT = auto()
    NO = auto()
    NUMBER = auto()
    ORDINAL = auto()
    ARTICLE = auto()
    AGAIN = auto()
    """A further object of the class just spoken of."""
    IT = auto()
    MOVE = auto()
    """The direction after it is an action's, not an object's."""
    MINE = auto()
    PLAIN = auto()
    """Says nothing that could be wrong, and takes nothing back."""
    UNIT = auto()
    MARK = auto()
    NUMBER_MARK = auto()
    OTHER_ONE = auto()
    """`the other hole`; without a noun it would be `anything but`."""


PLAYER, TARGET, HOLE, BOX, OTHER = "player", "target", "hole", "box", "other"

_OBJECTS = {
    PLAYER: "player agent i me you we us myself yourself character robot elf hero explorer avatar "
    "person figure man human pawn adventurer",
    TARGET: "target goal gift flag destination present prize treasure storage dock exit finish "
    "objective ring",
    HOLE: "hole pit trap hazard gap chasm crevasse",
    BOX: "box crate block cube",
    OTHER: "wall edge border boundary corner obstacle ice floor grid map board room lake start "
    "tree snow water brick area region quadrant part section middle center centre empty",
}

_RELATIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "above up upward upwards north northern over top upper higher": ((0, -1),),
    "below down downward downwards south southern under underneath beneath bottom lower": ((0, 1),),
    "left leftward leftwards west western lefthand": ((1, -1),),
    "right rightward rightwards east eastern righthand": ((1, 1),),
    "northwest northwestern": ((0, -1), (1, -1)),
    "northeast northeastern": ((0, -1), (1, 1)),
    "southwest southwestern": ((0, 1), (1, -1)),
    "southeast southeastern": ((0, 1), (1, 1)),
}

_ROLES: dict[Word, str] = {
    Word.SAME: "same",
    Word.LEVEL: "level",
    Word.ALIGNED: "aligned",
    Word.STRAIGHT: "directly straight immediately exactly vertically horizontally",
    Word.ROW: "row rows line y r",
    Word.COLUMN: "column columns col cols x c",
    Word.PLACE: "position place cell spot tile square location coordinates point",
    Word.HERE: "here",
    Word.VERB: "is are be being lies lie sits stays stay remains remain stands becomes become : =",
    Word.AND: "and , & plus but while whereas also",
    Word.END: ". ; \n !",
    Word.OF: "of to from than as relative with",
    Word.ON: "on onto in into inside at upon reached reaches reach entered enters",
    Word.NOT: "not never neither nor",
    Word.NO: "no without",
    Word.ARTICLE: "a an the this that",
    Word.AGAIN: "another",
    Word.IT: "it they them",
    Word.MOVE: "move moves moving moved go goes going push pushes pushing pushed slide slides "
    "turn turns walk walks head heads stepping",
    Word.MINE: "my your our his their its",
    Word.PLAIN: "am there now still then currently will would just located situated placed "
    "position positioned found standing sitting resting hand side direction nearby "
    "away adjacent next near further far slightly diagonally diagonal horizontal "
    "vertical directions positions locations see sees seeing seen spot observe "
    "observed notice view viewed shown shows show visible displayed depicted drawn "
    "marked have has having do does can contains contain which by for after moving "
    "take taking action actions this turn current new red green blue yellow orange "
    "brown black white grey gray pink purple dark light pale bright golden coloured "
    "colored sand small little big large round circular solid frozen icy wooden "
    "snowy cold disc circle crack symbol icon image picture scene screen state "
    "environment game frozenlake sokoban level sides total safe remaining so thus "
    "too additionally furthermore finally again",
    Word.UNIT: "cells tiles squares steps step unit units spaces space spots moves",
    Word.MARK: "- ' * ( ) [ ]",
    Word.NUMBER_MARK: "#",
    Word.OTHER_ONE: "other",
}

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith(("x", "s")) else "s")


def _build() -> dict[str, tuple[Word, Any]]:
    lexicon: dict[str, tuple[Word, Any]] = {}
    for role, words in _ROLES.items():
        for word in words.split(" "):
            lexicon.setdefault(word, (role, None))
    for object_class, nouns in _OBJECTS.items():
        for noun in nouns.split():
            lexicon[noun] = (Word.OBJECT, (object_class, False))
            if object_class != PLAYER:
                lexicon[_plural(noun)] = (Word.OBJECT, (object_class, True))
    for words, value in _RELATIONS.items():
        for word in words.split():
            lexicon[word] = (Word.RELATION, value)
    for value, word in enumerate(_NUMBERS):
        lexicon[word] = (Word.NUMBER, value)
    lexicon["both"] = (Word.NUMBER, 2)
    for value, word in enumerate(_ORDINALS, start=1):
        lexicon[word] = (Word.ORDINAL, value)
    return lexicon


LEXICON = _build()
"""Lower-case word or punctuation mark -> (role, value)."""

PLAIN_WORDS = frozenset(word for word, (role, _) in LEXICON.items() if role is Word.PLAIN)
"""Words that may stand anywhere in a description."""

OBJECT_CLASSES = {word: value[0] for word, (role, value) in LEXICON.items() if role is Word.OBJECT}
"""Noun, singular or plural -> object class."""
