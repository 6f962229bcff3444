"""Tokens whose log-probability and advantage covary, which reduce the policy's entropy most.

A policy gradient step lowers the entropy by about the covariance of log-probability and advantage,
which is concentrated in few tokens (Cui et al. 2025, arXiv 2505.22617, sections 3, 4).

Shape legend: M tokens of a mini batch that are learnt from.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
COVARIANCE_MODES = ("clip_cov", "kl_cov")
"""Modes of `policy_loss` that read `chosen`."""


def covariances(logprobs_M: Floats, advantages_M: Floats) -> NDArray[np.float64]:
    """Products [M] of the centred log-probabilities and advantages."""
    logprobs, advantages = logprobs_M.astype(np.float64), advantages_M.astype(np.float64)
    return (logprobs - logprobs.mean()) * (advantages - advantages.mean())


def covarying_tokens(
    logprobs_M: Floats,
    advantages_M: Floats,
    draws: np.random.Generator,
    *,
    loss_mode: Literal["clip_cov", "kl_cov"],
    ratio: float,
    low: float = 1.0,
    high: float = 5.0,
) -> NDArray[np.bool_]:
    """Selects the share `ratio` of the tokens, at least one, bool [M]: `chosen` of `policy_loss`.

    Args:
        logprobs_M: Log-probabilities before the step.
        advantages_M: Advantages of the tokens.
        draws: Chooses at random among candidates in `clip_cov`.
        loss_mode: `clip_cov` chooses among tokens whose covariance is between `low` and `high`;
            `kl_cov` takes the largest covariances.
        ratio: Share of the tokens, above 0.
        low: For `clip_cov` only.
        high: For `clip_cov` only.
    """
    chosen = np.zeros(len(logprobs_M), np.bool_)
    if not len(chosen):
        return chosen
    found, count = covariances(logprobs_M, advantages_M), max(int(ratio * len(chosen)), 1)
    if loss_mode == "clip_cov":
        order = draws.permutation(np.flatnonzero((found > low) & (found < high)))
    else:
        order = np.argsort(-found, kind="stable")
    chosen[order[:count]] = True
    return chosen
