"""Early stopping rules of RAGEN v2 (arXiv 2604.06268)."""

from collections.abc import Hashable, Sequence
from statistics import fmean

import numpy as np

from vagen.config.trainer_options import EarlyStopConfig
from vagen.learning.groups import group_statistics

BASELINE = 10
"""Number of first iterations whose mean variance is the baseline."""


def group_variance(scores: Sequence[float], group_ids: Sequence[Hashable]) -> float | None:
    """Mean over groups of the population variance of their scores.

    Args:
        scores: One per trajectory.
        group_ids: One per trajectory, equal for those of one level.

    Returns:
        None if no group has two trajectories.

    Raises:
        ValueError: Unequal lengths.
    """
    groups = group_statistics(np.array(scores, np.float64), group_ids)
    variances = groups.variances[groups.sizes > 1]
    return float(variances.mean()) if variances.size else None


def stop_reason(
    config: EarlyStopConfig,
    variances: Sequence[float],
    validations: Sequence[float],
    skipped: Sequence[bool] = (),
) -> str | None:
    """The reason to stop training now, or None.

    There are three rules, each on all of the last `patience` measurements:

    - the variance of scores in a group is below `min_reward_variance` times its mean over the first
      ten iterations (which are never below);
    - success on the validation levels is below `min_val_success`;
    - the batch had nothing to learn from, `empty_batches` iterations in a row.

    Args:
        config: Thresholds and patience; a rule whose threshold is None is off.
        variances: `group_variance` of every iteration so far.
        validations: Success of every validation so far, from 0 to 1.
        skipped: Whether each update so far had nothing to learn from.
    """
    empty = config.empty_batches
    if empty is not None and len(skipped) >= empty and all(skipped[-empty:]):
        return f"the rollout filter left nothing to learn from {empty} iterations in a row"
    later = variances[BASELINE:]
    patience = config.reward_variance_patience
    if config.min_reward_variance is not None and len(later) >= patience:
        limit = config.min_reward_variance * fmean(variances[:BASELINE])
        if all(variance < limit for variance in later[-patience:]):
            return (
                f"the variance of scores in a group was below {limit:.3g}, "
                f"{config.min_reward_variance:g} of its first {BASELINE} iterations' mean, "
                f"{patience} iterations in a row"
            )
    patience = config.val_success_patience
    if config.min_val_success is not None and len(validations) >= patience:
        limit = config.min_val_success
        if all(success < limit for success in validations[-patience:]):
            return f"validation success was below {limit:g} {patience} times in a row"
    return None
