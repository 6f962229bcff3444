"""Whitening over a mask."""

import torch
from torch import Tensor

from vagen.advantage.chunks import row_slices

EPSILON = 1e-8
"""Added to the variance."""


def whiten(
    x_BT: Tensor,
    mask_BT: Tensor,
    *,
    statistics_BT: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Shifts and scales `x_BT` to mean 0 and unbiased variance 1: `(x - mean) / sqrt(var + 1e-8)`.

    With fewer than two tokens only the mean is subtracted. Mean and variance are over all rows, in
    float64.

    Args:
        x_BT: [B, T] floats.
        mask_BT: [B, T] bool, tokens of the result; it is 0 elsewhere.
        statistics_BT: [B, T] bool, tokens of the statistics; None for `mask_BT`.
        dtype: Type of the result; None for that of `x_BT`.

    Returns:
        [B, T] floats.
    """
    sample_BT = mask_BT if statistics_BT is None else statistics_BT
    out = torch.zeros_like(x_BT, dtype=dtype)
    parts = list(row_slices(x_BT))
    count = int(sample_BT.sum())
    if count == 0:
        return out
    mean = sum(float(x_BT[p][sample_BT[p]].double().sum()) for p in parts) / count
    scale = 1.0
    if count > 1:
        squares = sum(float((x_BT[p][sample_BT[p]].double() - mean).square().sum()) for p in parts)
        scale = (squares / (count - 1) + EPSILON) ** -0.5
    for p in parts:
        out[p] = torch.where(mask_BT[p], (x_BT[p].double() - mean) * scale, 0.0)
    return out
