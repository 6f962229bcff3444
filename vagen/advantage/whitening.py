"""Whitening over a mask."""

import torch
from torch import Tensor

EPSILON = 1e-8
"""Added to the variance."""


def whiten(x_BT: Tensor, mask_BT: Tensor, *, statistics_BT: Tensor | None = None) -> Tensor:
    """Shifts and scales `x_BT` to mean 0 and unbiased variance 1: `(x - mean) / sqrt(var + 1e-8)`.

    Of fewer than two tokens the variance is unknown: only the mean is taken off.

    Args:
        x_BT: [B, T] floats.
        mask_BT: [B, T] bool, where the result is wanted; it is 0 elsewhere.
        statistics_BT: [B, T] bool, tokens that mean and variance are taken over; `mask_BT` if None.

    Returns:
        [B, T] floats.
    """
    sample = x_BT[mask_BT if statistics_BT is None else statistics_BT]
    if sample.numel() == 0:
        return torch.zeros_like(x_BT)
    centred_BT = x_BT - sample.mean()
    if sample.numel() > 1:
        centred_BT = centred_BT / torch.sqrt(sample.var(unbiased=True) + EPSILON)
    return torch.where(mask_BT, centred_BT, 0.0)
