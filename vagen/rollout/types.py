"""Trajectories as plain data.

Shape legend: T tokens of a row, K turns of a trajectory.
"""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from vagen.envs.base import State
from vagen.envs.parsing import ParsedResponse

CONTEXT = -1
"""Turn index of a row's beginning: system prompt, its first observation, header of the answer."""


class Status(StrEnum):
    """How an episode ended, as far as its data can be used."""

    OK = "ok"
    TRUNCATED_TOKENS = "truncated_tokens"
    """The token budget ended it; its tokens are valid and it counts as truncated."""
    ENV_ERROR = "env_error"
    """The environment failed: masked from training, counted."""
    UNFINISHED = "unfinished"
    """Stopped between two turns, to be carried on (`vagen.rollout.carried`); in no batch."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens of one request are drawn."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 is off."""
    max_new_tokens: int = 200
    seed: int = 0
    """Draws are a function of this seed alone, whatever else is in the batch."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request returned."""

    ids: list[int]
    """Sampled ids, the end-of-turn token included if it was sampled."""
    logprobs: list[float]
    """Log-probability of each id under the sampling distribution's model (temperature and token
    bans applied, top-p and top-k not)."""
    stop_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class EarlierGeneration(Generation):
    """A turn that was sampled in an earlier iteration, and what it answered to."""

    policy_version: str
    """Name of the weights that sampled it."""
    observation_text: str
    images: list[str]
    """SHA-256 of each frame shown in that observation, in order."""
    verdict: dict[str, Any] | None = None
    """What the judge said of it, as `Verdict.to_dict`, if its episode has ended."""


class Policy(Protocol):
    """Anything that continues a prompt token-exactly."""

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Image], sampling: Sampling
    ) -> Generation:
        """Continues `prompt_ids`; requests of one `request_id` extend each other's context.

        The id is the trajectory's and the index of the row that it samples, as `<id>/<row>`.
        """
        ...

    def release(self, request_id: str) -> None:
        """The row is over: what was cached for it may go. An unknown id is no mistake."""
        ...


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """What one turn earned, by part. A missing part is None: absent, never 0.

    Example:
        `TurnRewards(env=1.0, format=0.5, judge_observation=0.5)` has a `total` of 2.0; the
        prediction was not judged.
    """

    env: float
    """The environment's reward for what the actions did."""
    format: float
    """The environment's reward for a response in the layout that was asked for."""
    judge_observation: float | None = None
    """Weighted score of what the agent said it sees."""
    judge_prediction: float | None = None
    """Weighted score of what the agent predicted."""

    @property
    def total(self) -> float:
        """Sum of the parts that are there."""
        return float(sum(part for part in astuple(self) if part is not None))


@dataclass(frozen=True, slots=True)
class TurnMetrics:
    """How a turn's actions fared.

    Example:
        A step against a wall is `TurnMetrics(action_is_valid=True, action_is_effective=False)`.
    """

    action_is_valid: bool
    """The environment could read every action."""
    action_is_effective: bool
    """The state changed."""


@dataclass(frozen=True, slots=True)
class SectionScores:
    """A number for each text of a turn that is judged. A missing one is None: absent, never 0.

    Example:
        `SectionScores(observation=0.5)`: there was no prediction, or it could not be judged.
    """

    observation: float | None = None
    """Number of the `<observation>` text, which describes the state before the action."""
    prediction: float | None = None
    """Number of the `<prediction>` text, which describes the state after the action."""


NOTHING = SectionScores()
"""No number at all."""


@dataclass(frozen=True, slots=True)
class Verdict(SectionScores):
    """Scores of a turn's texts, each in [0, 1], and how they came about.

    Example:
        `Verdict(observation=1.0, prediction=0.0, flags=("prediction:copied_observation",))`: the
        observation is true, and the prediction, which repeats it, was refused.
    """

    flags: tuple[str, ...] = ()
    """Which gate refused a text, e.g. `observation:contradiction`."""
    absent: tuple[str, ...] = ()
    """Why a score that was asked for could not be had, e.g. `prediction:timeout`."""
    decided_by: tuple[str, ...] = ()
    """What decided where there is a choice: `gate`, `rules`, `cache` or `llm`, e.g.
    `observation:cache`."""
    second: SectionScores | None = None
    """Scores of the second judge, if it was asked."""
    deducted: SectionScores | None = None
    """What `vagen.judge.deductions` takes off each score, if it looked at any."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, without what is empty beside scores and flags."""
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
    """One model turn and what the environment answered."""

    trajectory_id: str
    turn_index: int
    response_text: str
    parsed: ParsedResponse
    rewards: TurnRewards
    metrics: TurnMetrics
    state: State
    """Ground truth before the action."""
    next_state: State
    """Ground truth after it."""
    verdict: Verdict | None = None
    """What the judge said, once it was asked."""
    length_cut: bool = False
    """The response reached its token limit without an end-of-turn token."""
    observation_text: str = ""
    """Text of the observation the agent answered to."""
    images: list[str] = field(default_factory=list)
    """SHA-256 of each frame shown in that observation, in order."""
    policy_version: str | None = None
    """Name of the weights that sampled it, where those of a batch may differ."""
    summary: bool = False
    """It sums up the turns before it instead of playing (`context: compact`): the environment has
    not seen it, and its state is that of the next turn."""


@dataclass(slots=True)
class TokenRow:
    """One context: the exact ids the policy saw and sampled.

    A trajectory has a row per distinct context (`vagen.rollout.contexts`). Each of its turns is
    sampled in exactly one of them; later rows repeat it as given. A last row without any sampled
    token shows the state that a truncated trajectory stopped in.
    """

    trajectory_id: str
    row_index: int
    """Place among the trajectory's rows."""
    input_ids: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T] True on tokens sampled in this row
    turn_index: NDArray[np.int16]  # [T] turn of each token, observation included; CONTEXT before
    rollout_logprobs: NDArray[np.float32]  # [T] 0 where loss_mask is False
    images: list[str]
    """SHA-256 of each image block of `input_ids`, in order."""
    columns: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """What later steps add, each [T]: `old_logprobs`, `ref_logprobs`, `values`, `rewards`,
    `advantages`, `returns`. A value at position t belongs to token t (`values[t]` is the value
    *before* token t)."""


@dataclass(slots=True)
class Trajectory:
    """One episode."""

    trajectory_id: str
    group_id: str
    """Trajectories of one level in one iteration share it."""
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
    """Sum of the environment's rewards (env and format parts)."""
    turns: list[Turn]
    rows: list[TokenRow]
    error: str | None = None
    """The environment's message if `status` is `env_error`."""
    bootstrap_value: float | None = None
    """Critic's value of the state a truncated trajectory stopped in; set by the advantage step."""
    kept: bool | None = None
    """Whether the rollout filter kept it for learning; None where no filter has run. Set by the
    advantage step, which adds no columns to the rows of those that were dropped."""
    baseline_score: float | None = None
    """Score of a greedy episode on the same level, the baseline of `remax`; set by the rollout."""

    @property
    def frames(self) -> set[str]:
        """SHA-256 of every frame that it shows."""
        rows = {digest for row in self.rows for digest in row.images}
        return rows | {digest for turn in self.turns for digest in turn.images}
