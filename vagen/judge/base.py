"""The interface of judges, which compare the agent's statements with the truth."""

from collections.abc import Sequence
from typing import Protocol

from vagen.envs.base import State
from vagen.rollout.types import Verdict

SECTIONS = ("observation", "prediction")
"""Judged sections of a turn."""


RIGHT = 0.5
"""Minimum score of a statement that counts as correct."""


class JudgeUnavailable(ValueError):
    """Too many verdicts are missing; the message says how many, why, and what helps."""


class Judge(Protocol):
    """Scores turns of one environment; never raises because of the model's text."""

    async def score(
        self, observation: str | None, prediction: str | None, state: State, next_state: State
    ) -> Verdict:
        """Scores `observation` against `state` and `prediction` against `next_state`."""
        ...


def cohen_kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Cohen's kappa of two judges' verdicts on the same statements (Cohen 1960).

    Returns:
        1 for perfect agreement, 0 for agreement at chance level. None if chance agreement is
            perfect (both judges always gave the same verdict), or there are no statements.
    """
    count = len(first)
    if not count:
        return None
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    p, q = sum(first) / count, sum(second) / count
    expected = p * q + (1 - p) * (1 - q)
    return None if expected == 1 else (agreed - expected) / (1 - expected)
