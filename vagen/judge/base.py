"""What a judge is: it scores what the agent says it sees and predicts against the truth."""

from typing import Protocol

from vagen.envs.base import State
from vagen.rollout.types import Verdict

SECTIONS = ("observation", "prediction")
"""What is judged of a turn."""


class JudgeUnavailable(ValueError):
    """Too many verdicts could not be had; the text says how many, why, and what would help."""


class Judge(Protocol):
    """Scores one turn; never raises on what a model wrote."""

    async def score(
        self,
        *,
        env_name: str,
        observation: str | None,
        prediction: str | None,
        state: State,
        next_state: State,
    ) -> Verdict:
        """`observation` against `state`, `prediction` against `next_state`."""
        ...
