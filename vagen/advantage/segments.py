"""Kernels over the selected tokens of ragged rows, without a Python loop over tokens.

An estimator reads some tokens only (the sampled ones, or the last of each turn). `Selection` lays
those of all trajectories end to end in one line, with a trajectory's rows in order, and marks where
each trajectory ends. The next selected token is then the next entry, even across observations and
rows.

Shape legend: B rows, T tokens of the padded row, L trajectories, N selected tokens of all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """The tokens where a mask is True, trajectory after trajectory."""

    shape: torch.Size
    """(B, T)."""
    places: Tensor
    """[N] int64, index of each selected token in the flattened rows."""
    lines: Tensor
    """[N] int64, trajectory of each token."""
    last: Tensor
    """[N] bool, whether it is its trajectory's last."""

    @classmethod
    def of(cls, mask_BT: Tensor, line_of_row_B: Tensor | None = None) -> "Selection":
        """Selects where `mask_BT` (bool) is True.

        Args:
            mask_BT: [B, T] bool.
            line_of_row_B: [B] trajectory of each row, ascending; None for one per row.
        """
        if line_of_row_B is None:
            line_of_row_B = torch.arange(mask_BT.shape[0], device=mask_BT.device)
        rows, columns = mask_BT.nonzero(as_tuple=True)
        lines = line_of_row_B[rows]
        last = torch.ones_like(lines, dtype=torch.bool)
        torch.ne(lines[1:], lines[:-1], out=last[:-1])
        places = rows.mul_(mask_BT.shape[1]).add_(columns)
        return cls(shape=mask_BT.shape, places=places, lines=lines, last=last)

    def take(self, x_BT: Tensor) -> Tensor:
        """The selected entries: [B, T] to [N]."""
        return x_BT.reshape(-1).index_select(0, self.places)

    def put(self, x_N: Tensor) -> Tensor:
        """Inverse of `take`: [N] to [B, T], 0 at other tokens."""
        out = x_N.new_zeros(self.shape)
        out.view(-1).scatter_(0, self.places, x_N)
        return out

    def following(self, x_N: Tensor, after_L: Tensor | None) -> Tensor:
        """Each token's next entry, [N]; at the last of a trajectory `after_L` [L], or 0."""
        out = x_N.roll(-1)
        out[self.last] = 0.0 if after_L is None else after_L[self.lines[self.last]]
        return out

    def within(self, decay: float | Tensor) -> Tensor:
        """[N] float64: `decay` (scalar or [N]), but 0 at a trajectory's last token."""
        return (~self.last).double() * decay

    def ranks(self) -> Tensor:
        """[N] int64, number of earlier selected tokens in each token's trajectory."""
        positions = torch.arange(self.lines.numel(), device=self.lines.device)
        first = torch.ones_like(self.last)
        first[1:] = self.last[:-1]
        return positions - torch.where(first, positions, 0).cummax(0).values


def turns_of(ends_N: Tensor) -> Tensor:
    """Turn index of each token, counted over all trajectories.

    Args:
        ends_N: [N] bool, whether a sampled token ends its turn; True for the last.

    Returns:
        [N] int64: the index of the turn in a `Selection` of the turn ends.
    """
    return ends_N.cumsum(0) - ends_N.long()


def turn_starts(ends_N: Tensor) -> Tensor:
    """[N] bool, whether a sampled token is the first of its turn."""
    starts = torch.ones_like(ends_N)
    starts[1:] = ends_N[:-1]
    return starts


BLOCK = 16
"""Length of a block. A scan takes this many steps, each for all blocks at once."""


def reverse_linear_scan(inputs_N: Tensor, decay_N: Tensor) -> Tensor:
    """Solves `y[n] = inputs[n] + decay[n] * y[n + 1]`, with `y[N] = 0`.

    The line is cut into blocks that are solved in parallel as if nothing followed them; a recursion
    of the same kind over blocks then adds what follows (Blelloch 1990, "Prefix sums and their
    applications", section 1.4). Work is linear in N. There is no division, so a decay of 0
    separates trajectories and turns exactly.

    Args:
        inputs_N: [N] floats.
        decay_N: [N] floats.

    Returns:
        [N] floats.
    """
    count = inputs_N.numel()
    blocks = -(-count // BLOCK)
    length = BLOCK if blocks > 1 else count
    y = _in_columns(inputs_N, blocks, length)
    decay = _in_columns(decay_N, blocks, length)
    rows, decays = y.unbind(0), decay.unbind(0)
    for s in range(length - 2, -1, -1):
        rows[s].addcmul_(decays[s], rows[s + 1])
        decays[s].mul_(decays[s + 1])
    if blocks > 1:
        carry = torch.zeros_like(rows[0])
        carry[:-1] = reverse_linear_scan(rows[0], decays[0])[1:]
        y.addcmul_(decay, carry)
    return y.t().reshape(-1)[:count]


def _in_columns(x_N: Tensor, blocks: int, length: int) -> Tensor:
    """Blocks as the columns of a new tensor [length, blocks], 0 after the end."""
    padded = torch.nn.functional.pad(x_N, (0, blocks * length - x_N.numel()))
    return padded.view(blocks, length).t().clone(memory_format=torch.contiguous_format)


def gae_scan(
    selection: Selection,
    rewards_N: Tensor,
    values_N: Tensor,
    after_L: Tensor | None,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
) -> Tensor:
    """Generalised advantage estimation over selected tokens (Schulman et al. 2016, eq. 16).

    `delta[n] = r[n] + gamma[n] V[n+1] - V[n]` and `A[n] = delta[n] + gamma[n] lam[n] A[n+1]`,
    separately in each trajectory.

    Args:
        selection: The selected tokens.
        rewards_N: [N] floats.
        values_N: [N] floats.
        after_L: [L] value of the state after a trajectory's last token; None for 0.
        gamma: Discount per entry, scalar or [N].
        lam: Lambda per entry, scalar or [N].

    Returns:
        [N] advantages.
    """
    deltas_N = rewards_N + gamma * selection.following(values_N, after_L) - values_N
    return reverse_linear_scan(deltas_N, selection.within(gamma * lam))
