"""The words of descriptions of what is around: what each one contributes."""

import re
from enum import IntEnum, auto
from typing import Any, NamedTuple

from vagen.envs.navigation.catalogue import KINDS
from vagen.envs.navigation.furniture import COLOURS


class Role(IntEnum):
    """Roles a word can play."""

    THING = auto()
    """Value: its type, as states name it."""
    COLOUR = auto()
    WAY = auto()
    """A direction. Value: (axis, sign); axis 0 is ahead (1) or behind (-1), 1 right or left."""
    SLIGHTLY = auto()
    """The direction after it is only a part of it: `slightly left` is ahead and left."""
    NUMBER = auto()
    HALF = auto()
    UNIT = auto()
    """Value: how many metres it is."""
    LENGTH = auto()
    """A distance in one piece, such as `half a metre`. Value: metres."""
    DEGREES = auto()
    SEEN = auto()
    UNSEEN = auto()
    NOT = auto()
    NO = auto()
    """`I see no chair`."""
    ME = auto()
    """Who looks."""
    OF = auto()
    """What a direction is relative to follows."""
    MOVE = auto()
    """What follows is where somebody goes, up to the next comma."""
    AFTER = auto()
    """When something is so; only where somebody moves then."""
    VERB = auto()
    """A sentence that begins with one asks or orders."""
    AND = auto()
    BREAK = auto()
    """Ends a clause; value: whether it ends a sentence."""
    ARTICLE = auto()
    FILLER = auto()
    UNKNOWN = auto()


class Token(NamedTuple):
    """A word, or a name of several words, with its role."""

    role: Role
    value: Any = None


TARGET = "target"
"""What the instruction asks for, if a text calls it so."""

_SYNONYMS: dict[str, tuple[str, ...]] = {
    TARGET: ("goal", "destination"),
    "sofa": ("couch", "settee"),
    "television": ("tv", "tv set", "television set"),
    "fridge": ("refrigerator",),
    "bin": ("trash can", "garbage can", "dustbin", "trash bin", "waste bin", "rubbish bin"),
    "lamp": ("floor lamp", "standing lamp"),
    "bookshelf": ("bookcase", "book shelf"),
    "wardrobe": ("closet",),
    "stove": ("oven", "cooker"),
    "washing machine": ("washer",),
    "bathtub": ("bath", "bath tub", "tub"),
    "plant": ("potted plant", "house plant", "houseplant"),
    "traffic cone": ("cone", "pylon"),
    "rubber duck": ("duck", "toy duck"),
    "sink": ("washbasin", "wash basin"),
    "desk": ("writing desk", "office desk"),
}

_THOR_TYPES = (
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
"""AI2-THOR's types of objects, as `words_of` spells them."""

_WAYS = {
    (0, 1): "ahead front forward forwards straight",
    (0, -1): "behind back backward backwards rear",
    (1, 1): "right rightward rightwards righthand",
    (1, -1): "left leftward leftwards lefthand",
}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ROLES: dict[Role, str] = {
    Role.SLIGHTLY: "slightly somewhat little bit",
    Role.SEEN: "visible seen see view sight",
    Role.UNSEEN: "hidden invisible unseen",
    Role.NOT: "not cannot never isn't can't don't aren't",
    Role.NO: "no",
    Role.ME: "me i i'm you myself agent we us camera",
    Role.OF: "of from",
    Role.MOVE: "move moving moved turn turning turned rotate rotating rotated step stepping walk "
    "walking go going look looking face facing",
    Role.AFTER: "after once by then",
    Role.VERB: "is are am be will becomes become remains remain stays stay",
    Role.AND: "and plus",
    Role.HALF: "half",
    Role.DEGREES: "degree degrees deg °",
    Role.ARTICLE: "a an the another",
    Role.FILLER: "now there here it its this that to at on in my your about roughly approximately "
    "around away distance direction side hand standing stands stand sits lies located placed with "
    "still directly just near room floor also currently - ( )",
}
_BREAKS = {".": True, ";": True, "\n": True, ",": False, ":": False, "while": False, "but": False}


def _build() -> dict[tuple[str, ...], Token]:
    lexicon: dict[tuple[str, ...], Token] = {}

    def thing(name: str, kind: str) -> None:
        lexicon[tuple(name.split())] = Token(Role.THING, kind)

    for role, words in _ROLES.items():
        for word in words.split():
            lexicon[(word,)] = Token(role)
    for word, ends in _BREAKS.items():
        lexicon[(word,)] = Token(Role.BREAK, ends)
    for way, words in _WAYS.items():
        for word in words.split():
            lexicon[(word,)] = Token(Role.WAY, way)
    for value, word in enumerate(_NUMBERS):
        lexicon[(word,)] = Token(Role.NUMBER, float(value))
    for unit in ("m", "metre", "metres", "meter", "meters"):
        lexicon[(unit,)] = Token(Role.UNIT, 1.0)
    for unit in ("cm", "centimetre", "centimetres", "centimeter", "centimeters"):
        lexicon[(unit,)] = Token(Role.UNIT, 0.01)
    for words, metres in (("a metre", 1.0), ("a meter", 1.0), ("half a metre", 0.5)):
        lexicon[tuple(words.split())] = Token(Role.LENGTH, metres)
    for words in ("out of sight", "out of view"):
        lexicon[tuple(words.split())] = Token(Role.UNSEEN)
    lexicon["far", "away"] = Token(Role.FILLER)
    lexicon["can", "see"] = Token(Role.SEEN)
    lexicon["can", "be", "seen"] = Token(Role.SEEN)
    for colour in COLOURS:
        lexicon[(colour,)] = Token(Role.COLOUR, colour)
    lexicon["gray",] = Token(Role.COLOUR, "grey")
    for kind in (*_THOR_TYPES.split(","), *KINDS, TARGET):
        thing(kind, kind)
    for kind, names in _SYNONYMS.items():
        for name in names:
            thing(name, kind)
    return lexicon


LEXICON = _build()
"""Lower-case words -> what they contribute; names of things may have several words."""

VOCABULARY = frozenset(word for words in LEXICON for word in words)

_LONGEST = max(map(len, LEXICON))
_PIECES = re.compile(r"\d+(?:\.\d+)?|[a-z]+(?:'[a-z]+)?|\n|[^\w\s]|\w")
_HYPHENS = re.compile(r"(?<=[a-z])-(?=[a-z])")


def tokens_of(text: str) -> list[Token]:
    """The words of a text with their roles; what is in no lexicon is `UNKNOWN`."""
    lower = _HYPHENS.sub(" ", text.lower().replace("’", "'").replace("'s ", " "))
    words = _PIECES.findall(lower)
    tokens: list[Token] = []
    position = 0
    while position < len(words):
        for length in range(min(_LONGEST, len(words) - position), 0, -1):
            token = LEXICON.get(tuple(words[position : position + length]))
            if token is not None:
                break
        else:
            token, length = _number(words[position]), 1
        tokens.append(token)
        position += length
    return tokens


def _number(word: str) -> Token:
    if word[0].isdecimal() and word.isascii():
        return Token(Role.NUMBER, float(word))
    return Token(Role.UNKNOWN, word)
