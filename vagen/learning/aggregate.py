"""Aggregates token losses and metrics such that micro batches add up exactly.

A mean of means over unequal micro batches is not the mean. So metrics are sums with their weights,
as tensors on the device (without synchronisation), and `combine_metrics` divides them.

Shape legend: tensors are [B, T] (padded) or [N] (packed, whole rows after one another).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
"""`token-mean`: mean over all tokens. `seq-mean-token-sum`: sum over each row's tokens, mean over
rows. `seq-mean-token-mean`: mean over each row's tokens, mean over rows."""


def loss_denominator(loss_mask: Tensor, mode: LossAggMode, row_ids: Tensor | None = None) -> Tensor:
    """Divisor of a mini batch's summed loss: its number of tokens or rows.

    Args:
        loss_mask: [B, T] or [N], non-zero on tokens that count; of the *whole* mini batch.
        mode: Averaging mode.
        row_ids: integers shaped like `loss_mask`, the row of each token; only for the `seq-`
            modes of packed tensors.

    Returns:
        0-d int64: sampled tokens (`token-mean`) or rows with any; at least 1.
    """
    mask = loss_mask != 0
    if mode == "token-mean":
        return mask.sum().clamp(min=1)
    return (_tokens_per_row(mask, _row_index(mask, row_ids)) > 0).sum().clamp(min=1)


def aggregate(
    per_token: Tensor,
    loss_mask: Tensor,
    *,
    mode: LossAggMode = "token-mean",
    denominator: Tensor | float | None = None,
    row_ids: Tensor | None = None,
) -> Tensor:
    """Averages `per_token` over the tokens where `loss_mask` is non-zero.

    With the `denominator` of the whole mini batch (`loss_denominator`), results and gradients of
    micro batches sum to those of the mini batch, however it is cut between rows.

    Args:
        per_token: [B, T] or [N] floats; values off the mask have no effect.
        loss_mask: same shape, non-zero on tokens that count.
        mode: Averaging mode.
        denominator: Tokens (`token-mean`) or rows (other modes) of the mini batch; None for those
            of this call.
        row_ids: see `loss_denominator`; for `seq-mean-token-mean` each row must be whole.

    Returns:
        0-d float.

    Raises:
        ValueError: Unknown mode, unequal shapes, or missing `row_ids`.
    """
    require_same_shape(per_token=per_token, loss_mask=loss_mask)
    mask = loss_mask != 0
    summand = torch.where(mask, per_token, 0.0)
    if mode == "seq-mean-token-mean":
        rows = _row_index(mask, row_ids)
        summand = summand / _tokens_per_row(mask, rows).clamp(min=1)[rows]
    elif mode not in get_args(LossAggMode):
        raise ValueError(f"loss_agg_mode {mode!r}; it must be one of {get_args(LossAggMode)}")
    if denominator is None:
        denominator = loss_denominator(mask, mode, row_ids)
    return summand.sum() / denominator


def reduce_units(
    per_token: Tensor, loss_mask: Tensor, unit_ids: Tensor | None = None, *, mean: bool
) -> Tensor:
    """The mean or sum of `per_token` over each unit's tokens where `loss_mask` is non-zero.

    Args:
        per_token: [B, T] or [N] floats.
        loss_mask: same shape, non-zero on tokens that count.
        unit_ids: Integers of the same shape, the unit of each token, such as its row or turn; None
            for the rows of padded tensors.
        mean: Whether it is the mean, not the sum.

    Returns:
        Same shape, at each token that of its unit; 0 in units without such a token.
    """
    mask = loss_mask != 0
    units = _row_index(mask, unit_ids)
    tokens = _tokens_per_row(mask, units)
    sums = per_token.new_zeros(tokens.shape).index_add(0, units[mask], per_token[mask])
    return (sums / tokens.clamp(min=1) if mean else sums)[units]


def require_same_shape(**tensors: Tensor) -> None:
    """Raises ValueError if shapes differ, since broadcasting would hide the error."""
    if len({x.shape for x in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in tensors.items())
        raise ValueError(f"shapes must be equal: {shapes}")


def _row_index(mask: Tensor, row_ids: Tensor | None) -> Tensor:
    """Row index of each token, in [0, rows), shaped like `mask`."""
    if row_ids is not None:
        require_same_shape(loss_mask=mask, row_ids=row_ids)
        return torch.unique(row_ids, return_inverse=True)[1]
    if mask.dim() == 1:
        raise ValueError("a mean over each row of packed tensors needs `row_ids`")
    return torch.arange(mask.shape[0], device=mask.device)[:, None].expand(mask.shape)


def _tokens_per_row(mask: Tensor, rows: Tensor) -> Tensor:
    return torch.bincount(rows[mask], minlength=int(rows.max()) + 1 if rows.numel() else 0)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over tokens, as sum and count."""

    total: Tensor  # 0-d
    weight: Tensor  # 0-d

    def __float__(self) -> float:
        return float(self.total) / max(float(self.weight), 1.0)


@dataclass(frozen=True, slots=True)
class Max:
    """A maximum over tokens; minus infinity without tokens."""

    value: Tensor  # 0-d

    def __float__(self) -> float:
        return float(self.value)


Aggregate = Mean | Max


def token_mean(per_token: Tensor, mask: Tensor) -> Mean:
    """Mean of `per_token` where `mask` (bool, same shape) is True."""
    per_token = per_token.detach()
    return Mean(total=torch.where(mask, per_token, 0).sum(), weight=mask.sum())


def token_max(per_token: Tensor, mask: Tensor) -> Max:
    """Maximum of `per_token` where `mask` (bool, same shape) is True."""
    per_token = per_token.detach()
    if per_token.numel() == 0:
        return Max(per_token.new_tensor(float("-inf")))
    return Max(torch.where(mask, per_token, float("-inf")).max())


def combine_metrics(parts: Iterable[Mapping[str, Aggregate]]) -> dict[str, float]:
    """Combines metrics of all micro batches; drops those without tokens."""
    gathered: dict[str, list[Aggregate]] = {}
    for part in parts:
        for name, metric in part.items():
            gathered.setdefault(name, []).append(metric)
    combined: dict[str, float] = {}
    for name, metrics in gathered.items():
        means = [m for m in metrics if isinstance(m, Mean)]
        if means:
            weight = sum(float(m.weight) for m in means)
            if weight > 0:
                combined[name] = sum(float(m.total) for m in means) / weight
        else:
            highest = max(map(float, metrics))
            if highest > float("-inf"):
                combined[name] = highest
    return combined


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """Share of the returns' variance that the values explain: `1 - Var(R - V) / Var(R)`.

    Args:
        values: Any shape, critic's values.
        returns: Same shape, un-whitened returns.
        mask: Same shape, non-zero on tokens that count.

    Returns:
        1 for a perfect critic (up to a constant), 0 for an uninformative one, negative for one
        worse than a constant; 0 where it is undefined (returns without variance).
    """
    mask = mask != 0
    target = returns[mask].double()
    if target.numel() < 2:
        return 0.0
    variance = target.var()
    if float(variance) == 0.0:
        return 0.0
    return float(1.0 - (target - values[mask].double()).var() / variance)
