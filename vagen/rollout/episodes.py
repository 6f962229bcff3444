"""Selects levels and seeds of a run's episodes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vagen.config.schema import ExperimentConfig
from vagen.envs import LevelRef
from vagen.rollout.levels import LevelSet
from vagen.rollout.runner import EpisodeSpec, derive_seed


def training_specs(
    config: ExperimentConfig,
    levels: Sequence[LevelSet],
    iteration: int,
    order: NDArray[np.int64] | None = None,
) -> list[EpisodeSpec]:
    """The initial episodes of an iteration, from the seed, the iteration and the order.

    Args:
        config: The experiment.
        levels: Level sets of the mixture.
        iteration: Index of the iteration.
        order: A curriculum's order of all training levels of the mixture; None uses a new
            random order each epoch.
    """
    pool = _training_levels(levels)
    first = _begun(config, iteration)
    specs = []
    for i in range(first, _begun(config, iteration + 1)):
        epoch, place = divmod(i, len(pool))
        if order is None:
            level = pool[_order(config.seed, epoch, len(pool))[place]]
        else:
            level = pool[order[(i - first) % len(pool)]]
        specs += _group(config, iteration, i - first, *level)
    return specs


def _begun(config: ExperimentConfig, iteration: int) -> int:
    """Number of groups before an iteration, at most as many as training uses."""
    size = config.data.train_batch_size
    ahead = (config.rollout_manager.over_sampling_batch_size or size) - size
    left = size * (config.trainer.total_training_steps - iteration)
    return size * iteration + (max(0, min(ahead, left)) if iteration else 0)


def refill_specs(
    config: ExperimentConfig,
    levels: Sequence[LevelSet],
    iteration: int,
    begun: int,
    count: int,
    order: NDArray[np.int64] | None = None,
) -> list[EpisodeSpec]:
    """Episodes of further groups, in an iteration-specific order of the training levels.

    Args:
        config: With `algorithm.filter_groups`.
        levels: Level sets of the mixture.
        iteration: Index of the iteration.
        begun: Number of groups already played in the iteration.
        count: Number of further groups.
        order: See `training_specs`; continues after its levels.
    """
    pool = _training_levels(levels)
    first = begun
    if order is None:
        order = _permutation(derive_seed(config.seed, "refill", iteration), len(pool))
        first -= config.data.train_batch_size
    specs = []
    for i in range(count):
        level = pool[order[(first + i) % len(pool)]]
        specs += _group(config, iteration, begun + i, *level)
    return specs


def _training_levels(levels: Sequence[LevelSet]) -> list[tuple[LevelSet, LevelRef]]:
    return [(level_set, ref) for level_set in levels for ref in level_set.splits["train"]]


def _group(
    config: ExperimentConfig, iteration: int, number: int, level_set: LevelSet, ref: LevelRef
) -> list[EpisodeSpec]:
    """All episodes of one level in an iteration."""
    group = f"{iteration:04d}-{number:04d}"
    return [
        EpisodeSpec(
            trajectory_id=f"{group}-{n}",
            group_id=group,
            config_id=level_set.config_id,
            env_name=level_set.spec.env_name,
            env_config_digest=level_set.env_config_digest,
            level_seed=ref.seed,
            sampling_seed=derive_seed(config.seed, "rollout", group, n),
        )
        for n in range(config.rollout_manager.n_trajectory)
    ]


def greedy_specs(specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
    """One episode per level of an iteration, for greedy play as a baseline."""
    first = {spec.group_id: spec for spec in reversed(specs)}
    return [
        replace(first[group], trajectory_id=f"{group}-greedy")
        for group in dict.fromkeys(spec.group_id for spec in specs)
    ]


def evaluation_specs(
    config: ExperimentConfig,
    levels: Sequence[LevelSet],
    split: str,
    count: int | None = None,
    *,
    attempts: int = 1,
) -> list[EpisodeSpec]:
    """Episodes of each level of a split; sampling seeds depend only on the level."""
    return [
        EpisodeSpec(
            trajectory_id="-".join([split, level_set.config_id, str(ref.seed), *again]),
            group_id=f"{split}-{level_set.config_id}-{ref.seed}",
            config_id=level_set.config_id,
            env_name=level_set.spec.env_name,
            env_config_digest=level_set.env_config_digest,
            level_seed=ref.seed,
            sampling_seed=derive_seed(config.seed, "evaluation", split, ref.level_hash, *again),
        )
        for level_set in levels
        for ref in level_set.splits[split][:count]
        for again in ((), *((str(attempt),) for attempt in range(1, attempts)))
    ]


def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Order of the training levels in an epoch."""
    return _permutation(derive_seed(seed, "order", epoch), count)


def _permutation(seed: int, count: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.Philox(key=seed)).permutation(count)
