"""Early stopping rules of RAGEN v2 (arXiv 2604.06268), and warnings if nothing is learnt."""

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean

import numpy as np

from vagen.config.trainer_options import EarlyStopConfig
from vagen.learning.filters import group_statistics
from vagen.metrics import SUCCESS

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


PATIENCE = 10
"""Iterations in a row."""

SIGNS = {
    "train/format_correct": (
        0.0,
        "no answer has kept the layout: the policy cannot write what the prompt asks for, and no "
        "action is carried out; warm-start it (warm_start.steps), take a larger model, or look at "
        "the answers with `vagen view`",
    ),
    SUCCESS: (
        0.0,
        "no episode has succeeded, so that success cannot be learnt from; take easier levels, more "
        "turns (rollout_manager.max_turns), or a warm start",
    ),
    "rollout/zero_std_groups": (
        1.0,
        "no group of episodes has varied in its score: nothing tells better from worse; take other "
        "levels, a higher temperature (actor_rollout_ref.rollout.temperature), or more "
        "episodes a level (rollout_manager.n_trajectory)",
    ),
}
"""Metrics, each with the suspicious value and its warning."""


def no_learning_warnings(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Warnings about values that have just lasted for `PATIENCE` iterations.

    Args:
        rows: Metrics of the iterations so far, or of the last `PATIENCE` + 1.

    >>> no_learning_warnings([{"train/success": 0.0}] * 10)[0][:40]
    'for 10 iterations no episode has succeed'
    """
    found = []
    for name, (value, meaning) in SIGNS.items():
        seen = [row.get(name) == value for row in rows[-PATIENCE - 1 :]]
        began = len(seen) == PATIENCE or not seen[0]
        if len(seen) >= PATIENCE and all(seen[-PATIENCE:]) and began:
            found.append(f"for {PATIENCE} iterations {meaning}")
    return found
