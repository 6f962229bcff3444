"""Reading a model's answer: strictly by its schema, wherever in the text the JSON stands."""

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
_MOST_CHARACTERS = 65_536
"""Characters of an answer that are read; servers that ignore `max_tokens` may send anything."""


def read_verification(content: str) -> Verification:
    """A verifier's answer.

    Raises:
        NoAnswerError: There is none in it, or there are two that differ.
    """
    return _the_answer(content, Verification, lambda found: found.verdict)


def read_claims(kind: type[BaseModel], content: str) -> BaseModel:
    """An extractor's answer of the form `kind` (`claims_answer`).

    Raises:
        NoAnswerError: There is none in it, or there are two that differ.
    """
    return _the_answer(content, kind, lambda found: found)


def _the_answer(content: str, kind: type[AnswerT], essence: Any) -> AnswerT:
    """The one answer that the text holds.

    A model that was not held to the schema puts thoughts, sentences or code fences around it. Two
    answers that differ are none: one of them may have been quoted from what was judged.
    """
    found = []
    for value in _json_values(_THOUGHT.sub("", content[:_MOST_CHARACTERS])):
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
