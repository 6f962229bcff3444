"""What a judge is: it scores what the agent says it sees and predicts against the truth."""

from dataclasses import dataclass, field
from typing import Protocol

from vagen.envs.base import State

SECTIONS = ("observation", "prediction")
"""What is judged of a turn."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Scores of one turn. A missing score is None: absent, never 0."""

    observation: float | None
    """Match of the `<observation>` text with the state before the action, in [0, 1]."""
    prediction: float | None
    """Match of the `<prediction>` text with the state after the action, in [0, 1]."""
    flags: tuple[str, ...] = field(default=())
    """Which gate refused a text, e.g. `observation:contradiction`."""
    absent: tuple[str, ...] = field(default=())
    """Why a score that was asked for could not be had, e.g. `prediction:timeout`."""
    decided_by: tuple[str, ...] = field(default=())
    """What decided where there is a choice: `gate`, `rules`, `cache` or `llm`, e.g.
    `observation:cache`."""


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
