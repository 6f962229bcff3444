"""What one optimizer step minimises, as both engines compute it.

Each is a share of its mini batch's loss: with the mini batch's denominator the micro batches add
up exactly, however it is cut. The formulas are in `vagen.learning`.

Shape legend: N tokens of some rows laid end to end, M action tokens (those the policy loss reads).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vagen.config.schema import ActorConfig
from vagen.learning import (
    Metric,
    aggregate,
    kl_penalty,
    loss_denominator,
    policy_loss,
    token_mean,
    truncated_importance_weights,
    value_loss,
)
from vagen.rollout.types import TokenRow

CRITIC_MASK = "critic_mask"
"""Column with 1 where the critic has a target."""

Column = Callable[[str], Tensor]
"""A row's column or field by name, float32 at the tokens in question."""
Loss = tuple[Tensor, dict[str, Metric]]
"""0-d share of the mini batch's loss, and metrics that add up."""


def actor_objective(
    logprobs: Tensor,
    entropy: Tensor,
    column: Column,
    *,
    row_ids: Tensor,
    denominator: Tensor,
    config: ActorConfig,
) -> Loss:
    """Clipped policy loss, minus the entropy bonus, plus the KL loss.

    Args:
        logprobs: float32 [M], of the action tokens under the present weights.
        entropy: float32 [M], of the distributions that they were drawn from, nats.
        column: Gives [M] of `old_logprobs` and `advantages`; `rollout_logprobs` and `loss_mask` for
            truncated importance weights, `ref_logprobs` for a KL loss.
        row_ids: int64 [M], the row of each action token.
        denominator: Of the mini batch (`actor_denominator`).
        config: Clips, coefficients, how tokens are averaged.
    """
    every = torch.ones_like(logprobs, dtype=torch.bool)
    share: dict[str, Any] = {"denominator": denominator.to(logprobs.device), "row_ids": row_ids}
    old_logprobs = column("old_logprobs")
    weights, weight_metrics = None, {}
    if config.tis_imp_ratio_cap is not None:
        weights, weight_metrics = truncated_importance_weights(
            old_logprobs,
            column("rollout_logprobs"),
            column("loss_mask"),
            cap=config.tis_imp_ratio_cap,
        )
    loss, metrics = policy_loss(
        logprobs,
        old_logprobs,
        column("advantages"),
        every,
        clip_ratio_low=config.clip_ratio_low,
        clip_ratio_high=config.clip_ratio_high,
        clip_ratio_c=config.clip_ratio_c,
        weights=weights,
        loss_agg_mode=config.loss_agg_mode,
        **share,
    )
    metrics = {**metrics, **weight_metrics, "entropy": token_mean(entropy, every)}
    if config.entropy_coeff:
        bonus = aggregate(entropy, every, mode=config.loss_agg_mode, **share)
        loss = loss - config.entropy_coeff * bonus
    if config.use_kl_loss:
        penalty = kl_penalty(logprobs, column("ref_logprobs"), config.kl_loss_type)
        metrics["kl_loss"] = token_mean(penalty, every)
        divergence = aggregate(penalty, every, mode=config.loss_agg_mode, **share)
        loss = loss + config.kl_loss_coef * divergence
    return loss, metrics


def critic_objective(
    after: Tensor,
    column: Column,
    *,
    denominator: Tensor,
    cliprange_value: float,
    value_shift: float = 0.0,
) -> Loss:
    """Clipped value loss on the tokens of `CRITIC_MASK`.

    Args:
        after: float32 [N], the critic's value after each token.
        column: Gives [N] of `values`, `returns` and `CRITIC_MASK`.
        denominator: Of the mini batch (`critic_denominator`).
        cliprange_value: See `value_loss`.
        value_shift: By how much all values were moved since `values`; the clip moves along.
    """
    before = torch.cat([after.new_zeros(1), after[:-1]])
    return value_loss(
        before,
        column("values") + value_shift,
        column("returns"),
        column(CRITIC_MASK),
        cliprange_value=cliprange_value,
        denominator=denominator.to(before.device),
    )


def actor_denominator(
    rows: Sequence[TokenRow],
    *,
    action_mask: Callable[[TokenRow], NDArray[np.bool_]],
    config: ActorConfig,
) -> Tensor:
    """What the actor's loss over a mini batch is divided by, 0-d."""
    masks = [action_mask(row) for row in rows]
    row_ids = np.repeat(np.arange(len(rows)), [len(mask) for mask in masks])
    line = torch.from_numpy(np.concatenate(masks))
    return loss_denominator(line, config.loss_agg_mode, torch.from_numpy(row_ids))


def critic_denominator(rows: Sequence[TokenRow]) -> Tensor:
    """Tokens of a mini batch that the critic learns on, 0-d."""
    line = np.concatenate([row.columns[CRITIC_MASK] for row in rows])
    return loss_denominator(torch.from_numpy(line), "token-mean")
