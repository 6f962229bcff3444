"""Response layouts and their strict parser.

A response is a fixed sequence of tags. Only whitespace is allowed between tags, and text inside the
innermost ones: no text around the tags, no additional, nested or repeated tag.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import field_validator, model_validator

from vagen.config.base import DIGEST_EXEMPT, Section

PromptFormat = Literal[
    "no_think",
    "free_think",
    "grounding",
    "grounding_structured",
    "grounding_symbolic",
    "worldmodeling",
    "worldmodeling_structured",
    "worldmodeling_symbolic",
    "grounding_worldmodeling",
    "grounding_worldmodeling_structured",
    "grounding_worldmodeling_symbolic",
    "wm",
    "wm_structured",
    "wm_symbolic",
]
"""Reasoning strategy, with the notation of its state texts (default: natural language). `wm` is
`grounding_worldmodeling` without a tag around its sections."""

Notation = Literal["natural", "structured", "symbolic"]
SectionName = Literal["think", "observation", "reasoning", "prediction", "answer", "memory"]
SECTION_NAMES: tuple[SectionName, ...] = get_args(SectionName)
GateDecision = Literal["keep", "drop"]
"""Decision on the observation before a response (`context: gate`)."""

ActionReader = Callable[[str], str | None]
"""Returns the canonical form of an action, or None if invalid; never raises."""

_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9_-]*(?:\s[^<>=]*=[^<>]*|\s*/?)>")
"""A tag, optionally with attributes; `row<a and b>c` is not a tag."""
_TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_INNER: dict[str, tuple[SectionName, ...]] = {
    "grounding": ("observation", "reasoning"),
    "worldmodeling": ("reasoning", "prediction"),
    "grounding_worldmodeling": ("observation", "reasoning", "prediction"),
    "wm": ("observation", "reasoning", "prediction"),
}


class Tags(Section):
    """Names of the tags, to be renamed for a tokenizer that reserves some."""

    think: str = "think"
    """All reasoning."""
    observation: str = "observation"
    """The state before the action."""
    reasoning: str = "reasoning"
    """Reasons for the action."""
    prediction: str = "prediction"
    """The state after the action."""
    answer: str = "answer"
    """The actions."""
    memory: Annotated[str, DIGEST_EXEMPT] = "memory"
    """Whether the observation stays in context."""

    @field_validator("*")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not _TAG_NAME.fullmatch(name):
            raise ValueError(f"a tag name is a letter, then letters, digits, _ or -; got {name!r}")
        return name

    @model_validator(mode="after")
    def _differ(self) -> "Tags":
        names = list(self.model_dump().values())
        if len(set(names)) < len(names):
            raise ValueError(f"tag names must differ from one another; got {names}")
        return self


@dataclass(frozen=True, slots=True)
class Layout:
    """Sections of a response, and the notation of its state texts."""

    think: bool
    """Whether there is a think section before the answer."""
    inner: tuple[SectionName, ...]
    """Sections before the answer, inside `think` if it is set; none with it means free text."""
    notation: Notation
    memory: bool = False
    """Whether there is a memory section after the answer."""

    @property
    def sections(self) -> tuple[SectionName, ...]:
        """Sections with text, in order."""
        free: tuple[SectionName, ...] = ("think",) if self.think and not self.inner else ()
        memory: tuple[SectionName, ...] = ("memory",) if self.memory else ()
        return (*free, *self.inner, "answer", *memory)


def _layout_of(prompt_format: str) -> Layout:
    notation: Notation = "natural"
    for suffix in ("structured", "symbolic"):
        if prompt_format.endswith(f"_{suffix}"):
            notation = suffix
    strategy = prompt_format.removesuffix(f"_{notation}")
    return Layout(strategy not in ("no_think", "wm"), _INNER.get(strategy, ()), notation)


LAYOUTS: dict[str, Layout] = {name: _layout_of(name) for name in get_args(PromptFormat)}


def write_response(layout: Layout, tags: Tags, texts: dict[SectionName, str]) -> str:
    """Wraps one text per section of `layout` in its tags."""

    def wrap(section: SectionName, text: str) -> str:
        name = getattr(tags, section)
        return f"<{name}>{text}</{name}>"

    answer = wrap("answer", texts["answer"])
    if layout.memory:
        answer += wrap("memory", texts["memory"])
    before = "".join(wrap(section, texts[section]) for section in layout.inner)
    return (wrap("think", before or texts["think"]) if layout.think else before) + answer


def tags_in(layout: Layout, tags: Tags) -> list[str]:
    """Opening and closing tags of a response, in order."""
    return _TAG.findall(write_response(layout, tags, dict.fromkeys(layout.sections, "")))


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A parsed response. If its layout is wrong, all texts are None and nothing is executed.

    Example:
        `<think>go left</think><answer>Left</answer>` is `ParsedResponse(format_correct=True,
        actions=("Left",), reasoning="go left", answer="Left")`.
    """

    format_correct: bool
    """Whether the layout matches and every action is valid."""
    actions: tuple[str, ...] = ()
    """Canonical names of the actions before the first invalid one."""
    observation: str | None = None
    reasoning: str | None = None
    """The `<reasoning>` section, or the whole of a free think section."""
    prediction: str | None = None
    answer: str | None = None
    memory: GateDecision | None = None
    """None also if responses have no such section."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable form, without `memory` if that is None."""
        parts: dict[str, Any] = {
            "format_correct": self.format_correct,
            "actions": list(self.actions),
            "observation": self.observation,
            "reasoning": self.reasoning,
            "prediction": self.prediction,
            "answer": self.answer,
        }
        return parts if self.memory is None else {**parts, "memory": self.memory}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "ParsedResponse":
        """Inverse of `to_dict`."""
        fields: dict[str, Any] = {**stored, "actions": tuple(stored["actions"])}
        return cls(**fields)


