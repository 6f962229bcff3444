"""Arguments and inputs of estimators, each declared once.

A field's metadata define what it belongs to (row, trajectory or call) and its check. A new argument
needs only a new field.

Shape legend: B rows, L trajectories (of one row each, or several), T tokens of the padded row, K
turns of a trajectory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vagen.advantage.rows import Ids, Normalization, Rows

MaskName = Literal["attention", "loss", "action", "turn_start", "turn_end"]


def _metadata(
    belongs_to: Literal["row", "trajectory", "call"],
    check: Callable[[Rows, str, Any], Any] | None = None,
) -> Mapping[str, Any]:
    """Metadata of a field: what it belongs to, and the check of its value if it is not None.

    A check gets the rows, the field's name and the value, and returns the estimator's input.
    """
    return {"belongs_to": belongs_to, "check": check}


MATRIX, MASK = _metadata("row", Rows.matrix), _metadata("row", Rows.mask)
NUMBERS, TABLES = _metadata("trajectory", Rows.numbers), _metadata("trajectory", Rows.tables)
FRACTION, CHOICE = _metadata("call", Rows.fraction), _metadata("call", Rows.normalization)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageArguments:
    """Arguments of `estimate_advantages`.

    Fields [B] that belong to a trajectory are read at its last row that is not padding; an
    estimator gets them as [L].
    """

    rewards: Tensor = field(metadata=MATRIX)
    """[B, T] floats, reward of each token; a turn's reward is on its last sampled token."""
    loss_mask: Tensor = field(metadata=MASK)
    """[B, T], non-zero on tokens the policy sampled; estimators get all masks as bool."""
    attention_mask: Tensor = field(metadata=MASK)
    """[B, T], non-zero on tokens that are not padding."""
    task_rewards: Tensor | None = field(default=None, metadata=MATRIX)
    """[B, T] floats, rewards before any KL penalty, for the deviation that scores are divided by.
    Where that is 0, advantages are 0. None for `rewards`."""
    values: Tensor | None = field(default=None, metadata=MATRIX)
    """[B, T] floats, critic's value *before* each token."""
    action_mask: Tensor | None = field(default=None, metadata=MASK)
    """[B, T], non-zero on tokens of the policy loss: the sampled ones and, without the loss mask
    (M^loss), those between them. None for `loss_mask`."""
    turn_end_mask: Tensor | None = field(default=None, metadata=MASK)
    """[B, T], non-zero on the last sampled token of each turn."""
    anchor_ids: Tensor | None = field(default=None, metadata=MATRIX)
    """[B, T] int64, on a turn's tokens the id (at least 0) of the state it started from; read at
    the turn's last token."""
    trajectory_ids: Ids | None = field(default=None, metadata=_metadata("row"))
    """[B] ids of any kind, equal for rows of one trajectory, which are in the order of its turns
    but need not be adjacent. None for one trajectory per row."""
    group_ids: Ids | None = field(default=None, metadata=_metadata("trajectory", Rows.groups))
    """[B] ids of any kind, equal for trajectories of one level."""
    bootstrap_values: Tensor | None = field(default=None, metadata=NUMBERS)
    """[B] floats, critic's value of the state after the last turn for truncated trajectories, 0 for
    terminated ones. None for 0 everywhere."""
    baselines: Tensor | None = field(default=None, metadata=NUMBERS)
    """[B] floats, score of a greedy episode on the row's level."""
    turn_lams: Tensor | None = field(default=None, metadata=TABLES)
    """[K] or [B, K] in [0, 1]: entry k is lambda of the value before turn k. None for
    `high_level_lam`."""
    turn_gammas: Tensor | None = field(default=None, metadata=TABLES)
    """[K] or [B, K] in [0, 1]: entry k is the discount from turn k to the next state. None for
    `high_level_gamma`."""
    gamma: float = field(default=1.0, metadata=FRACTION)
    """Discount per token, in [0, 1]."""
    lam: float = field(default=1.0, metadata=FRACTION)
    """GAE lambda per token, in [0, 1]."""
    high_level_gamma: float = field(default=0.95, metadata=FRACTION)
    """Discount per turn, in [0, 1]."""
    high_level_lam: float | None = field(default=None, metadata=FRACTION)
    """GAE lambda per turn, in [0, 1]; None for `lam`."""
    bi_level_mix: float = field(default=1.0, metadata=FRACTION)
    """Weight of the recursion with discounts per turn in `variable_clock_gae`, in [0, 1]."""
    step_advantage_weight: float = field(default=1.0, metadata=_metadata("call", Rows.number))
    """Weight of the turn-level advantages in `gigpo`."""
    step_gamma: float = field(default=0.95, metadata=FRACTION)
    """Discount per turn of the turn-level return in `gigpo`, in [0, 1]."""
    step_normalization: Normalization = field(
        default="mean", metadata=_metadata("call", Rows.normalization)
    )
    """Whether `gigpo` divides differences by the standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs(AdvantageArguments):
    """Checked arguments, as an estimator reads them.

    In a batch, rewards and values have their original type. In a chunk (`vagen.advantage.chunks`)
    they are float64 and the rows of a trajectory are adjacent.
    """

    task_rewards: Tensor = field(metadata=_metadata("row"))
    """[B, T] floats, rewards before any KL penalty."""
    action_mask: Tensor = field(metadata=_metadata("row"))
    """[B, T] bool, tokens of the policy loss."""
    trajectory_ids: Tensor = field(metadata=_metadata("row"))
    """[B] int64, trajectory of each row, numbered in order of appearance."""
    group_ids: Tensor | None = field(metadata=_metadata("trajectory"))
    """[L] int64 in [0, L), equal for trajectories of one level."""
    high_level_lam: float = field(metadata=_metadata("call"))
    """GAE lambda per turn."""
    counted: Tensor = field(metadata=_metadata("trajectory"))
    """[L] bool, trajectories with an attended token; others are padding."""
    dtype: torch.dtype = field(metadata=_metadata("call"))
    """Type of the results."""

    def mask(self, name: MaskName) -> Tensor:
        """The mask [B, T] of that name; fails if it was not given."""
        if name == "turn_end":
            assert self.turn_end_mask is not None
            return self.turn_end_mask
        assert name != "turn_start"
        masks = {"attention": self.attention_mask, "action": self.action_mask}
        return masks.get(name, self.loss_mask)


class AdvantageEstimate(NamedTuple):
    """Result of an estimator."""

    advantages: Tensor
    """[B, T], 0 outside the estimator's mask."""
    returns: Tensor
    """[B, T], the critic's targets."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """Additional metrics of the estimator, by name."""
