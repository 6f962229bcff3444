"""Soft penalty for turns close to their token limit."""

import numpy as np
from numpy.typing import NDArray


def overlong_penalty(
    lengths: NDArray[np.int64], *, max_length: int, buffer_len: int, penalty_factor: float
) -> NDArray[np.float64]:
    """`-factor min(max((n - (max_length - buffer)) / buffer, 0), 1)` for a turn of n tokens.

    0 up to the buffer, then linear to the whole factor at the limit (DAPO, arXiv 2503.14476,
    eq. 13, applied to each turn instead of the response).

    Args:
        lengths: [K] sampled tokens of each turn.
        max_length: Maximum tokens of a turn.
        buffer_len: Number of penalised tokens before the limit, above 0.
        penalty_factor: Penalty at the limit.

    Returns:
        [K], at most 0.
    """
    over = (lengths - (max_length - buffer_len)) / buffer_len
    return -penalty_factor * over.clip(0.0, 1.0)
