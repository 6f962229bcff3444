"""Kernels over the selected tokens of ragged rows: no Python loop over tokens.

An estimator looks at some tokens only (the sampled ones, or the last of each turn). `Selection`
moves those of every row to the front of a dense array, where a recursion over "the next selected
token" is a recursion over the next column, and back.

Shape legend: B rows, T tokens of the padded row, S most selected tokens of a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """The tokens of each row where a mask is True, in order."""

    shape: tuple[int, int]
    """(B, T)."""
    lengths: Tensor
    """[B] int64, selected tokens of each row."""
    width: int
    """S."""
    rows: Tensor
    """[N] row of each selected token."""
    columns: Tensor
    """[N] position in [0, T) of each selected token."""
    slots: Tensor
    """[N] place in [0, S) of each selected token in its row's dense layout."""

    @classmethod
    def of(cls, mask_BT: Tensor) -> "Selection":
        """Selects where `mask_BT` (bool) is True."""
        rank_BT = mask_BT.cumsum(1) - 1
        lengths = mask_BT.sum(1)
        rows, columns = mask_BT.nonzero(as_tuple=True)
        return cls(
            shape=(mask_BT.shape[0], mask_BT.shape[1]),
            lengths=lengths,
            width=int(lengths.max()) if lengths.numel() else 0,
            rows=rows,
            columns=columns,
            slots=rank_BT[rows, columns],
        )

    def take(self, x_BT: Tensor) -> Tensor:
        """Moves the selected entries to the front: [B, T] to [B, S], 0 after a row's last."""
        dense_BS = x_BT.new_zeros(self.shape[0], self.width)
        dense_BS[self.rows, self.slots] = x_BT[self.rows, self.columns]
        return dense_BS

    def put(self, dense_BS: Tensor) -> Tensor:
        """Moves them back: [B, S] to [B, T], 0 at tokens not selected."""
        x_BT = dense_BS.new_zeros(self.shape)
        x_BT[self.rows, self.columns] = dense_BS[self.rows, self.slots]
        return x_BT


def reverse_linear_scan(inputs_BS: Tensor, decay_BS: Tensor) -> Tensor:
    """Solves `y[s] = inputs[s] + decay[s] * y[s + 1]`, with `y[S] = 0`, in log2(S) passes.

    Each pass doubles the span a column covers (Hillis and Steele 1986, "Data parallel
    algorithms"). Nothing is divided, so zero decays are exact.

    Args:
        inputs_BS: [B, S] floats.
        decay_BS: [B, S] floats.

    Returns:
        [B, S] floats.
    """
    y, decay = inputs_BS.clone(), decay_BS.clone()
    span = 1
    while span < y.shape[1]:
        y[:, :-span] += decay[:, :-span] * y[:, span:]
        decay[:, :-span] *= decay[:, span:].clone()
        span *= 2
    return y


def next_values(values_BS: Tensor, lengths_B: Tensor, bootstrap_B: Tensor | None) -> Tensor:
    """Value after each selected token: that of the next one, `bootstrap_B` (or 0) after the last.

    Args:
        values_BS: [B, S], 0 after a row's last entry.
        lengths_B: [B] entries of each row.
        bootstrap_B: [B] value of the state after the last entry; None is 0.

    Returns:
        [B, S], 0 after a row's last entry.
    """
    extended = torch.cat([values_BS, values_BS.new_zeros(values_BS.shape[0], 1)], dim=1)
    if bootstrap_B is not None:
        extended.scatter_(1, lengths_B[:, None], bootstrap_B[:, None])
    return extended[:, 1:]


def gae_scan(
    rewards_BS: Tensor,
    values_BS: Tensor,
    lengths_B: Tensor,
    bootstrap_B: Tensor | None,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimation over dense rows (Schulman et al. 2016, eq. 16).

    `delta[s] = r[s] + gamma V[s+1] - V[s]` and `A[s] = delta[s] + gamma lam A[s+1]`.

    Args:
        rewards_BS: [B, S], 0 after a row's last entry.
        values_BS: [B, S], 0 after a row's last entry.
        lengths_B: [B] entries of each row.
        bootstrap_B: [B] value of the state after the last entry; None is 0.
        gamma: discount per entry.
        lam: lambda per entry.

    Returns:
        [B, S] advantages.
    """
    deltas_BS = rewards_BS + gamma * next_values(values_BS, lengths_B, bootstrap_B) - values_BS
    return reverse_linear_scan(deltas_BS, torch.full_like(deltas_BS, gamma * lam))
