"""Trajectories as plain data.

Shape legend: T tokens of a row, K turns of a trajectory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from vagen.envs.base import State
from vagen.envs.parsing import ParsedResponse

CONTEXT = -1
"""Turn index of a row's start: system prompt, first observation, header of the response."""


class Status(StrEnum):
    """How an episode ended."""

    OK = "ok"
    TRUNCATED_TOKENS = "truncated_tokens"
    """Ended by the token limit; its tokens are valid, and it counts as truncated."""
    ENV_ERROR = "env_error"
    """The environment failed; masked from training and counted."""
    UNFINISHED = "unfinished"
    """Stopped between two turns, to be continued (`vagen.rollout.carried`); never in a batch."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options of one request."""

    temperature: float = 1.0
    """0 for greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 for off."""
    max_new_tokens: int = 200
    seed: int = 0
    """Draws depend only on this seed, not on other requests of the batch."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of one request."""

    ids: list[int]
    """Ids of the response, with the end-of-turn token if it was sampled."""
    logprobs: Sequence[float | None]
    """Log-probability of each id, with temperature and token bans but without top-p and top-k; None
    if it was not sampled, but closes a thought (`rollout_manager.thinking_budget`)."""
    stop_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class EarlierGeneration(Generation):
    """A response from an earlier iteration, and the observation before it."""

    policy_version: str
    """Name of the weights that sampled it."""
    observation_text: str
    images: list[str]
    """SHA-256 of each frame of that observation, in order."""
    verdict: dict[str, Any] | None = None
    """The judge's verdict as `Verdict.to_dict`, if its episode has ended."""


class Policy(Protocol):
    """A model that continues token-exact prompts."""

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        """Continues `prompt_ids`; requests with one `request_id` extend the same context.

        The id is `<trajectory id>/<row index>`.
        """
        ...

    def release(self, request_id: str) -> None:
        """Ends the row, so that its cache may be freed. Ignores unknown ids."""
        ...


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """Rewards of one turn, by part. A missing part is None, never 0.

    Example:
        `TurnRewards(env=1.0, format=0.5, judge_observation=0.5)` has a `total` of 2.0; the
        prediction was not judged.
    """

    env: float
    """Environment reward for the effects of the actions."""
    format: float
    """Environment reward for a response in the required layout."""
    judge_observation: float | None = None
    """Weighted score of the agent's description of the observation."""
    judge_prediction: float | None = None
    """Weighted score of the agent's prediction."""

    @property
    def total(self) -> float:
        """Sum of all parts that are not None."""
        return float(sum(part for part in astuple(self) if part is not None))


@dataclass(frozen=True, slots=True)
class TurnMetrics:
    """Results of a turn's actions.

    Example:
        A step against a wall is `TurnMetrics(action_is_valid=True, action_is_effective=False)`.
    """

    action_is_valid: bool
    """The environment could parse every action."""
    action_is_effective: bool
    """The state changed."""


@dataclass(frozen=True, slots=True)
class SectionScores:
    """A number for each judged text of a turn. A missing one is None, never 0.

    Example:
        `SectionScores(observation=0.5)`: there was no prediction, or it could not be judged.
    """

    observation: float | None = None
    """For the `<observation>` text, which describes the state before the action."""
    prediction: float | None = None
    """For the `<prediction>` text, which describes the state after the action."""


NOTHING = SectionScores()
"""Both missing."""


@dataclass(frozen=True, slots=True)
class Verdict(SectionScores):
    """Scores of a turn's texts, each in [0, 1], and their origin.

    Example:
        `Verdict(observation=1.0, prediction=0.0, flags=("prediction:copied_observation",))`: the
        observation is true; the prediction repeats it and is rejected.
    """

    flags: tuple[str, ...] = ()
    """Gates that rejected a text, e.g. `observation:contradiction`."""
    absent: tuple[str, ...] = ()
    """Reasons for missing scores, e.g. `prediction:timeout`."""
    decided_by: tuple[str, ...] = ()
    """Which of several judges decided: `gate`, `rules`, `cache` or `llm`, e.g. `observation:cache`.
    """
    second: SectionScores | None = None
    """Scores of the second judge, if used."""
    deducted: SectionScores | None = None
    """Deductions of `vagen.judge.deductions` from each score, if computed."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable form, without empty fields other than scores and flags."""
        kept: dict[str, Any] = {"observation": self.observation, "prediction": self.prediction}
        kept["flags"] = list(self.flags)
        if self.absent:
            kept["absent"] = list(self.absent)
        if self.decided_by:
            kept["decided_by"] = list(self.decided_by)
        if self.second is not None:
            kept["second"] = asdict(self.second)
        if self.deducted is not None:
            amounts = asdict(self.deducted).items()
            kept["deducted"] = {section: taken for section, taken in amounts if taken is not None}
        return kept

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Verdict":
        """Inverse of `to_dict`."""
        scores = {
            name: SectionScores(**stored[name]) for name in ("second", "deducted") if name in stored
        }
        lists = {
            name: tuple(stored[name])
            for name in ("flags", "absent", "decided_by")
            if name in stored
        }
        fields: dict[str, Any] = {**stored, **scores, **lists}
        return cls(**fields)


