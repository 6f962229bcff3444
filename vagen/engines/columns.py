"""Advantage estimation: log-probabilities, values, token rewards, advantages, returns.

Shape legend: B rows, T tokens of the longest row (right-padded).
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vagen import progress
from vagen.advantage import estimate_with_metrics
from vagen.config.schema import ExperimentConfig
from vagen.config.trainer_options import AgreementConfig
from vagen.engines.base import Engine
from vagen.engines.objectives import CRITIC_MASK
from vagen.experiment.checks import estimator_of, needs_greedy_baseline
from vagen.learning import (
    critic_mask,
    explained_variance,
    token_rewards,
    turn_end_mask,
    turn_start_mask,
)
from vagen.learning.agreement import disagreement, measure_agreement
from vagen.learning.placement import move_to_spans
from vagen.learning.selection import select_trajectories, turn_rewards_by_trajectory
from vagen.learning.turn_credit import anchor_ids, credit_arguments
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.types import TokenRow, Trajectory
from vagen.steps import updates_before

COMPARED = 16
"""Maximum number of rows computed only to compare rollout and trainer."""


class EnginesDisagree(ValueError):
    """Rollout engine and trainer compute different probabilities."""


def watch_agreement(
    config: AgreementConfig, iteration: int, metrics: Mapping[str, float]
) -> dict[str, float]:
    """Stops a run if rollout and trainer disagree; later only warns. Returns a metric.

    Raises:
        EnginesDisagree: They disagree in the first iteration.
    """
    problem = disagreement(config, metrics)
    if problem is not None and config.enable:
        if iteration == 0:
            raise EnginesDisagree(
                f"{problem}. `trainer.agreement.enable=false` goes on all the same"
            )
        progress.event("disagreement_alarm", iteration=iteration, reason=problem)
        progress.note(f"iteration {iteration + 1}: {problem}")
    return {"rollout/disagreement_alarm": float(problem is not None)}


def add_columns(
    config: ExperimentConfig,
    engine: Engine,
    trajectories: Sequence[Trajectory],
    images: dict[str, bytes],
    *,
    training: bool = True,
    watch: Callable[[Mapping[str, float]], dict[str, float]] | None = None,
) -> dict[str, float]:
    """Computes all columns of all rows in place; returns metrics.

    First measures the agreement of rollout and trainer and passes it to `watch`, which may raise
    and returns further metrics.

    In training the filter comes next: dropped trajectories get no columns and do not count in
    normalisation, groups, whitening and metrics. Evaluation episodes are neither filtered nor
    normalised, as each level is played once.

    Rows without a sampled token (of episodes that failed in the environment, or of the final state
    of a truncated episode) get zeros, except for values. The estimator treats them as padding, so
    that they do not count in means, groups and whitening.
    """
    chosen, scale = select_trajectories(config, trajectories) if training else ({}, 1.0)
    trajectories = [trajectory for trajectory in trajectories if trajectory.kept is not False]
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    owners = [trajectory for trajectory in trajectories for _ in trajectory.rows]
    if not rows:
        return chosen
    spec = estimator_of(config)
    kl_coef = engine.kl_coef
    old, agreement = _old_logprobs(config, engine, rows, images, _fresh(rows, owners))
    columns = {"old_logprobs": old}
    if watch is not None:
        agreement |= watch(agreement)
    if kl_coef or config.actor_rollout_ref.actor.use_kl_loss:
        columns["ref_logprobs"] = _logprobs(engine, rows, images, reference=True)
    loss_mask = _pad([row.loss_mask for row in rows]).bool()
    turn_index = _pad([row.turn_index for row in rows], fill=-1).long()
    attention = _pad([np.full(len(row.input_ids), row.loss_mask.any()) for row in rows]).bool()
    ends = turn_end_mask(loss_mask, turn_index)
    place = partial(
        token_rewards,
        _row_rewards(rows, turn_rewards_by_trajectory(config, trajectories, training=training)),
        loss_mask=loss_mask,
        turn_end_mask=ends,
        use_multi_turn_reward=config.rollout_manager.use_multi_turn_reward,
        trajectory_ids=[trajectory.trajectory_id for trajectory in owners],
        old_logprobs=_pad(columns["old_logprobs"]),
        ref_logprobs=_pad(columns["ref_logprobs"]) if "ref_logprobs" in columns else None,
    )
    rewards = place(kl_coef=kl_coef)
    if training and config.rollout_manager.reward_placement == "span":
        move_to_spans(config, rewards, rows, owners, ChatRenderer(engine.processor).text)
    values = bootstrap = mask = None
    if spec.needs_critic:
        columns["values"], after = engine.values(rows, images)
        values = _pad(columns["values"])
        mask = _critic_mask(config, attention, loss_mask, turn_index, ends)
        bootstrap = _bootstrap(config, owners, values, after, mask)
        for trajectory, value in zip(owners, bootstrap.tolist(), strict=True):
            trajectory.bootstrap_value = value
    adapted, metrics = credit_arguments(engine.credit, owners) if spec.adapts else ({}, {})
    algorithm = config.algorithm
    baselines = None
    if needs_greedy_baseline(config):
        # 0 without a greedy episode on the level: it failed, or this is an evaluation.
        scores = [owner.baseline_score or 0.0 for owner in owners]
        baselines = torch.tensor(scores, dtype=torch.float64)
    apart = algorithm.whitening == "environment"
    estimate = estimate_with_metrics(
        algorithm.adv_estimator,
        whiten_ids=[trajectory.config_id for trajectory in owners] if apart else None,
        rewards=rewards,
        task_rewards=place() if kl_coef else None,
        values=values,
        loss_mask=loss_mask,
        action_mask=(
            None
            if config.rollout_manager.use_loss_mask
            else _pad([engine.action_mask(row) for row in rows]).bool()
        ),
        turn_end_mask=ends,
        attention_mask=attention,
        group_ids=[trajectory.group_id for trajectory in owners],
        trajectory_ids=[trajectory.trajectory_id for trajectory in owners],
        anchor_ids=anchor_ids(owners, turn_index) if spec.needs_anchors else None,
        bootstrap_values=bootstrap,
        baselines=baselines,
        turn_lams=adapted.get("turn_lams"),
        turn_gammas=adapted.get("turn_gammas"),
        step_advantage_weight=algorithm.gigpo.step_advantage_weight,
        step_gamma=algorithm.gigpo.gamma,
        step_normalization=algorithm.gigpo.normalization,
        **algorithm.model_dump(
            include={"gamma", "lam", "high_level_gamma", "high_level_lam", "bi_level_mix"}
        ),
    )
    metrics |= estimate.metrics
    padded = {
        "rewards": rewards,
        "advantages": estimate.advantages * scale,
        "returns": estimate.returns,
    }
    if mask is not None:
        padded[CRITIC_MASK] = mask.float()
    for i, row in enumerate(rows):
        length = len(row.input_ids)
        row.columns |= {name: column[i] for name, column in columns.items()}
        row.columns |= {name: x[i, :length].float().numpy().copy() for name, x in padded.items()}
    return chosen | agreement | metrics | _metrics(rows, columns, padded, loss_mask, values, mask)


def _logprobs(
    engine: Engine, rows: Sequence[TokenRow], images: dict[str, bytes], *, reference: bool = False
) -> list[NDArray[np.float32]]:
    """Log-probabilities [T] per row; zeros in rows without a sampled token."""
    out = [np.zeros(len(row.input_ids), np.float32) for row in rows]
    learnt = [i for i, row in enumerate(rows) if row.loss_mask.any()]
    found = engine.logprobs([rows[i] for i in learnt], images, reference=reference)
    for i, logprobs in zip(learnt, found, strict=True):
        out[i] = logprobs
    return out


def _fresh(rows: Sequence[TokenRow], owners: Sequence[Trajectory]) -> list[NDArray[np.bool_]]:
    """Tokens [T] per row sampled by the newest weights: all, except in partial rollouts."""
    versions = {turn.policy_version for owner in owners for turn in owner.turns}
    newest = max((updates_before(version) for version in versions if version), default=0)
    masks = []
    for row, owner in zip(rows, owners, strict=True):
        stale = [
            turn.turn_index
            for turn in owner.turns
            if turn.policy_version and updates_before(turn.policy_version) < newest
        ]
        masks.append(row.loss_mask & ~np.isin(row.turn_index, stale))
    return masks


def _old_logprobs(
    config: ExperimentConfig,
    engine: Engine,
    rows: Sequence[TokenRow],
    images: dict[str, bytes],
    fresh: Sequence[NDArray[np.bool_]],
) -> tuple[list[NDArray[np.float32]], dict[str, float]]:
    """Log-probabilities [T] per row before the update, and agreement metrics."""
    policy, actor = config.actor_rollout_ref, config.actor_rollout_ref.actor
    reuse = actor.use_rollout_log_probs
    if reuse is None:
        same = engine.same_logprobs and not policy.rollout.is_cut
        whole = config.rollout_manager.use_loss_mask and actor.tis_imp_ratio_cap is None
        reuse = same and whole
    every = slice(None, None, -(-len(rows) // COMPARED) if reuse else 1)
    found = _logprobs(engine, rows[every], images)
    trainer = [array[mask] for mask, array in zip(fresh[every], found, strict=True)]
    rollout = [r.rollout_logprobs[mask] for mask, r in zip(fresh[every], rows[every], strict=True)]
    agreement = {}
    if any(map(len, rollout)):
        agreement = measure_agreement(np.concatenate(trainer), np.concatenate(rollout))
    if reuse:
        found = [np.where(r.loss_mask, r.rollout_logprobs, np.float32(0)) for r in rows]
    return found, agreement


def _critic_mask(
    config: ExperimentConfig, attention: Tensor, loss_mask: Tensor, turn_index: Tensor, ends: Tensor
) -> Tensor:
    """Tokens that the critic learns on, without a row's first, which has no preceding state.

    Prefers turn ends, then sampled tokens, then all attended ones, like VAGEN. With `gae`, a loss
    mask and lambda below 1, advantages depend on values at observations, which the critic does not
    learn; use `masked_gae` instead.
    """
    target = estimator_of(config).value_mask
    if target == "attention" and config.rollout_manager.use_loss_mask:
        target = "loss"
    mask = critic_mask(
        attention_mask=attention,
        loss_mask=loss_mask if target == "loss" else None,
        turn_start_mask=turn_start_mask(loss_mask, turn_index) if target == "turn_start" else None,
        turn_end_mask=ends if target == "turn_end" or config.critic.use_reward_mask else None,
    ).clone()
    mask[:, 0] = False
    return mask


def _bootstrap(
    config: ExperimentConfig,
    owners: Sequence[Trajectory],
    values: Tensor,
    after: NDArray[np.float32],
    mask: Tensor,
) -> Tensor:
    """[B] bootstrap value of each row's trajectory; 0 unless it was truncated.

    It is the value after the last token of its last row, which ends with the final state. That
    value is unknown if the next observation did not fit into the row, or if the critic learns at
    turn ends. Then it is the value at the last token that the critic learns on, as if the state had
    the same value as the previous one.
    """
    found = torch.zeros(len(owners), dtype=torch.float64)
    if not config.algorithm.truncation_bootstrap:
        return found
    at_ends = config.critic.use_reward_mask
    rows_of: dict[str, list[int]] = {}
    for i, owner in enumerate(owners):
        rows_of.setdefault(owner.trajectory_id, []).append(i)
    for rows in rows_of.values():
        owner, learnt = owners[rows[-1]], [i for i in rows if mask[i].any()]
        if owner.terminated or not (owner.truncated and learnt):
            continue
        last = owner.rows[-1]
        shown = not last.loss_mask.any() or last.turn_index[-1] == len(owner.turns)
        if shown and not at_ends:
            found[rows] = float(after[rows[-1]])
        else:
            i, t = learnt[-1], int(mask[learnt[-1]].nonzero()[-1])
            found[rows] = float(values[i, t])
    return found


def _row_rewards(
    rows: Sequence[TokenRow], turn_rewards: Mapping[str, Sequence[float]]
) -> list[list[float]]:
    """Reward of each turn with sampled tokens in the row.

    The reward of a turn without sampled tokens goes to the last earlier turn with some, or to the
    first.
    """
    turns_of: dict[str, list[int]] = {}
    sampled = [np.unique(row.turn_index[row.loss_mask]).tolist() for row in rows]
    for row, turns in zip(rows, sampled, strict=True):
        turns_of.setdefault(row.trajectory_id, []).extend(turns)
    paid = {name: dict.fromkeys(turns, 0.0) for name, turns in turns_of.items()}
    for name, turns in turns_of.items():
        for k, reward in enumerate(turn_rewards[name] if turns else ()):
            paid[name][turns[max(bisect_right(turns, k) - 1, 0)]] += reward
    return [
        [paid[row.trajectory_id][k] for k in turns]
        for row, turns in zip(rows, sampled, strict=True)
    ]


def _pad(arrays: Sequence[NDArray[Any]], fill: float = 0) -> Tensor:
    """Right-pads [T] arrays to one tensor [B, T]."""
    longest = max(len(array) for array in arrays)
    out = np.full((len(arrays), longest), fill, dtype=arrays[0].dtype)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return torch.from_numpy(out)


def _metrics(
    rows: Sequence[TokenRow],
    columns: dict[str, list[NDArray[np.float32]]],
    padded: dict[str, Tensor],
    loss_mask: Tensor,
    values: Tensor | None,
    mask: Tensor | None,
) -> dict[str, float]:
    sampled = loss_mask.numpy()
    if not sampled.any():
        return {}
    scored = {row.trajectory_id for row in rows if row.loss_mask.any()}
    old = _pad(columns["old_logprobs"]).numpy()[sampled]
    metrics = {
        "critic/rewards/mean": float(padded["rewards"].sum()) / len(scored),
        "critic/advantages/mean": float(padded["advantages"].numpy()[sampled].mean()),
        "critic/advantages/max": float(padded["advantages"].numpy()[sampled].max()),
        "critic/advantages/min": float(padded["advantages"].numpy()[sampled].min()),
        "critic/returns/mean": float(padded["returns"].numpy()[sampled].mean()),
    }
    if "ref_logprobs" in columns:
        reference = _pad(columns["ref_logprobs"]).numpy()[sampled]
        metrics["actor/reference_kl"] = float((old - reference).mean())
    if values is not None and mask is not None and bool(mask.any()):
        metrics["critic/values/mean"] = float(values[mask].mean())
        metrics["critic/vf_explained_var"] = explained_variance(values, padded["returns"], mask)
    return metrics
