"""What an estimator reads, checked once, and what it finds.

Shape legend: B rows, L trajectories (one row each, or several), T tokens of the padded row, K turns
of a trajectory.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

MaskName = Literal["attention", "loss", "turn_start", "turn_end"]
Normalization = Literal["mean", "mean_std"]


class AdvantageError(ValueError):
    """Arguments an estimator cannot work with: what is wrong, where, and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Checked arguments of an estimator; all masks are bool.

    The whole batch holds rewards and values as they were given; in a chunk (`vagen.advantage.
    chunks`) they are float64 and the rows of a trajectory follow each other.
    """

    rewards: Tensor
    """[B, T] floats, reward of each token."""
    values: Tensor | None
    """[B, T] floats, critic's value *before* each token; None without a critic."""
    loss_mask: Tensor
    """[B, T] bool, tokens the policy sampled."""
    turn_end_mask: Tensor | None
    """[B, T] bool, last sampled token of each turn."""
    attention_mask: Tensor
    """[B, T] bool, tokens that are not padding."""
    anchor_ids: Tensor | None
    """[B, T] int64, at a turn's last token the state observed before the turn."""
    line_of_row: Tensor
    """[B] int64, trajectory of each row, numbered in order of appearance."""
    counted: Tensor
    """[L] bool, trajectories with an attended token; the others are padding."""
    group_ids: Tensor | None
    """[L] int64 in [0, L), equal for trajectories of one level."""
    bootstrap_values: Tensor | None
    """[L] float64, value of the state after a truncated trajectory's last turn; 0 if terminated."""
    baselines: Tensor | None
    """[L] float64, score of a greedy episode."""
    turn_lams: Tensor | None
    """[L, K] float64, lambda of the value before each turn; None is `high_level_lam`."""
    turn_gammas: Tensor | None
    """[L, K] float64, discount from each turn to the next; None is `high_level_gamma`."""
    gamma: float
    """Discount per token."""
    lam: float
    """GAE lambda per token."""
    high_level_gamma: float
    """Discount per turn."""
    high_level_lam: float
    """GAE lambda per turn."""
    step_advantage_weight: float
    """Weight of the turn's advantage in `gigpo`."""
    step_gamma: float
    """Discount per turn of the turn's return in `gigpo`."""
    step_normalization: Normalization
    """How `gigpo` compares: with the mean, or by standard deviations."""
    dtype: torch.dtype
    """Type of the results."""

    def mask(self, name: MaskName) -> Tensor:
        """The mask [B, T] of that name, as far as it is among the arguments."""
        if name == "turn_end":
            assert self.turn_end_mask is not None
            return self.turn_end_mask
        assert name != "turn_start"
        return self.attention_mask if name == "attention" else self.loss_mask


class Estimate(NamedTuple):
    """What an estimator says of a batch."""

    advantages: Tensor
    """[B, T], 0 where there is nothing to say."""
    returns: Tensor
    """[B, T], what a critic learns."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """What the estimator measured on its way, by name."""


def number_ids(name: str, ids: Tensor | Sequence[Hashable], rows: int) -> Tensor:
    """Numbers ids 0, 1, ... in order of appearance.

    Args:
        name: of the argument, for the message.
        ids: [B] integers or any hashable ids.
        rows: B.

    Returns:
        [B] int64.

    Raises:
        AdvantageError: there is not one id per row.
    """
    given = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if len(given) != rows:
        raise AdvantageError(f"{name} has {len(given)} entries for {rows} rows; give one per row")
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(i, len(numbers)) for i in given], dtype=torch.int64)


def require_rows(name: str, ok_B: Tensor, problem: str) -> None:
    """Raises an error that lists the rows where `ok_B` [B] is False."""
    if bool(ok_B.all()):
        return
    rows = (~ok_B).nonzero().flatten().tolist()
    shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    raise AdvantageError(f"{name}: {problem} (row {shown} of {ok_B.numel()})")
