"""Selects trajectories for learning, and computes rewards of their turns."""

from collections.abc import Callable, Sequence

import numpy as np

from vagen.config.schema import ExperimentConfig
from vagen.learning import (
    group_statistics,
    loss_scale,
    normalize_turn_rewards,
    overlong_penalty,
    select_groups,
    turn_totals,
)
from vagen.learning.filters import ZERO
from vagen.metrics import REWARD_STD
from vagen.rollout.types import Status, Trajectory


def select_trajectories(
    config: ExperimentConfig, trajectories: Sequence[Trajectory]
) -> tuple[dict[str, float], float]:
    """Sets `kept` by `algorithm.rollout_filter` and `algorithm.overlong.mask_truncated`.

    Episodes that are too long are dropped first and belong to no group.

    Groups are compared by the scores of training: sums of rewards over turns and parts, before
    normalisation and KL. Episodes of failed environments belong to no group and stay None.

    Returns:
        Metrics, and a factor on all advantages. `rollout/reward_std` is the mean over groups of
            the standard deviation of scores, `rollout/zero_std_groups` the share of groups without
            variation. Both are over groups of at least two, and missing if there are none.
        `rollout/filter_kept` is the share of trajectories kept.
    """
    options = config.algorithm.rollout_filter
    everything = played = _played(trajectories)
    if config.algorithm.overlong.mask_truncated:
        for trajectory in played:
            trajectory.kept = not _overlong(trajectory)
        played = [trajectory for trajectory in played if trajectory.kept]
    scores = np.array([sum(_training_rewards(config, t)) for t in played], np.float64)
    groups = group_statistics(scores, [trajectory.group_id for trajectory in played])
    chosen = select_groups(
        groups.stds,
        strategy=options.strategy,
        value=options.value,
        top_p_prob_mode=options.top_p_prob_mode,
        include_zero=options.include_zero,
    )
    if options.strategy != "none":
        for trajectory, group in zip(played, groups.index, strict=True):
            trajectory.kept = bool(chosen[group])
    kept = int(chosen[groups.index].sum())
    metrics = {"rollout/filter_kept": kept / max(len(everything), 1)}
    compared = groups.stds[groups.sizes > 1]
    if compared.size:
        metrics[REWARD_STD] = float(compared.mean())
        metrics["rollout/zero_std_groups"] = float((compared <= ZERO).mean())
    return metrics, loss_scale(kept, len(everything), options.loss_scaling)


def turn_rewards_by_trajectory(
    config: ExperimentConfig, trajectories: Sequence[Trajectory], *, training: bool = True
) -> dict[str, list[float]]:
    """Reward of each turn by trajectory id.

    In training, minus costs of length and memory, and normalised by
    `algorithm.reward_normalization` over the given trajectories. Episodes of failed environments
    do not count and keep their rewards.
    """
    if not training:
        return {t.trajectory_id: turn_rewards(config, t) for t in trajectories}
    rewards = {t.trajectory_id: _training_rewards(config, t) for t in trajectories}
    options = config.algorithm.reward_normalization
    if options.method != "none":
        played = _played(trajectories)
        normalized = normalize_turn_rewards(
            [rewards[trajectory.trajectory_id] for trajectory in played],
            [_PEERS[options.grouping](trajectory) for trajectory in played],
            method=options.method,
        )
        names = [trajectory.trajectory_id for trajectory in played]
        rewards |= dict(zip(names, normalized, strict=True))
    return rewards


_PEERS: dict[str, Callable[[Trajectory], str]] = {
    "group": lambda trajectory: trajectory.group_id,
    "environment": lambda trajectory: trajectory.config_id,
    "batch": lambda _: "",
}
"""Keys of trajectories whose scores are normalised together."""


def _played(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.status is not Status.ENV_ERROR]


def _overlong(trajectory: Trajectory) -> bool:
    """Whether a response was truncated, or the token limit was reached."""
    cut = any(turn.length_cut for turn in trajectory.turns)
    return cut or trajectory.status is Status.TRUNCATED_TOKENS


def turn_rewards(config: ExperimentConfig, trajectory: Trajectory) -> list[float]:
    """Rewards of each turn, K floats; a summary has 0 and does not count in the budget."""
    rewards = [turn.rewards for turn in trajectory.turns]
    return turn_totals(rewards, text_share(config, trajectory))


def text_share(config: ExperimentConfig, trajectory: Trajectory) -> float:
    """Factor of format and judge rewards: 1, or that of `rollout_manager.turn_reward_budget`."""
    budget = config.rollout_manager.turn_reward_budget
    counted = sum(not turn.summary for turn in trajectory.turns)
    return 1.0 if budget is None else budget / max(counted, 1)


def _training_rewards(config: ExperimentConfig, trajectory: Trajectory) -> list[float]:
    """Rewards of each turn, minus costs of its length and of observations that it keeps."""
    earned = np.array(turn_rewards(config, trajectory), np.float64)
    kept = [turn.parsed.memory != "drop" for turn in trajectory.turns]
    earned -= config.rollout_manager.keep_cost * np.array(kept)
    options = config.algorithm.overlong
    if options.buffer_len is None:
        return earned.tolist()
    lengths = np.zeros(len(earned), np.int64)
    for row in trajectory.rows:
        lengths += np.bincount(row.turn_index[row.loss_mask], minlength=len(earned))
    penalty = overlong_penalty(
        lengths,
        max_length=config.data.max_response_length,
        buffer_len=options.buffer_len,
        penalty_factor=options.penalty_factor,
    )
    return (earned + penalty).tolist()
