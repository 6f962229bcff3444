"""The interface of an environment's rules: parse a text, and compare it with the truth."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vagen.envs.base import State
from vagen.envs.config import EnvConfig

TruthT = TypeVar("TruthT")
ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True)
class Reading(Generic[ContentT]):
    """Result of parsing a text. Depends on the text only, so it can be cached."""

    content: ContentT
    """Environment-specific content of a text."""
    flags: tuple[str, ...] = field(default=())
    """Reasons for score 0 whatever the truth, e.g. `no_entity`, `contradiction`."""
    understood: bool = True
    """Whether every meaningful word and mark was used. Otherwise the text has no score from rules
    alone, and a cascade passes it to the next judge."""


class Rules(ABC, Generic[ContentT, TruthT]):
    """Parses state texts of one environment and scores them against its states.

    Instances are immutable: `read` depends only on the text and `truth` only on the state, so both
    can be cached, and `score` is the cost per statement.
    """

    env_name: str
    vocabulary: frozenset[str]
    """Lower-case words of state descriptions. Using them is not copying from the prompt, and texts
    that differ in one of them are not near duplicates."""

    @classmethod
    def from_config(cls, env_config: EnvConfig | None) -> "Rules[Any, Any]":
        """The rules of an environment with these options; None for the defaults."""
        del env_config
        return cls()

    @abstractmethod
    def read(self, text: str) -> Reading[ContentT]:
        """Parses the claims of `text`; never raises."""

    @abstractmethod
    def truth(self, state: State) -> TruthT:
        """The claims of a correct description of `state`."""

    @abstractmethod
    def score(self, content: ContentT, truth: TruthT) -> tuple[float, tuple[str, ...]]:
        """Scores a reading without flags against the truth.

        Returns:
            A score in [0, 1], and reasons for a score of 0 that depend on the truth (e.g. two
            places of an object that exists once).
        """

    def recall(self, content: ContentT, truth: TruthT) -> float:
        """Share of the truth that a text claims, ignoring wrong claims, in [0, 1].

        The score of a judge without a gate (`judge.gate`); by default the same as `score`.
        """
        return self.score(content, truth)[0]

    @abstractmethod
    def has_changed(self, content: ContentT, before: TruthT, after: TruthT) -> bool:
        """Whether something that a reading describes has changed, at its precision."""

    @abstractmethod
    def describe(self, state: State) -> str:
        """The truth in words, for a language model as judge."""

    @abstractmethod
    def canonical(self, state: State) -> str:
        """A cache key of the truth: equal for equal truths."""
