"""Tokens whose log-probability and advantage covary: at these a policy loses its entropy.

A step of policy gradient lowers the entropy by about the covariance of log-probability and
advantage, of which few tokens have nearly all (Cui et al. 2025, arXiv 2505.22617, sections 3, 4).

Shape legend: M tokens of a mini batch that are learnt from.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
COVARIANCE_MODES = ("clip_cov", "kl_cov")
"""Modes of `policy_loss` that read `chosen`."""


def covariances(logprobs_M: Floats, advantages_M: Floats) -> NDArray[np.float64]:
    """[M] product of what both are above their means."""
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
    """[M] the share `ratio` of the tokens, one at the least: what `policy_loss` holds back.

    Args:
        logprobs_M: of the policy before the step.
        advantages_M: of these tokens.
        draws: draws among more than enough in `clip_cov`.
        loss_mode: `clip_cov` takes any whose covariance is between `low` and `high`, all of
            them if they are fewer; `kl_cov` those where it is largest.
        ratio: of the tokens, above 0.
        low: read by `clip_cov` alone.
        high: read by `clip_cov` alone.
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
