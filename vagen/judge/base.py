"""The interface of judges, which compare the agent's statements with the truth."""

from typing import Protocol

from vagen.envs.base import State
from vagen.rollout.types import Verdict

SECTIONS = ("observation", "prediction")
"""Judged sections of a turn."""


class JudgeUnavailable(ValueError):
    """Too many verdicts are missing; the message says how many, why, and what helps."""


class Judge(Protocol):
    """Scores one turn; never raises because of the model's text."""

    async def score(
        self,
        *,
        env_name: str,
        observation: str | None,
        prediction: str | None,
        state: State,
        next_state: State,
    ) -> Verdict:
        """Scores `observation` against `state` and `prediction` against `next_state`."""
        ...
