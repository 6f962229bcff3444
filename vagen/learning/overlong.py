"""Soft penalty for answers that come near their token limit."""

import numpy as np
from numpy.typing import NDArray


def overlong_penalty(
    lengths: NDArray[np.int64], *, max_length: int, buffer_len: int, penalty_factor: float
) -> NDArray[np.float64]:
    """`-factor min(max((n - (max_length - buffer)) / buffer, 0), 1)` for an answer of n tokens.

    0 up to the buffer, from there linear to the whole factor at the limit (DAPO, arXiv 2503.14476,
    eq. 13, of each turn instead of a response).

    Args:
        lengths: [K] sampled tokens of each answer.
        max_length: Most tokens of an answer.
        buffer_len: Last tokens before the limit that cost, above 0.
        penalty_factor: What an answer at the limit costs.

    Returns:
        [K], at most 0.
    """
    over = (lengths - (max_length - buffer_len)) / buffer_len
    return -penalty_factor * over.clip(0.0, 1.0)
