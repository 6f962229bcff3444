"""What an estimator reads, checked once.

Shape legend: B rows (one trajectory each), T tokens of the padded row.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class AdvantageError(ValueError):
    """Arguments an estimator cannot work with: what is wrong, where, and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Checked arguments of an estimator; all floats are float64, all masks bool."""

    rewards: Tensor
    """[B, T] float64, reward of each token."""
    values: Tensor | None
    """[B, T] float64, critic's value *before* each token; None without a critic."""
    loss_mask: Tensor
    """[B, T] bool, tokens the policy sampled."""
    turn_end_mask: Tensor | None
    """[B, T] bool, last sampled token of each turn."""
    attention_mask: Tensor
    """[B, T] bool, tokens that are not padding."""
    group_ids: Tensor | None
    """[B] int64 in [0, B), equal for trajectories of one level."""
    bootstrap_values: Tensor | None
    """[B] float64, value of the state after a truncated row's last turn; 0 if terminated."""
    gamma: float
    """Discount per token."""
    lam: float
    """GAE lambda per token."""
    high_level_gamma: float
    """Discount per turn."""
    high_level_lam: float
    """GAE lambda per turn."""
    whiten: bool
    """Whether advantages of the GAE family are whitened."""


def as_group_index(group_ids: Tensor | Sequence[Hashable], rows: int) -> Tensor:
    """Numbers the groups 0, 1, ... in order of appearance.

    Args:
        group_ids: [B] integers or any hashable ids.
        rows: B.

    Returns:
        [B] int64.

    Raises:
        AdvantageError: there is not one id per row.
    """
    ids = group_ids.tolist() if isinstance(group_ids, Tensor) else list(group_ids)
    if len(ids) != rows:
        raise AdvantageError(f"group_ids has {len(ids)} entries for {rows} rows; give one per row")
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(i, len(numbers)) for i in ids], dtype=torch.int64)


def require_rows(name: str, ok_B: Tensor, problem: str) -> None:
    """Raises an error that lists the rows where `ok_B` [B] is False."""
    if bool(ok_B.all()):
        return
    rows = (~ok_B).nonzero().flatten().tolist()
    shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    raise AdvantageError(f"{name}: {problem} (row {shown} of {ok_B.numel()})")
