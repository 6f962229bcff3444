"""Metrics of an update that add up over micro batches.

A mean of means over unequal micro batches is not the mean. So losses report sums with their weights
as tensors on the device (without synchronisation), and `combine_metrics` divides them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


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
