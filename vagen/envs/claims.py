"""Claims of state texts: a schema shared by their writer, readers and score.

Example:
    >>> class Door(Claim):
    ...     phrase = "door is {side}"
    ...     side: Literal["left", "right"]
    >>> write_claims([Door(side="left")])
    'door is left'
    >>> Door.from_clause("the door is LEFT"), Door.from_clause(" Door is  LEFT")
    (Door(side='left'), Door(side='left'))
    >>> read_claims("1. I see that the door is to the left", [Door])
    [Door(side='left')]
    >>> read_claims("the door is not left", [Door]) is None
    True
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

JOINT = " . "
"""Separates the claims of a text."""

MAX_CLAIMS = 40
_SENTENCE_END = re.compile(r"(?:[;\n]|\.(?!\d))+")
_JOINT = re.compile(r",(?!\s*-?\d)\s*(?:and\s+)?|\s+and\s+")
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+", re.MULTILINE)
_OPENING = r"(?:i (?:can )?see (?:that )?|there is )?"
_ARTICLE = r"(?:(?:(?:to|on|in|at)\s+)?the\s+|an?\s+)?"
"""Optional before any word of a phrase."""
_GAP = rf"(?:\s+is\s+|\s*:\s*|\s+){_ARTICLE}"
_AND = r"(?:\s+|\s*,\s*)and\s+"
_SLOT = re.compile(r"\\\{(\w+)\\\}")


class Claim(BaseModel):
    """One statement about a state; a subclass declares its slots as fields.

    Words in slots are lower-case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    phrase: ClassVar[str]
    """Its wording, with fields in braces: `door is {side}`."""
    subject: ClassVar[tuple[str, ...] | None] = ()
    """Fields that identify its subject: two different claims about one subject contradict each
    other. None: any number of claims may hold at once."""
    several: ClassVar[bool] = False
    """Whether equal claims refer to different things: two holes on one side."""
    hint: ClassVar[str] = ""
    """Explanation for a language model besides the phrase."""
    weight: ClassVar[float] = 1.0
    """Relative weight."""

    def agreement(self, true: "Claim") -> float:
        """Agreement with the true claim of the same class, in [0, 1]; by default equality.

        Override it to tolerate inexact measurements.
        """
        return float(self == true)

    @classmethod
    def most(cls, count: int) -> int:
        """Maximum number of claims of this kind if `count` are true: a list of all possible claims
        would be correct in any state.
        """
        return MAX_CLAIMS

    def is_still(self, later: "Claim") -> bool:
        """Whether this claim still holds in `later`, at its precision."""
        return str(self) == str(later)

    def __str__(self) -> str:
        return self.phrase.format(**self.model_dump())

    @classmethod
    def claim_name(cls) -> str:
        """Its name in JSON."""
        return cls.__name__.lower()

    @classmethod
    def claim_words(cls) -> set[str]:
        """Lower-case words of its wording, including JSON."""
        fields = cls.model_fields.values()
        words = ["claim", cls.claim_name(), _plain(cls.phrase), *cls.model_fields]
        words += [str(x) for f in fields for x in get_args(f.annotation)]
        words += [getattr(limit, "pattern", "") for f in fields for limit in f.metadata]
        return set(re.findall(r"[a-z]+", " ".join(words).lower()))

    def topic(self) -> tuple[object, ...]:
        """Its class and the fields of its subject."""
        return (type(self), *(getattr(self, name) for name in self.subject or ()))

    @classmethod
    def from_clause(cls, clause: str) -> "Claim | None":
        """Parses a clause in the words of `phrase`; None for other clauses.

        Ignores articles, `to the` and `I see`, and accepts `is`, a colon or nothing between words.
        """
        match = _pattern(cls).fullmatch(clause.strip().lower())
        return None if match is None else cls.from_fields(match.groupdict())

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Claim | None":
        """The claim with these fields; None if they are not its own."""
        lowered = {k: v.strip().lower() if isinstance(v, str) else v for k, v in fields.items()}
        try:
            return cls.model_validate(lowered)
        except ValidationError:
            return None


def write_claims(claims: Iterable[Claim]) -> str:
    """Claims as a state text."""
    return JOINT.join(map(str, claims))


