"""Losses of one optimizer step, which both engines compute.

A loss is divided by the denominator of the whole mini batch. So the losses of micro batches add up
exactly, however the mini batch is cut. The formulas are in `vagen.learning`.

Shape legend: N tokens of some rows laid end to end, M action tokens (those the policy loss reads).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vagen.config.schema import ActorConfig, PolicyLossConfig
from vagen.learning import (
    COVARIANCE_MODES,
    Aggregate,
    aggregate,
    covarying_tokens,
    kl_penalty,
    loss_denominator,
    policy_loss,
    token_mean,
    truncated_importance_weights,
    value_loss,
)
from vagen.learning.aggregate import LossAggMode
from vagen.rollout.types import TokenRow

CRITIC_MASK = "critic_mask"
"""Column with 1 on the critic's training targets."""

TRAJECTORY_TOKENS = "trajectory_tokens"
"""Column with the number of the trajectory's action tokens over all its rows."""
COVARYING = "covarying"
"""Column with 1 on the tokens that `clip_cov` and `kl_cov` restrict."""
PER_TRAJECTORY = "trajectory-mean-token-mean"
PER_TURN = "seq-mean-turn-sum"
TURN_MODES = ("ppo_turn", "gspo_turn")

ROW_FIELDS = ("loss_mask", "rollout_logprobs", "turn_index")
"""Fields of a row that the losses read like columns."""

Column = Callable[[str], Tensor]
"""Returns a row's column or field by name, float32 at the tokens of the caller."""
Loss = tuple[Tensor, dict[str, Aggregate]]
"""Share of the mini batch's loss, 0-d, and metrics that add up."""


def column_of(row: TokenRow, name: str) -> NDArray[np.float32]:
    """A column of a row, or one of `ROW_FIELDS`, float32 [T]."""
    values = getattr(row, name) if name in ROW_FIELDS else row.columns[name]
    return np.asarray(values, dtype=np.float32)


def actor_objective(
    logprobs: Tensor,
    entropy: Tensor,
    column: Column,
    *,
    row_ids: Tensor,
    denominator: Tensor,
    config: ActorConfig,
    entropy_coeff: float,
) -> Loss:
    """Clipped policy loss, minus the entropy bonus, plus the KL loss.

    Args:
        logprobs: float32 [M], of the action tokens under the current weights.
        entropy: float32 [M], of the distributions they were drawn from, in nats.
        column: Gets [M] of `old_logprobs` and `advantages`; `rollout_logprobs` and `loss_mask` for
            truncated importance weights, `turn_index` if `reads_turns`, `COVARYING` for `clip_cov`
            and `kl_cov`, `ref_logprobs` for a KL loss, `TRAJECTORY_TOKENS` for `PER_TRAJECTORY`.
        row_ids: int64 [M], the row of each action token.
        denominator: `actor_denominator` of the mini batch.
        config: Clips, KL loss and averaging mode.
        entropy_coeff: Weight of the entropy bonus, possibly adapted by `entropy_ctrl`.
    """
    every = torch.ones_like(logprobs, dtype=torch.bool)
    mode = _over_rows(config.loss_agg_mode)
    share: dict[str, Any] = {"denominator": denominator.to(logprobs.device), "row_ids": row_ids}
    scale = torch.ones_like(logprobs)
    if config.loss_agg_mode == PER_TRAJECTORY:
        scale = 1.0 / column(TRAJECTORY_TOKENS).clamp(min=1.0)  # 0 in rows that pad a batch
    old_logprobs = column("old_logprobs")
    weights, weight_metrics = None, {}
    if config.tis_imp_ratio_cap is not None:
        weights, weight_metrics = truncated_importance_weights(
            old_logprobs,
            column("rollout_logprobs"),
            column("loss_mask"),
            cap=config.tis_imp_ratio_cap,
        )
    unit_ids = turn_ids = row_ids
    loss_mode = config.policy_loss.loss_mode
    if reads_turns(config) and len(row_ids):
        turns = column("turn_index").long()
        turn_ids = row_ids * (turns.max() + 2) + turns + 1
    if loss_mode in TURN_MODES:
        unit_ids = turn_ids
    if config.loss_agg_mode == PER_TURN:
        _, turn_of, tokens = turn_ids.unique(return_inverse=True, return_counts=True)
        scale = 1.0 / tokens[turn_of]
    loss, metrics = policy_loss(
        logprobs,
        old_logprobs,
        column("advantages"),
        every,
        loss_mode=loss_mode,
        unit_ids=unit_ids,
        clip_ratio_low=config.clip_ratio_low,
        clip_ratio_high=config.clip_ratio_high,
        clip_ratio_c=config.clip_ratio_c,
        chosen=column(COVARYING) if loss_mode in COVARIANCE_MODES else None,
        ppo_kl_coef=config.policy_loss.ppo_kl_coef,
        weights=scale if weights is None else scale * weights,
        loss_agg_mode=mode,
        **share,
    )
    metrics = {**metrics, **weight_metrics, "entropy": token_mean(entropy, every)}
    if entropy_coeff:
        bonus = aggregate(scale * entropy, every, mode=mode, **share)
        loss = loss - entropy_coeff * bonus
    if config.use_kl_loss:
        penalty = kl_penalty(logprobs, column("ref_logprobs"), config.kl_loss_type)
        metrics["kl_loss"] = token_mean(penalty, every)
        divergence = aggregate(scale * penalty, every, mode=mode, **share)
        loss = loss + config.kl_loss_coef * divergence
    return loss, metrics