@dataclass(slots=True)
class Turn:
    """One response of the model and the environment's result."""

    trajectory_id: str
    turn_index: int
    response_text: str
    """With the `<think>` that the chat template opened, if it did."""
    parsed: ParsedResponse
    rewards: TurnRewards
    metrics: TurnMetrics
    state: State
    """True state before the action."""
    next_state: State
    """True state after the action."""
    verdict: Verdict | None = None
    """The judge's verdict, if judged."""
    length_cut: bool = False
    """Whether the response reached its token limit without an end-of-turn token."""
    observation_text: str = ""
    """Text of the observation before the response."""
    images: list[str] = field(default_factory=list)
    """SHA-256 of each frame of that observation, in order."""
    policy_version: str | None = None
    """Name of the weights that sampled it, if a batch has several."""
    summary: bool = False
    """Whether it is a summary of earlier turns (`context: compact`) instead of a response to the
    environment. Its state is that of the next turn."""
    thought_length: int | None = None
    """Sampled tokens of the thought, if the chat template knows thoughts and there is one."""
    thought_cut: bool = False
    """Whether `rollout_manager.thinking_budget` closed the thought."""
    placed: list[tuple[int, float]] | None = None
    """Parts of the `env` reward earned by the response before a character: its index, and the
    amount."""


@dataclass(slots=True)
class TokenRow:
    """One context: the exact ids that the policy read and sampled.

    A trajectory has a row per distinct context (`vagen.rollout.contexts`). Each turn is sampled in
    exactly one row; later rows repeat it as given. A last row without sampled tokens shows the
    final state of a truncated trajectory.
    """

    trajectory_id: str
    row_index: int
    """Index among the trajectory's rows."""
    input_ids: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T] True on tokens sampled in this row
    turn_index: NDArray[np.int16]  # [T] turn of each token, observation included; CONTEXT before
    rollout_logprobs: NDArray[np.float32]  # [T] 0 where loss_mask is False
    images: list[str]
    """SHA-256 of each image block of `input_ids`, in order."""
    columns: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Columns of later steps, each [T]: `old_logprobs`, `ref_logprobs`, `values`, `rewards`,
    `advantages`, `returns`. Entry t belongs to token t (`values[t]` is the value *before* token t).
    """


@dataclass(slots=True)
class Trajectory:
    """One episode."""

    trajectory_id: str
    group_id: str
    """Id shared by trajectories of one level in one iteration."""
    config_id: str
    env_name: str
    env_config_digest: str
    seed: int
    level_hash: str
    terminated: bool
    truncated: bool
    success: bool
    status: Status
    score: float
    """Sum of environment rewards (env and format parts)."""
    turns: list[Turn]
    rows: list[TokenRow]
    error: str | None = None
    """The environment's error message if `status` is `env_error`."""
    bootstrap_value: float | None = None
    """Critic's value of a truncated trajectory's final state; set by the advantage step."""
    kept: bool | None = None
    """Whether the rollout filter kept it for learning; None before the filter. Set by the advantage
    step, which adds no columns to the rows of dropped trajectories."""
    baseline_score: float | None = None
    """Score of a greedy episode on the same level, the baseline of `remax`; set by the rollout."""

    @property
    def frames(self) -> set[str]:
        """SHA-256 of all its frames."""
        rows = {digest for row in self.rows for digest in row.images}
        return rows | {digest for turn in self.turns for digest in turn.images}