def read_claims(text: str, kinds: Sequence[type[Claim]]) -> list[Claim] | None:
    """Parses a text into claims, in order; None if any part is not a claim.

    A text consists of sentences or a list, joined by commas and `and`, or of JSON such as
    `[{"claim": "door", "side": "left"}]`.
    """
    if text.lstrip().startswith("["):
        return _read_json(text, kinds)
    found: list[Claim] = []
    for sentence in _SENTENCE_END.split(_LIST_MARK.sub("", text.lower())):
        claims = _read_sentence(sentence, tuple(kinds))
        if claims is None or len(found) + len(claims) > MAX_CLAIMS:
            return None
        found += claims
    return found


def load_json(text: str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: It is not JSON, or an object has a key twice.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_distinct)


def score_claims(said: Sequence[Claim], true: Sequence[Claim]) -> float:
    """Harmonic mean of precision and recall; each claim is matched with at most one true claim."""
    agreements = [
        [
            claim.agreement(fact) * claim.weight if type(claim) is type(fact) else 0.0
            for fact in true
        ]
        for claim in said
    ]
    weight = sum(claim.weight for claim in (*said, *true))
    return 2 * best_matching(agreements) / weight if weight else 0.0


def best_matching(scores: Sequence[Sequence[float]]) -> float:
    """Largest sum of a one-to-one matching of rows to columns."""
    if not scores or not scores[0]:
        return 0.0
    from scipy.optimize import linear_sum_assignment  # slow to import

    pairs = zip(*linear_sum_assignment(np.array(scores), maximize=True), strict=True)
    return float(sum(scores[row][column] for row, column in pairs))


def read_object(text: str) -> dict[str, Any] | None:
    """Parses a JSON object of an environment's notation; None if it is not one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return None


def _read_json(text: str, kinds: Sequence[type[Claim]]) -> list[Claim] | None:
    by_name = {kind.claim_name(): kind for kind in kinds}
    try:
        given = load_json(text)
    except (ValueError, RecursionError):
        return None
    if len(given) > MAX_CLAIMS:
        return None
    found = []
    for each in given:
        fields = dict(each) if isinstance(each, dict) else {}
        kind = by_name.get(str(fields.pop("claim", "")))
        claim = kind.from_fields(fields) if kind else None
        if claim is None:
            return None
        found.append(claim)
    return found


@lru_cache(maxsize=4096)
def _read_sentence(sentence: str, kinds: tuple[type[Claim], ...]) -> tuple[Claim, ...] | None:
    if not _bare(sentence):
        return ()
    joints = [joint.span() for joint in _JOINT.finditer(sentence)]
    starts, ends = (
        [0, *(end for _, end in joints)],
        [*(start for start, _ in joints), len(sentence)],
    )
    pieces = 1 + max(len(_JOINT.findall(kind.phrase)) for kind in kinds)
    after: list[tuple[Claim, ...] | None] = [*([None] * len(starts)), ()]
    for first in reversed(range(len(starts))):
        for last in reversed(range(first, min(first + pieces, len(starts)))):
            rest = after[last + 1]
            if rest is not None:
                clause = _bare(sentence[starts[first] : ends[last]])
                claim = next(filter(None, (kind.from_clause(clause) for kind in kinds)), None)
                if claim is not None:
                    after[first] = (claim, *rest)
                    break
    return after[0]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _bare(clause: str) -> str:
    return " ".join(clause.strip(" \t\r,!-*•").split())


def _plain(phrase: str) -> str:
    return re.sub(r"\{\w+\}", " ", phrase)


@cache
def _pattern(kind: type[Claim]) -> re.Pattern[str]:
    def slot(match: re.Match[str]) -> str:
        return rf"(?P<{match[1]}>{_forms(kind.model_fields[match[1]])})"

    phrase = re.escape(kind.phrase.lower().replace(" is ", " "))
    phrase = phrase.replace(r",\ ", r",\s*").replace(r"\ and\ ", _AND + _ARTICLE)
    return re.compile(_OPENING + _ARTICLE + _SLOT.sub(slot, phrase.replace(r"\ ", _GAP)))


def _forms(field: FieldInfo) -> str:
    """Regular expression for the values of a slot."""
    options = get_args(field.annotation)
    if options and all(isinstance(option, str) for option in options):
        return "|".join(map(re.escape, options))
    if field.annotation in (int, float):
        return r"-?[0-9]+" if field.annotation is int else r"-?[0-9]+(?:\.[0-9]+)?"
    given = (getattr(limit, "pattern", None) for limit in field.metadata)
    return next((pattern.strip("^$") for pattern in given if pattern), ".+?")