def reads_turns(config: ActorConfig) -> bool:
    """Whether the policy loss reads the turn of each token."""
    return config.policy_loss.loss_mode in TURN_MODES or config.loss_agg_mode == PER_TURN


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
        column: Gets [N] of `values`, `returns` and `CRITIC_MASK`.
        denominator: `critic_denominator` of the mini batch.
        cliprange_value: See `value_loss`.
        value_shift: Shift of all values since `values`, which the clip accounts for.
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
    """Denominator of the actor's loss over a mini batch, 0-d."""
    masks = [action_mask(row) for row in rows]
    ids = list(range(len(rows)))
    if config.loss_agg_mode.startswith("trajectory-"):
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(row.trajectory_id, len(numbers)) for row in rows]
    row_ids = np.repeat(ids, [len(mask) for mask in masks])
    line = torch.from_numpy(np.concatenate(masks))
    return loss_denominator(line, _over_rows(config.loss_agg_mode), torch.from_numpy(row_ids))


def count_trajectory_tokens(
    rows: Sequence[TokenRow], *, action_mask: Callable[[TokenRow], NDArray[np.bool_]]
) -> None:
    """Sets `TRAJECTORY_TOKENS`; the rows must contain whole trajectories."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.trajectory_id] += int(action_mask(row).sum())
    for row in rows:
        tokens = max(counts[row.trajectory_id], 1)
        row.columns[TRAJECTORY_TOKENS] = np.full(len(row.input_ids), tokens, np.float32)


def mark_covarying(
    rows: Sequence[TokenRow],
    *,
    action_mask: Callable[[TokenRow], NDArray[np.bool_]],
    config: PolicyLossConfig,
    draws: np.random.Generator,
) -> None:
    """Sets `COVARYING` of a mini batch from the log-probabilities before the update.

    So the selection does not depend on micro batches and is known before the step.
    """
    masks = [action_mask(row) for row in rows]
    logprobs, advantages = (
        np.concatenate([row.columns[name][mask] for row, mask in zip(rows, masks, strict=True)])
        for name in ("old_logprobs", "advantages")
    )
    clips = config.loss_mode == "clip_cov"
    chosen = covarying_tokens(
        logprobs,
        advantages,
        draws,
        loss_mode="clip_cov" if clips else "kl_cov",
        ratio=config.clip_cov_ratio if clips else config.kl_cov_ratio,
        low=config.clip_cov_lb,
        high=config.clip_cov_ub,
    )
    for row, mask in zip(rows, masks, strict=True):
        column = row.columns[COVARYING] = np.zeros(len(mask), np.float32)
        column[mask], chosen = chosen[: mask.sum()], chosen[mask.sum() :]


def _over_rows(mode: str) -> LossAggMode:
    """Aggregation within rows when token weights and the denominator are given."""
    sums = mode == PER_TURN or mode.startswith("trajectory-")
    return "seq-mean-token-sum" if sums else cast(LossAggMode, mode)


def critic_denominator(rows: Sequence[TokenRow]) -> Tensor:
    """Number of the critic's training tokens in a mini batch, 0-d."""
    line = np.concatenate([row.columns[CRITIC_MASK] for row in rows])
    return loss_denominator(torch.from_numpy(line), "token-mean")
