"""Finds near duplicates: texts with the same meaning in almost the same words."""

import re
from collections.abc import Collection, Sequence

_WORD = re.compile(r"[a-z]+|\d+")
_EMPTY = re.compile(
    r"\b(?:an?|the|this|that|there|here|i|it|is|are|be|am|and|of|to|from|as|my|your|its|can|see)\b"
)
"""Words without meaning."""


def clusters(
    texts: Sequence[str], *, vocabulary: Collection[str], similarity: float = 0.7
) -> list[int]:
    """Cluster index of each text.

    A text belongs to a cluster if its numbers and vocabulary words are the same as those of the
    cluster's first text, in order, and the other words of both have a Jaccard index of at least
    `similarity`, ignoring case, punctuation and order.

    Args:
        texts: Any texts.
        vocabulary: Words of state descriptions (`Rules.vocabulary`).
        similarity: From 0 to 1.
    """
    leaders: dict[tuple[str, ...], list[tuple[frozenset[str], int]]] = {}
    known: dict[str, int] = {}
    numbers: list[int] = []
    count = 0
    for text in texts:
        if text not in known:
            kept, others = _signature(text, vocabulary)
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


def _signature(text: str, vocabulary: Collection[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    words = _WORD.findall(text.lower())
    if not words or max(map(len, words)) == 1:  # all of a symbol grid is signature
        return tuple(text.split()), frozenset()
    words = [word for word in words if not _EMPTY.fullmatch(word)]
    kept = tuple(word for word in words if word in vocabulary or word.isdigit())
    return kept, frozenset(words).difference(kept)


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    union = len(one | other)
    return len(one & other) / union if union else 1.0
