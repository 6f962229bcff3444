"""The entry points: they check the arguments, run the estimator, whiten.

Shape legend: B rows, T tokens of the padded row, K turns of a trajectory.
"""

from typing import Any

import torch
from torch import Tensor

from vagen.advantage.arguments import Ids, checked_inputs, find_estimator
from vagen.advantage.inputs import Estimate, Normalization
from vagen.advantage.whitening import whiten as whitened


@torch.no_grad()
def estimate_with_metrics(
    name: str,
    *,
    rewards: Tensor,
    values: Tensor | None = None,
    loss_mask: Tensor,
    turn_end_mask: Tensor | None = None,
    attention_mask: Tensor,
    group_ids: Ids | None = None,
    trajectory_ids: Ids | None = None,
    anchor_ids: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    high_level_gamma: float = 0.95,
    high_level_lam: float | None = None,
    bootstrap_values: Tensor | None = None,
    baselines: Tensor | None = None,
    turn_lams: Tensor | None = None,
    turn_gammas: Tensor | None = None,
    step_advantage_weight: float = 1.0,
    step_gamma: float = 0.95,
    step_normalization: Normalization = "mean",
    whiten: bool = True,
) -> Estimate:
    """Advantages and returns of a batch of trajectories.

    Only tokens of the estimator's own mask (`ESTIMATORS[name].mask`) are read and written; what
    rewards and values hold elsewhere has no effect (`gae` without `bootstrap_values` is the one
    exception, see there). Computed in float64. Whitening and groups are over the whole batch, so
    give the whole batch at once; leave padding rows out or give them an empty attention mask.

    A trajectory may have several rows, each with some of its turns: recursions then run from row
    to row as if its sampled tokens were in one, and a group counts it once. What is given per row
    but belongs to the trajectory (`bootstrap_values`, `baselines`, `turn_lams`, `turn_gammas`) is
    read at its last row that is not padding.

    Args:
        name: a key of `ESTIMATORS`.
        rewards: [B, T] floats, reward of each token; a turn's reward is on its last sampled token.
        values: [B, T] floats, critic's value *before* each token; needed by the GAE family.
        loss_mask: [B, T], non-zero on tokens the policy sampled.
        turn_end_mask: [B, T], non-zero on the last sampled token of each turn; needed by
            turn-level estimators.
        attention_mask: [B, T], non-zero on tokens that are not padding.
        group_ids: [B] ids of any kind, equal for trajectories of one level; needed by
            group-relative estimators.
        trajectory_ids: [B] ids of any kind, equal for rows of one trajectory, which are in the
            order of its turns (other rows may stand between); None takes each row for one.
        anchor_ids: [B, T] int64, on a turn's tokens the id (0 or more) of the state it started
            from, read at its last token; needed by `gigpo`.
        gamma: discount per token, in [0, 1].
        lam: GAE lambda per token, in [0, 1].
        high_level_gamma: discount per turn, in [0, 1].
        high_level_lam: GAE lambda per turn, in [0, 1]; None takes `lam`.
        bootstrap_values: [B] floats, critic's value of the state after the last turn for truncated
            trajectories, 0 for terminated ones; None is 0 for all.
        baselines: [B] floats, score of a greedy episode on the row's level; needed by `remax`.
        turn_lams: [K] or [B, K] in [0, 1], for `adaptive_credit`: entry k is lambda of the value
            before turn k; None is `high_level_lam`.
        turn_gammas: [K] or [B, K] in [0, 1], for `adaptive_credit`: entry k is the discount from
            turn k to what follows it; None is `high_level_gamma`.
        step_advantage_weight: weight of the turns' advantages in `gigpo`.
        step_gamma: discount per turn of a turn's return in `gigpo`, in [0, 1].
        step_normalization: whether `gigpo` divides differences by the standard deviation.
        whiten: whether advantages are whitened, if the estimator does so
            (`ESTIMATORS[name].whiten_over`). Returns never are.

    Returns:
        Advantages and returns, each [B, T] in the dtype of `rewards` (at least float32), 0 where
        the estimator has nothing to say, and what it measured.

    Raises:
        AdvantageError: unknown name, missing or misshapen argument, inconsistent masks, a
            trajectory in several rows where the estimator cannot stitch them, or a number that is
            not finite on a token the estimator reads.
    """
    spec = find_estimator(name)
    inputs = checked_inputs(
        name,
        rewards=rewards,
        values=values,
        loss_mask=loss_mask,
        turn_end_mask=turn_end_mask,
        attention_mask=attention_mask,
        group_ids=group_ids,
        trajectory_ids=trajectory_ids,
        anchor_ids=anchor_ids,
        gamma=gamma,
        lam=lam,
        high_level_gamma=high_level_gamma,
        high_level_lam=high_level_lam,
        bootstrap_values=bootstrap_values,
        baselines=baselines,
        turn_lams=turn_lams,
        turn_gammas=turn_gammas,
        step_advantage_weight=step_advantage_weight,
        step_gamma=step_gamma,
        step_normalization=step_normalization,
    )
    found = spec.function(inputs)
    advantages = found.advantages
    if whiten and spec.whiten_over is not None:
        advantages = whitened(
            advantages,
            inputs.mask(spec.mask),
            statistics_BT=inputs.mask(spec.whiten_over),
            dtype=inputs.dtype,
        )
    return found._replace(
        advantages=advantages.to(inputs.dtype), returns=found.returns.to(inputs.dtype)
    )


def estimate_advantages(name: str, **arguments: Any) -> tuple[Tensor, Tensor]:
    """Advantages and returns alone, each [B, T]; otherwise `estimate_with_metrics`."""
    found = estimate_with_metrics(name, **arguments)
    return found.advantages, found.returns
