"""Normalises trajectory scores while keeping rewards on their turns.

Source: RAGEN (arXiv 2504.20073), whose `reward_normalization` applies to a score on the last token.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import numpy as np

from vagen.learning.filters import group_statistics

NormalizationMethod = Literal["none", "mean", "mean_std", "asym_clip"]

EPSILON = 1e-6
"""Added to the standard deviation; deviations up to this count as 0."""
ASYMMETRIC_BOUNDS = (-1.0, 3.0)
"""Bounds of `asym_clip`: failures weigh less than successes."""


def normalize_turn_rewards(
    turn_rewards: Sequence[Sequence[float]],
    group_ids: Sequence[Hashable],
    *,
    method: NormalizationMethod,
) -> list[list[float]]:
    """Normalises the score of each trajectory, the sum of its turns' rewards.

    With mean `m` and unbiased standard deviation `d` of the scores of the trajectory's group, a
    score `s` becomes `s - m` (`mean`), `(s - m) / (d + 1e-6)` (`mean_std`), or the latter
    clipped to [-1, 3] (`asym_clip`). Where all scores are equal the result is 0.

    Turns keep their rewards: `mean_std` and `asym_clip` divide each by the same `d + 1e-6` (by
    infinity where all scores are equal), and the last turn gets the remaining difference to the
    normalised score. There it shifts the undiscounted return-to-go of all turns equally, like a
    baseline of the trajectory. Spread over the turns it would reward or penalise each turn, and the
    policy decides how many turns there are.

    Args:
        turn_rewards: B sequences, rewards of each turn of a trajectory, in order and before any KL
            penalty; at least one turn each. Only of trajectories that count.
        group_ids: B ids, equal for trajectories that share mean and deviation.
        method: The normalisation.

    Returns:
        B lists of the same lengths; each sums to the normalised score.

    Raises:
        ValueError: Unknown method, or a trajectory without a turn.
    """
    if method not in (known := get_args(NormalizationMethod)):
        raise ValueError(f"reward_normalization.method {method!r}; it must be one of {known}")
    if method == "none":
        return [list(rewards) for rewards in turn_rewards]
    if not all(len(rewards) for rewards in turn_rewards):
        raise ValueError("turn_rewards: a trajectory without a turn has no score")
    scores = np.array([np.sum(rewards) for rewards in turn_rewards], np.float64)
    groups = group_statistics(scores, group_ids)
    means, stds = groups.means[groups.index], groups.stds[groups.index]
    scales = np.ones_like(scores)
    if method != "mean":
        scales = np.where(stds > EPSILON, 1.0 / (stds + EPSILON), 0.0)
    targets = (scores - means) * scales
    if method == "asym_clip":
        targets = targets.clip(*ASYMMETRIC_BOUNDS)
    normalized = []
    for rewards, scale, score, target in zip(turn_rewards, scales, scores, targets, strict=True):
        placed = np.asarray(rewards, np.float64) * scale
        placed[-1] += target - score * scale
        normalized.append(placed.tolist())
    return normalized
