"""Near duplicates: texts that say the same in almost the same words."""

import re
from collections.abc import Sequence

from vagen.judge.grid.lexicon import LEXICON, Word

_WORD = re.compile(r"[a-z]+|\d+")
_ROLES = (
    Word.OBJECT,
    Word.RELATION,
    Word.SAME,
    Word.NUMBER,
    Word.ORDINAL,
    Word.NOT,
    Word.NO,
)
_BEYOND_GRIDS = ("ahead", "behind", "front", "near", "far", "open", "closed", "held", "on", "in")
_KEPT = frozenset(word for word, (role, _) in LEXICON.items() if role in _ROLES).union(
    _BEYOND_GRIDS
)
"""Words that tell states apart: two texts that differ in one are no duplicates."""
_EMPTY = frozenset(
    word
    for word, (role, _) in LEXICON.items()
    if role in (Word.ARTICLE, Word.VERB, Word.AND, Word.OF, Word.PLAIN, Word.MINE, Word.IT)
)
"""Words that make no difference."""


def clusters(texts: Sequence[str], *, similarity: float = 0.7) -> list[int]:
    """Number of the cluster of each text.

    Texts are in one cluster if their numbers, directions and symbols are the same, in order, and
    the first text of the cluster has at least `similarity` of their other words in common with them
    (Jaccard index), whatever their case, marks and order.

    Args:
        texts: Any texts.
        similarity: From 0 to 1.
    """
    leaders: dict[tuple[str, ...], list[tuple[frozenset[str], int]]] = {}
    known: dict[str, int] = {}
    numbers: list[int] = []
    count = 0
    for text in texts:
        if text not in known:
            kept, others = _signature(text)
            found = leaders.setdefault(kept, [])
            number = next(
                (number for words, number in found if _jaccard(words, others) >= similarity), None
            )
            if number is None:
                number = count
                count += 1
                found.append((others, number))
            known[text] = number
        numbers.append(known[text])
    return numbers


def _signature(text: str) -> tuple[tuple[str, ...], frozenset[str]]:
    words = _WORD.findall(text.lower())
    if not words or max(map(len, words)) == 1:  # a grid of symbols is all signature
        return tuple(text.split()), frozenset()
    kept = tuple(word for word in words if word in _KEPT or word.isdigit())
    return kept, frozenset(words).difference(kept, _EMPTY)


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    union = len(one | other)
    return len(one & other) / union if union else 1.0
