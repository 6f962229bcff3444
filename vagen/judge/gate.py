"""Checks before scoring that reject texts independently of the truth.

A state description must commit itself. The gate rejects what retracts a statement (alternatives,
doubt, conditions, questions), addresses the judge, is copied from the prompt, or hides content in
unusual characters. It is independent of environments; their rules decide whether they understand
every word.
"""

import re
from collections.abc import Collection
from functools import lru_cache

_TOKEN = re.compile(r"\w+|[^\w\s]")
_BRACKET = re.compile(r"[\"'{}()\[\],:]")
"""Punctuation of dicts, which counts half towards a text's length."""
_NOT_MARKS = re.compile(r"[^\s.,;:!]+")
_WORD = re.compile(r"[a-z]+")

_HIDING = re.compile(r"[^\n\r\t -~‘’“”–—…•·√✓✔°×−]")
"""Any character but printable ASCII, typographic marks and grid symbols: other alphabets look
alike, and invisible characters split words."""
_ENCODED = re.compile(
    r"[A-Za-z0-9+/]{28,}={0,2}|\b(?:[0-9a-f]{2}[ :]?){12,}\b|\\[ux][0-9a-f]{2}"
    r"|&#?\w+;|(?:%[0-9a-f]{2}){2}"
    r"|\b[01]{8}\b"
)


def _words(text: str) -> str:
    return "|".join(text.split())


_HEDGE = re.compile(
    rf"""\b(?:{
        _words(
            "either or might may maybe perhaps possibly possible potentially probably probable "
            "could likely unlikely unsure uncertain unclear unknown undetermined unspecified "
            "somewhere anywhere everywhere elsewhere wherever whichever whatever whoever guess "
            "guessing seem seems seemingly appear appears apparently presumably supposedly "
            "allegedly conceivably arguably ostensibly somehow sort "
            "kinda sorta if unless whether when whenever suppose supposing supposed assume "
            "assuming assumed imagine imagining pretend hypothetically hypothetical provided "
            "otherwise else alternatively alternately instead should ought think thinks "
            "believe believes suspect expect expected hope reckon depends depending depend "
            "varies random randomly sometimes occasionally often usually always necessarily "
            "vice versa eventually"
        )
    })\b
    |\bnot[ ]sure\b|\ball[ ](?:directions|sides|around)\b|\b(?:any|some|all|none)[ ]of\b
    |\bone[ ]of\b(?![ ](?:the|my)[ ]\w+[ ](?:is|lies|stands|sits|can)\b)
    |\b(?:can|would)[ ](?:have|also[ ]be)\b|\bcan(?:[ ]\w+)?[ ](?:be(?![ ](?:found|seen)\b)|lie)\b
    |\bwould[ ]not\b
    |\w[ ]*/[ ]*\w|\?|~""",
    re.VERBOSE,
)
_JUDGE_DIRECTED = re.compile(
    rf"""\b(?:{
        _words(
            "yes correct correctly incorrect correctness accurate accurately accuracy judge "
            "judges judging judgement judgment evaluator evaluate evaluation grader grade "
            "graded grading score scores scored scoring reward rewards verdict matches ignore "
            "ignored disregard forget override overrule assistant system user prompt prompts "
            "instruction instructions developer admin approve approved accept accepted "
            "verified verify valid validated true truth truthful truthfully false untrue fact "
            "respond response output print return rate rated rating perfect trust confirm "
            "confirmed agree please guaranteed guarantee sudo json schema api ai llm gpt "
            "model"
        )
    })\b
    |\bfull[ ](?:marks|credit|points|score)\b|\b\d+[ ]?(?:/|out[ ]of)[ ]?\d+[ ]points\b|\b100[ ]?%
    |\b(?:statement|description|answer|everything|all|above|below)\ (?:above\ |below\ )?is\ right\b
    |\b(?:{
        _words(
            "correcto correcta verdadero verdad cierto ignora ignorar ignorez ignorieren "
            "ignoriere vrai vraie exacte juste oui richtig wahr korrekt ja vero giusto "
            "corretto verdade certo si sim pravda da hai juist goed tak ano"
        )
    })\b
    |<\s*/?\s*[a-z|!]|\[/?\s*(?:inst|sys)|^\s*\#{{2,}}[ ]+[a-z]{{2,}}""",
    re.VERBOSE | re.MULTILINE,
)
_INSTRUCTION = re.compile(
    r"\byour (?:response|answer|task|goal is)\b|\byou (?:can(?! see)|should|must|need|may)\b"
    r"|\bfor example\b|\be\.g\b|\bsuch as\b|\bin the format\b|\b(?:available|valid) actions?\b"
    r"|\bdescribe\b|\.\.\.|…"
    r"|\b(?:observation|prediction|reasoning|think|answer|format)\s*[:=\]]"
)
_MAX_CHARACTERS = 20
"""A text with more characters per allowed token is too long without counting its tokens."""
_COPIED_WORDS = 5
"""Number of consecutive prompt words, other than words of state descriptions, that make a copy."""


def text_flags(
    text: str,
    *,
    max_tokens: int,
    prompt: str | None = None,
    vocabulary: Collection[str] = frozenset(),
) -> tuple[str, ...]:
    """Reasons to reject a text as a state description, from its words alone.

    Args:
        text: Content of a state section.
        max_tokens: Maximum number of words and marks.
        prompt: The system prompt, to recognise copies.
        vocabulary: Words of state descriptions, which may be copied.

    Returns:
        Those of `empty`, `too_long`, `characters` (hidden, foreign or encoded), `hedge`,
        `judge_directed` and `copied_prompt` that apply.
    """
    if not text.strip():
        return ("empty",)
    if is_far_too_long(text, max_tokens):
        return ("too_long",)
    if len(_TOKEN.findall(text)) - len(_BRACKET.findall(text)) / 2 > max_tokens:
        return ("too_long",)
    lower = text.lower()
    flags = []
    if _HIDING.search(text) or _ENCODED.search(lower):
        flags.append("characters")
    if _HEDGE.search(lower):
        flags.append("hedge")
    if _JUDGE_DIRECTED.search(lower):
        flags.append("judge_directed")
    if _INSTRUCTION.search(lower) or (prompt is not None and _is_copied(lower, prompt, vocabulary)):
        flags.append("copied_prompt")
    return tuple(flags)


def is_far_too_long(text: str, max_tokens: int) -> bool:
    """Whether `text` is too long to be read or stored."""
    return len(text) > _MAX_CHARACTERS * max_tokens


def same_words(one: str, other: str) -> bool:
    """Whether two texts have the same words, ignoring case, spaces and punctuation."""
    return one == other or _NOT_MARKS.findall(one.lower()) == _NOT_MARKS.findall(other.lower())


def _is_copied(lower: str, prompt: str, vocabulary: Collection[str]) -> bool:
    """Whether a run of words is copied from the prompt, ignoring words of state descriptions."""
    windows = _windows(lower, vocabulary)
    return bool(windows) and not windows.isdisjoint(_prompt_windows(prompt, frozenset(vocabulary)))


@lru_cache(maxsize=256)
def _prompt_windows(prompt: str, vocabulary: frozenset[str]) -> set[tuple[str, ...]]:
    """Word runs of a prompt, cached."""
    return _windows(prompt.lower(), vocabulary)


def _windows(text: str, vocabulary: Collection[str]) -> set[tuple[str, ...]]:
    words = [word for word in _WORD.findall(text) if word not in vocabulary]
    return {tuple(words[i : i + _COPIED_WORDS]) for i in range(len(words) - _COPIED_WORDS + 1)}
