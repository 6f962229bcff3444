"""Trajectories as plain data.

Shape legend: T tokens of a row, K turns of a trajectory.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from vagen.envs.base import State

CONTEXT = -1
"""Turn index of a row's beginning: system prompt, its first observation, header of the answer."""


class Status(StrEnum):
    """How an episode ended, as far as its data can be used."""

    OK = "ok"
    TRUNCATED_TOKENS = "truncated_tokens"
    """The token budget ended it; its tokens are valid and it counts as truncated."""
    ENV_ERROR = "env_error"
    """The environment failed: masked from training, counted."""


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


@dataclass(slots=True)
class Turn:
    """One model turn and what the environment answered."""

    trajectory_id: str
    turn_index: int
    response_text: str
    parsed: dict[str, Any]
    """`ParsedResponse.to_dict()`."""
    rewards: dict[str, float | None]
    """Parts `env`, `format`, `judge_observation`, `judge_prediction`; None is absent."""
    metrics: dict[str, bool]
    state: State
    """Ground truth before the action."""
    next_state: State
    """Ground truth after it."""
    verdict: dict[str, Any] | None = None
    """`{"observation": float | None, "prediction": float | None, "flags": [str]}` once judged."""
    length_cut: bool = False
    """The response reached its token limit without an end-of-turn token."""
    observation_text: str = ""
    """Text of the observation the agent answered to."""
    images: list[str] = field(default_factory=list)
    """SHA-256 of each frame shown in that observation, in order."""


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
