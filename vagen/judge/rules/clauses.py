"""Texts as clauses, for rules that know the sentences of their environment one by one.

A text is cut into sentences and these, where a sentence is none that is known, into clauses at
commas and `and`. Every clause has to be one that is known: a text with any other is not understood.
"""

import json
import re
from collections.abc import Callable
from typing import Any

ReadClause = Callable[[str], list[Any] | None]
"""Claims of a clause in lower case, without marks at its ends; None if it is none that is known."""

_SENTENCE_END = re.compile(r"[.;\n]+")
_JOINT = re.compile(r",\s*(?:and\s+)?|\s+and\s+")
MOST_CLAUSES = 40


def read_clauses(text: str, read_clause: ReadClause) -> list[Any] | None:
    """The claims of a text in its order; None if a clause is not understood."""
    claims: list[Any] = []
    for sentence in _SENTENCE_END.split(text.lower()):
        sentence = _plain(sentence)
        if not sentence:
            continue
        found = read_clause(sentence)
        if found is None:
            found = _read_parts(sentence, read_clause)
        if found is None:
            return None
        claims += found
        if len(claims) > MOST_CLAUSES:
            return None
    return claims


def _read_parts(sentence: str, read_clause: ReadClause) -> list[Any] | None:
    parts = [_plain(part) for part in _JOINT.split(sentence)]
    if len(parts) < 2 or len(parts) > MOST_CLAUSES:
        return None
    claims: list[Any] = []
    for part in parts:
        found = read_clause(part)
        if found is None:
            return None
        claims += found
    return claims


def _plain(clause: str) -> str:
    return " ".join(clause.strip(" \t\r,!-*•").split())


def read_object(text: str) -> dict[str, Any] | None:
    """A JSON object whose keys differ; None if the text is none."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def f1(right: float, said: float, required: float, right_required: float) -> float:
    """Harmonic mean of precision and recall.

    Args:
        right: Weight of the right claims.
        said: Weight of all claims.
        required: Weight of what has to be said.
        right_required: Weight of what of it is said and right.
    """
    if not said or not required or not right:
        return 0.0
    precision, recall = right / said, right_required / required
    return 2 * precision * recall / (precision + recall) if recall else 0.0