def named(actions: tuple[str, ...]) -> ActionReader:
    """Reads actions by name, ignoring case."""
    canonical = {action.casefold(): action for action in actions}
    return lambda text: canonical.get(text.casefold())


class ResponseParser:
    """Parses responses of one layout and one action set; never raises."""

    def __init__(
        self,
        *,
        layout: Layout,
        tags: Tags,
        read_action: ActionReader,
        separator: str,
        max_actions: int,
        markup_answer: bool = False,
    ) -> None:
        """Prepares a parser.

        Args:
            layout: Sections of a response.
            tags: Names of the tags.
            read_action: Reads one action without surrounding spaces.
            separator: Separator of actions.
            max_actions: Maximum actions in an answer.
            markup_answer: Whether the answer is a document with its own tags, kept unchanged.
        """
        self._sections = layout.sections
        self._separator = separator
        self._max_actions = max_actions
        self._read_action = read_action
        self._answer_tags = (f"<{tags.answer}>", f"</{tags.answer}>") if markup_answer else None
        self._tags = tags_in(layout, tags)
        names = "|".join(re.escape(getattr(tags, section)) for section in SECTION_NAMES)
        self._own_tag = re.compile(rf"</?\s*(?:{names})(?![\w-])[^<>]*>", re.IGNORECASE)
        opening = {f"<{getattr(tags, section)}>" for section in self._sections}
        self._holds_text = [tag in opening for tag in self._tags[:-1]]

    def parse(self, response: str) -> ParsedResponse:
        """Parses `response`."""
        texts = self._section_texts(response)
        if texts is None:
            return ParsedResponse(format_correct=False)
        actions, all_valid = self._actions(texts["answer"])
        return ParsedResponse(
            format_correct=all_valid,
            actions=actions,
            observation=texts.get("observation"),
            reasoning=texts.get("reasoning", texts.get("think")),
            prediction=texts.get("prediction"),
            answer=texts["answer"],
            memory=cast(GateDecision | None, texts.get("memory")),
        )

    def _section_texts(self, response: str) -> dict[str, str] | None:
        """Text of each section; None if the layout does not match."""
        if self._answer_tags is None:
            return self._read_layout(response)
        opening, closing = self._answer_tags
        head, opened, rest = response.partition(opening)
        document, closed, tail = rest.partition(closing)
        if not (opened and closed and document.strip()) or opening in document:
            return None
        texts = self._read_layout(f"{head}{opening}.{closing}{tail}")
        return None if texts is None else {**texts, "answer": document.strip()}

    def _read_layout(self, response: str) -> dict[str, str] | None:
        if _TAG.findall(response) != self._tags or self._own_tag.findall(response) != self._tags:
            return None
        before, *between, after = _TAG.split(response)
        if before.strip() or after.strip():
            return None
        contents: list[str] = []
        for text, holds_text in zip(between, self._holds_text, strict=True):
            text = text.strip()
            if bool(text) != holds_text:  # sections must not be empty, gaps must be
                return None
            if holds_text:
                contents.append(text)
        texts: dict[str, str] = dict(zip(self._sections, contents, strict=True))
        return texts if texts.get("memory", "keep") in get_args(GateDecision) else None

    def _actions(self, answer: str) -> tuple[tuple[str, ...], bool]:
        """Actions before the first invalid or surplus one, and whether all are valid."""
        actions: list[str] = []
        for name in answer.split(self._separator):
            action = self._read_action(name.strip())
            if action is None or len(actions) == self._max_actions:
                return tuple(actions), False
            actions.append(action)
        return tuple(actions), True
