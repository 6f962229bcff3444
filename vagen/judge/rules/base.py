"""What the rules of an environment are: how a text is read, and how it compares with the truth."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vagen.envs.base import State
from vagen.envs.config import EnvConfig

TruthT = TypeVar("TruthT")
ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True)
class Reading(Generic[ContentT]):
    """What a text was read as. It depends on the text alone, so it is read once and kept."""

    content: ContentT
    """Whatever the environment's rules make of a text."""
    flags: tuple[str, ...] = field(default=())
    """Why the text is worth no score whatever the truth, e.g. `no_entity`, `contradiction`."""
    understood: bool = True
    """Every word and mark that could bear on the meaning was used. A text that is not understood
    claims nothing for a judge of rules alone; a cascade hands it to the next judge."""


class Rules(ABC, Generic[ContentT, TruthT]):
    """Reads the state texts of one environment and scores them against its states.

    Instances are immutable: `read` depends on the text alone, `truth` on the state alone, so that
    both can be kept, and `score` is what is paid per statement.
    """

    env_name: str
    vocabulary: frozenset[str]
    """Lower-case words of state descriptions. A run of them in a prompt is no text of its own, so
    that it is no copying to write them; texts that differ in one of them are no near duplicates."""

    @classmethod
    def from_config(cls, env_config: EnvConfig | None) -> "Rules[Any, Any]":
        """The rules for an environment as it is configured; None stands for its defaults."""
        del env_config
        return cls()

    @abstractmethod
    def read(self, text: str) -> Reading[ContentT]:
        """What `text` claims; never raises, whatever the text is."""

    @abstractmethod
    def truth(self, state: State) -> TruthT:
        """What a right description of `state` would claim."""

    @abstractmethod
    def score(self, content: ContentT, truth: TruthT) -> tuple[float, tuple[str, ...]]:
        """How well a reading without flags matches the truth.

        Returns:
            A score in [0, 1], and why it is 0 where the truth shows that the text is worth none
            (e.g. two places of an object of which there is only one).
        """

    def recall(self, content: ContentT, truth: TruthT) -> float:
        """How much of the truth a text claims, whatever else it claims, in [0, 1].

        What a judge without a gate pays for (`judge.gate`); by default the same as `score`.
        """
        return self.score(content, truth)[0]

    @abstractmethod
    def has_changed(self, content: ContentT, before: TruthT, after: TruthT) -> bool:
        """Whether what a reading speaks of became different, at the precision it speaks with."""

    @abstractmethod
    def describe(self, state: State) -> str:
        """The truth in words, for a judge that is a language model."""

    @abstractmethod
    def canonical(self, state: State) -> str:
        """What the truth depends on, as a text that is equal for equal truths: a cache key."""
