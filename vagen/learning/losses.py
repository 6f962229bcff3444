"""Terms of the losses: policy, value, importance weights, entropy with its bonus's controller.

The policy losses keep the new policy close to the sampling one. Two of them treat tokens apart
whose log-probability and advantage covary: a policy gradient step lowers the entropy by about that
covariance, which is concentrated in few tokens (Cui et al. 2025, arXiv 2505.22617, sections 3, 4).

Shape legend: M tokens of a mini batch that are learnt from.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vagen.learning.aggregate import (
    Aggregate,
    LossAggMode,
    aggregate,
    reduce_units,
    require_same_shape,
    token_max,
    token_mean,
)
from vagen.learning.kl import LOG_RATIO_LIMIT

LossMode = Literal["vanilla", "ppo_turn", "gspo", "gspo_turn", "cispo", "clip_cov", "kl_cov"]
"""What is clipped: the ratio of a token, row or turn, its gradient or only its weight (`cispo`),
and how covarying tokens are restricted; see `policy_loss`."""


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    loss_mode: LossMode = "vanilla",
    unit_ids: Tensor | None = None,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float | None = None,
    chosen: Tensor | None = None,
    ppo_kl_coef: float = 0.1,
    weights: Tensor | None = None,
    loss_agg_mode: LossAggMode = "token-mean",
    denominator: Tensor | float | None = None,
    row_ids: Tensor | None = None,
) -> tuple[Tensor, dict[str, Aggregate]]:
    """`-min(u A, clip(u, 1 - low, 1 + high) A)` with `u = exp(logprobs - old_logprobs)`.

    Schulman et al. 2017, arXiv 1707.06347, eq. 7; unequal bounds are those of DAPO (arXiv
    2503.14476, eq. 10). With `clip_ratio_c` the loss of a negative advantage is at most `-c A`
    (dual clip, Ye et al. 2020, arXiv 1912.09729, eq. 5).

    `gspo`, `gspo_turn`: u is `sg(s) pi / sg(pi)`, where s is the geometric mean of the ratios of
    the token's unit and sg stops the gradient, so all tokens of a unit have the same ratio
    (GSPO-token, arXiv 2507.18071, section 4.3). The unit is a row, or a turn of it as in arXiv
    2511.20718. `ppo_turn`: the same with the product of a turn's ratios, which is the ratio of the
    probabilities of its text. With `seq-mean-token-sum` this is `turn_ppo` of VAGEN's main branch.

    `cispo`: `-sg(clip(u, 1 - low, 1 + high)) A logprobs`, so that every token has a gradient
    (arXiv 2506.13585, eq. 4 and 5).

    `clip_cov`: `chosen` tokens (`covarying_tokens`) have no loss. `kl_cov`: there is no clip, and
    their loss is `-u A + ppo_kl_coef |log u|` (arXiv 2505.22617, section 4).

    Args:
        logprobs: [B, T] or packed [N] floats, with gradient.
        old_logprobs: same shape, log-probs of the policy that started the update.
        advantages: same shape.
        loss_mask: same shape, non-zero on tokens to learn from; other tokens are not read.
        loss_mode: The loss.
        unit_ids: integers of the same shape, the unit of each token; read by `gspo`, `gspo_turn`
            and `ppo_turn`. None takes the rows of padded tensors.
        clip_ratio_low: The lower bound of the ratio is one minus this.
        clip_ratio_high: The upper bound of the ratio is one plus this.
        clip_ratio_c: Dual clip, above 1; None is off. Not used by `cispo` and `kl_cov`.
        chosen: same shape, non-zero on the tokens that `clip_cov` and `kl_cov` restrict.
        ppo_kl_coef: For `kl_cov` only.
        weights: same shape, factor of each token's loss (`truncated_importance_weights`); None
            for 1. Has no gradient.
        loss_agg_mode: Averaging mode.
        denominator: tokens or rows of the whole mini batch (`loss_denominator`), so that micro
            batches add up; None takes those of this call.
        row_ids: row of each token of packed tensors; only the `seq-` modes read it.

    Returns:
        The loss (0-d) and metrics: `ppo_kl` (mean of old minus new log-probs), `pg_clipfrac` and
        `pg_clipfrac_lower` (share of tokens that the clip and the dual clip restrict, in
        `cispo` of tokens whose weight is cut, in `clip_cov` with the chosen, in `kl_cov` of
        these), `ratio_mean`, `ratio_max`.

    Raises:
        ValueError: Unequal shapes, an unknown mode, or a dual clip that is not above 1.
    """
    require_same_shape(
        logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, loss_mask=loss_mask
    )
    if clip_ratio_c is not None and clip_ratio_c <= 1.0:
        raise ValueError(f"clip_ratio_c = {clip_ratio_c}; it must be above 1")
    if loss_mode not in get_args(LossMode):
        raise ValueError(f"loss_mode {loss_mode!r}; it must be one of {get_args(LossMode)}")
    if (chosen is None) == (loss_mode in COVARIANCE_MODES):
        raise ValueError(f"`chosen` is of {COVARIANCE_MODES}; loss_mode is {loss_mode!r}")
    mask = loss_mask != 0
    log_ratio = torch.where(mask, logprobs - old_logprobs.detach(), 0.0)
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    advantages = torch.where(mask, advantages.detach(), 0.0)
    log_u = log_ratio
    if loss_mode in ("gspo", "gspo_turn", "ppo_turn"):
        held_ratio = log_ratio.detach()
        of_unit = reduce_units(held_ratio, mask, unit_ids, mean=loss_mode != "ppo_turn")
        log_u = log_ratio - held_ratio + of_unit.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_u.exp()
    near = ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)

    held = torch.zeros_like(mask)
    if loss_mode == "cispo":
        losses = -near.detach() * advantages * torch.where(mask, logprobs, 0.0)
        cut = near != ratio
    elif loss_mode == "kl_cov":
        assert chosen is not None
        cut = mask & (chosen != 0)
        losses = -advantages * ratio + ppo_kl_coef * torch.where(cut, log_ratio.abs(), 0.0)
    else:
        free, clipped = -advantages * ratio, -advantages * near
        losses, cut = torch.maximum(free, clipped), clipped > free
    if clip_ratio_c is not None and loss_mode not in ("cispo", "kl_cov"):
        ceiling = -advantages * clip_ratio_c
        held = (advantages < 0) & (losses > ceiling)
        losses = torch.where(held, ceiling, losses)
    if loss_mode == "clip_cov":
        assert chosen is not None
        cut = cut | (mask & (chosen != 0))
        losses = torch.where(chosen != 0, 0.0, losses)
    if weights is not None:
        require_same_shape(logprobs=logprobs, weights=weights)
        losses = losses * torch.where(mask, weights.detach(), 0.0)

    loss = aggregate(losses, mask, mode=loss_agg_mode, denominator=denominator, row_ids=row_ids)
    return loss, {
        "ppo_kl": token_mean(-log_ratio, mask),
        "pg_clipfrac": token_mean(cut.to(losses.dtype), mask),
        "pg_clipfrac_lower": token_mean(held.to(losses.dtype), mask),
        "ratio_mean": token_mean(ratio, mask),
        "ratio_max": token_max(ratio, mask),
    }


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


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    cliprange_value: float = 0.5,
    denominator: Tensor | float | None = None,
    loss_agg_mode: LossAggMode = "token-mean",
    row_ids: Tensor | None = None,
) -> tuple[Tensor, dict[str, Aggregate]]:
    """`1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)`.

    The clip keeps the new value close to the one used for advantages (Schulman et al.,
    PPO's reference implementation in OpenAI baselines).

    Args:
        values: [B, T] or packed [N] floats, with gradient.
        old_values: same shape, values at the start of the update.
        returns: same shape, un-whitened targets.
        mask: same shape, non-zero on tokens that have a target (`critic_mask`).
        cliprange_value: c, in units of the value.
        denominator: tokens or rows of the whole mini batch, so that micro batches add up; None
            takes those of this call.
        loss_agg_mode: Averaging mode.
        row_ids: row of each token of packed tensors; only the `seq-` modes read it.

    Returns:
        The loss (0-d) and metrics: `vf_clipfrac` (share of tokens whose clipped error is the
        larger), `vf_error` (mean of value minus return), `value_mean`, `return_mean`.

    Raises:
        ValueError: Unequal shapes.
    """
    require_same_shape(values=values, old_values=old_values, returns=returns, mask=mask)
    mask = mask != 0
    values = torch.where(mask, values, 0.0)
    old = torch.where(mask, old_values.detach(), 0.0)
    target = torch.where(mask, returns.detach(), 0.0)
    near = torch.minimum(torch.maximum(values, old - cliprange_value), old + cliprange_value)
    free, clipped = (values - target) ** 2, (near - target) ** 2
    loss = 0.5 * aggregate(
        torch.maximum(free, clipped),
        mask,
        mode=loss_agg_mode,
        denominator=denominator,
        row_ids=row_ids,
    )
    return loss, {
        "vf_clipfrac": token_mean((clipped > free).to(values.dtype), mask),
        "vf_error": token_mean(values - target, mask),
        "value_mean": token_mean(values, mask),
        "return_mean": token_mean(target, mask),
    }


def truncated_importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, sampled: Tensor, *, cap: float
) -> tuple[Tensor, dict[str, Aggregate]]:
    """`min(pi_trainer / pi_rollout, cap)` per sampled token, before the update.

    The two engines compute the same weights differently (kernels, precision), so PPO's ratio
    compares with a policy that did not sample the tokens. The weight corrects for this with bounded
    variance (Espeholt et al. 2018, arXiv 1802.01561, eq. 1, as the truncated importance sampling of
    verl's pull request 2953).

    Args:
        old_logprobs: Any shape, the trainer's log-probs at the start of the update.
        rollout_logprobs: same shape, log-probs as sampled.
        sampled: Same shape, non-zero on tokens that the policy sampled. Others, which are in the
            policy loss without a loss mask, have no rollout log-prob and weight 1.
        cap: Largest weight, above 0.

    Returns:
        Weights without gradient, same shape, and metrics over the sampled tokens: `tis_mean` (mean
        weight) and `tis_capped` (share of tokens whose ratio is above `cap`).

    Raises:
        ValueError: Unequal shapes, or a cap that is not above 0.
    """
    require_same_shape(
        old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs, sampled=sampled
    )
    if cap <= 0.0:
        raise ValueError(f"tis_imp_ratio_cap = {cap}; it must be above 0")
    mask = sampled != 0
    log_ratio = torch.where(mask, (old_logprobs - rollout_logprobs).detach(), 0.0)
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weights = torch.where(mask, ratio.clamp(max=cap), 1.0)
    return weights, {
        "tis_mean": token_mean(weights, mask),
        "tis_capped": token_mean((ratio > cap).to(weights.dtype), mask),
    }


def entropy_from_logits(logits: Tensor) -> Tensor:
    """`-sum_v p_v log p_v`; a banned token (logit minus infinity) adds 0, also to the gradient.

    Args:
        logits: [..., V] floats; at least one per position is finite.

    Returns:
        [...] nats, at least float32. `aggregate` it with the loss mask and subtract
        `entropy_coeff` times that from the loss.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    finite = logits.masked_fill(torch.isneginf(logits), torch.finfo(logits.dtype).min)
    logprobs = torch.log_softmax(finite, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)


@dataclass(slots=True)
class EntropyController:
    """Keeps entropy from falling below a target (Skywork-OR1, arXiv 2505.22312).

    After each update `coeff` moves by `step`, up if the entropy was below the target, down if it
    was above, within 0 and `max_coeff`. It is the bonus's weight while the entropy is at most the
    target; above, there is no bonus. The paper measures the entropy of a batch before the update;
    this uses the entropy of the previous update.
    """

    target: float
    """Nats per token."""
    step: float
    max_coeff: float
    coeff: float
    """Initially the weight for the first update, before any entropy is known."""
    below: bool = True
    """Whether the last entropy was at most the target."""

    @property
    def weight(self) -> float:
        """Weight of the bonus in the next update."""
        return self.coeff if self.below else 0.0

    def update(self, entropy: float) -> None:
        """Adapts to the mean entropy of an update, nats per token.

        Ignores entropies that are not finite, which come from skipped steps.
        """
        if not math.isfinite(entropy):
            return
        self.below = entropy <= self.target
        moved = self.coeff + self.step * ((entropy < self.target) - (entropy > self.target))
        self.coeff = min(max(moved, 0.0), self.max_coeff)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state for `load_state_dict`."""
        return {"coeff": self.coeff, "below": self.below}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self.coeff, self.below = float(state["coeff"]), bool(state["below"])
