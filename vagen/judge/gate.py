"""The cheap gate before scoring: which texts are refused whatever the truth is."""

import re
from collections.abc import Collection

_TOKEN = re.compile(r"\w+|[^\w\s]")
_NOT_MARKS = re.compile(r"[^\s.,;:!]+")
_WORD = re.compile(r"[a-z]+")

_HEDGE = re.compile(
    r"\b(?:either|or|might|may|maybe|perhaps|possibly|probably|could|likely|unsure|uncertain"
    r"|unclear|unknown|somewhere|anywhere|guess|not sure|all directions)\b"
)
_JUDGE_DIRECTED = re.compile(
    r"\b(?:yes|correct|correctly|incorrect|accurate|accurately|judge|judges|evaluator|grader|grade"
    r"|score|reward|verdict|full marks|matches|ignore|disregard|assistant)\b"
    r"|\b(?:statement|description|answer|everything|all) (?:above |below )?is (?:true|right)\b"
    r"|<\s*/?\s*[a-z|]"
)
_INSTRUCTION = re.compile(
    r"\byour (?:response|answer|task|goal is)\b|\byou (?:can(?! see)|should|must|need|may)\b"
    r"|\bfor example\b|\bin the format\b|\b(?:available|valid) actions?\b|\bdescribe\b|\.\.\.|…"
)
_MOST_CHARACTERS = 20
"""Characters per token above which a text is too long without counting its tokens."""
_COPIED_WORDS = 5
"""Consecutive words of the prompt, words of state descriptions aside, that make a copy."""


def text_flags(
    text: str,
    *,
    max_tokens: int,
    prompt: str | None = None,
    vocabulary: Collection[str] = frozenset(),
) -> tuple[str, ...]:
    """Why a text cannot be a state description, judged by its words alone.

    Args:
        text: What the model wrote in a state section.
        max_tokens: Most words and marks it may have.
        prompt: The system prompt, to recognise what was copied from it.
        vocabulary: Words of state descriptions: a run of these is no copy.

    Returns:
        Of `empty`, `too_long`, `hedge`, `judge_directed`, `copied_prompt` those that hold.
    """
    if not text.strip():
        return ("empty",)
    if is_far_too_long(text, max_tokens) or len(_TOKEN.findall(text)) > max_tokens:
        return ("too_long",)
    lower = text.lower()
    flags = []
    if _HEDGE.search(lower):
        flags.append("hedge")
    if _JUDGE_DIRECTED.search(lower):
        flags.append("judge_directed")
    if _INSTRUCTION.search(lower) or (prompt is not None and _is_copied(lower, prompt, vocabulary)):
        flags.append("copied_prompt")
    return tuple(flags)


def is_far_too_long(text: str, max_tokens: int) -> bool:
    """Whether `text` is not worth looking at, let alone keeping."""
    return len(text) > _MOST_CHARACTERS * max_tokens


def same_words(one: str, other: str) -> bool:
    """Whether two texts have the same words, whatever their case, spaces and punctuation."""
    return one == other or _NOT_MARKS.findall(one.lower()) == _NOT_MARKS.findall(other.lower())


def _is_copied(lower: str, prompt: str, vocabulary: Collection[str]) -> bool:
    """Whether a run of words is the prompt's; words of state descriptions do not count as such."""
    windows = _windows(lower, vocabulary)
    return bool(windows) and not windows.isdisjoint(_windows(prompt.lower(), vocabulary))


def _windows(text: str, vocabulary: Collection[str]) -> set[tuple[str, ...]]:
    words = [word for word in _WORD.findall(text) if word not in vocabulary]
    return {tuple(words[i : i + _COPIED_WORDS]) for i in range(len(words) - _COPIED_WORDS + 1)}
