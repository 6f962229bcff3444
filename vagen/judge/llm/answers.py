"""Parses a model's answer: JSON of a strict schema anywhere in the text."""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from vagen.clients.errors import NoAnswerError, Reason
from vagen.judge.llm.prompts import Verification

AnswerT = TypeVar("AnswerT", bound=BaseModel)

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_MAX_CHARACTERS = 65_536
"""Number of characters of an answer that are parsed; some servers ignore `max_tokens`."""


def read_verification(content: str) -> Verification:
    """Parses a verifier's answer.

    Raises:
        NoAnswerError: There is no answer, or two different ones.
    """
    return _the_answer(content, Verification, lambda found: found.verdict)


def read_claims(kind: type[BaseModel], content: str) -> BaseModel:
    """Parses an extractor's answer of type `kind` (`claims_answer`).

    Raises:
        NoAnswerError: There is no answer, or two different ones.
    """
    return _the_answer(content, kind, lambda found: found)


def _the_answer(content: str, kind: type[AnswerT], essence: Any) -> AnswerT:
    """The only answer in a text.

    A model without schema enforcement adds thoughts, sentences or code fences. Two different
    answers are rejected: one may be a quotation of the judged text.
    """
    found = []
    for value in _json_values(_THOUGHT.sub("", content[:_MAX_CHARACTERS])):
        try:
            found.append(kind.model_validate(value))
        except ValidationError:
            continue
    if not found or any(essence(answer) != essence(found[0]) for answer in found):
        raise NoAnswerError(Reason.INVALID, f"{len(found)} answers of the form asked for")
    return found[0]


def _json_values(text: str) -> Iterator[Any]:
    """The outermost JSON objects and lists in a text, in order."""
    decoder, position = json.JSONDecoder(), 0
    while opening := _OPENING.search(text, position):
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except RecursionError:
            return
        except json.JSONDecodeError:
            position = opening.start() + 1
        else:
            yield value
