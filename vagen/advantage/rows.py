"""Converts arguments of the caller to inputs of estimators.

Shape legend: B rows, L trajectories (of one row each, or several), T tokens of the padded row, K
turns of a trajectory.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Ids = Tensor | Sequence[Hashable]
Normalization = Literal["mean", "mean_std"]


class AdvantageError(ValueError):
    """Invalid arguments of an estimator; the message says what, where, and what would be valid."""


class Rows:
    """Maps rows to trajectories and converts arguments.

    Each method checks one argument, named in the message, and raises AdvantageError.
    """

    def __init__(self, rewards: Tensor, attention_mask: Tensor, trajectory_ids: Ids | None):
        if rewards.dim() != 2:
            raise AdvantageError(f"rewards: shape {list(rewards.shape)}; it must be [B, T]")
        self.shape, self.device = rewards.shape, rewards.device
        self.attended = self.mask("attention_mask", attention_mask).sum(1) > 0
        """[B] bool, rows that are not padding."""
        count = len(self.attended)
        index = torch.arange(count, device=self.device)
        self.trajectory_ids = index
        """[B] int64, trajectory of each row, numbered in order of appearance."""
        if trajectory_ids is not None:
            self.trajectory_ids = numbered("trajectory_ids", trajectory_ids, count).to(self.device)
        trajectories = int(self.trajectory_ids.max()) + 1 if count else 0
        self._attended_rows = index.new_zeros(trajectories).index_add_(
            0, self.trajectory_ids, self.attended.long()
        )
        self.counted = self._attended_rows > 0
        """[L] bool, trajectories with an attended token; others are padding."""
        latest = torch.where(self.attended, index + count, index)
        last = index.new_zeros(trajectories).scatter_reduce_(0, self.trajectory_ids, latest, "amax")
        self._last_row = last % max(count, 1)  # [L], without padding

    def require_single(self, estimator: str) -> None:
        """Rejects trajectories with several rows."""
        ok = (self._attended_rows <= 1)[self.trajectory_ids]
        require_rows(
            "trajectory_ids",
            ok | ~self.attended,
            f"{estimator} needs each trajectory in one row, take an estimator that stitches "
            "(masked_gae, bi_level_gae, grpo)",
        )

    def matrix(self, name: str, x: Tensor) -> Tensor:
        """[B, T] of any type, without gradient, on the device of the rewards."""
        if x.shape != self.shape:
            raise AdvantageError(f"{name}: shape {list(x.shape)}; it must be {list(self.shape)}")
        return x.detach().to(self.device)

    def mask(self, name: str, x: Tensor) -> Tensor:
        """[B, T] of zeros and non-zeros, to bool."""
        matrix = self.matrix(name, x)
        return matrix if matrix.dtype == torch.bool else matrix != 0

    def groups(self, name: str, ids: Ids) -> Tensor:
        """[B] ids to [L] int64 in [0, L)."""
        of_row = numbered(name, ids, self.shape[0]).to(self.device)
        of_trajectory = of_row[self._last_row]
        same = of_row == of_trajectory[self.trajectory_ids]
        require_rows(name, same | ~self.attended, "rows of one trajectory in several groups")
        # Renumbered, since a group may consist of padding rows of other groups.
        return of_trajectory.unique(return_inverse=True)[1]

    def numbers(self, name: str, x: Tensor) -> Tensor:
        """[B] floats to [L] float64."""
        if x.shape != self.shape[:1]:
            raise AdvantageError(
                f"{name}: shape {list(x.shape)}; it must be {list(self.shape[:1])}"
            )
        x = x.detach().to(self.device)
        require_rows(name, torch.isfinite(x), "not finite")
        return x.double()[self._last_row]

    def tables(self, name: str, x: Tensor) -> Tensor:
        """[K] for all rows, or [B, K], in [0, 1], to [L, K] float64."""
        count = len(self.attended)
        if x.dim() == 1:
            x = x.expand(count, -1)
        if x.dim() != 2 or x.shape[0] != count:
            raise AdvantageError(f"{name}: shape {list(x.shape)}; it must be [K] or [{count}, K]")
        x = x.detach().to(self.device, torch.float64)
        require_rows(name, ((x >= 0) & (x <= 1)).all(1), "not in [0, 1]")
        return x[self._last_row]

    def fraction(self, name: str, x: float) -> float:
        """A number in [0, 1]."""
        if not 0.0 <= x <= 1.0:
            raise AdvantageError(f"{name} = {x}; it must be in [0, 1]")
        return float(x)

    def number(self, name: str, x: float) -> float:
        """Any number."""
        return float(x)

    def normalization(self, name: str, x: str) -> str:
        """A `Normalization`."""
        if x not in get_args(Normalization):
            raise AdvantageError(f"{name} = {x!r}; use mean or mean_std")
        return x


def numbered(name: str, ids: Ids, count: int) -> Tensor:
    """[B] ids to [B] int64: 0, 1, ... in order of appearance."""
    given = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if len(given) != count:
        raise AdvantageError(f"{name} has {len(given)} entries for {count} rows; give one per row")
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(i, len(numbers)) for i in given], dtype=torch.int64)


def require_rows(name: str, ok_B: Tensor, problem: str) -> None:
    """Raises an AdvantageError that lists the rows where `ok_B` [B] is False."""
    if bool(ok_B.all()):
        return
    rows = (~ok_B).nonzero().flatten().tolist()
    shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    raise AdvantageError(f"{name}: {problem} (row {shown} of {ok_B.numel()})")
