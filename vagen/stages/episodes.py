"""Episodes of a run: which levels, which seeds, and how they are played."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vagen.config.checks import context_window
from vagen.config.schema import ExperimentConfig, SamplingConfig
from vagen.envs import make
from vagen.models.processor import Processor
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.images import image_digest, png_bytes
from vagen.rollout.runner import (
    EpisodeLimits,
    EpisodeRunner,
    EpisodeSpec,
    derive_seed,
    run_episodes,
    run_to_end,
)
from vagen.rollout.types import Policy, Sampling, Status, Trajectory
from vagen.stages.build import LevelSet


class EpisodesFailed(ValueError):
    """No episode of a batch could be played."""


def training_specs(
    config: ExperimentConfig, levels: Sequence[LevelSet], iteration: int
) -> list[EpisodeSpec]:
    """The episodes of an iteration: a function of the seed and the iteration alone.

    All training levels of the mixture are passed through in a new order each epoch.
    """
    pool = [(level_set, ref) for level_set in levels for ref in level_set.splits["train"]]
    size = config.data.train_batch_size
    specs = []
    for i in range(iteration * size, (iteration + 1) * size):
        epoch, place = divmod(i, len(pool))
        level_set, ref = pool[_order(config.seed, epoch, len(pool))[place]]
        group = f"{iteration:04d}-{i - iteration * size:04d}"
        for n in range(config.rollout_manager.n_trajectory):
            specs.append(
                EpisodeSpec(
                    trajectory_id=f"{group}-{n}",
                    group_id=group,
                    config_id=level_set.config_id,
                    env_name=level_set.spec.env_name,
                    env_config_digest=level_set.env_config_digest,
                    level_seed=ref.seed,
                    sampling_seed=derive_seed(config.seed, "rollout", group, n),
                )
            )
    return specs


def greedy_specs(specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
    """One episode per level of an iteration, to be played greedily as a baseline."""
    first = {spec.group_id: spec for spec in reversed(specs)}
    return [
        replace(first[group], trajectory_id=f"{group}-greedy")
        for group in dict.fromkeys(spec.group_id for spec in specs)
    ]


def evaluation_specs(
    config: ExperimentConfig, levels: Sequence[LevelSet], split: str, count: int | None = None
) -> list[EpisodeSpec]:
    """One episode per level of a split; sampling seeds depend on the level, not on the policy."""
    return [
        EpisodeSpec(
            trajectory_id=f"{split}-{level_set.config_id}-{ref.seed}",
            group_id=f"{split}-{level_set.config_id}-{ref.seed}",
            config_id=level_set.config_id,
            env_name=level_set.spec.env_name,
            env_config_digest=level_set.env_config_digest,
            level_seed=ref.seed,
            sampling_seed=derive_seed(config.seed, "evaluation", split, ref.level_hash),
        )
        for level_set in levels
        for ref in level_set.splits[split][:count]
    ]


def limits_of(config: ExperimentConfig) -> EpisodeLimits:
    """Turn and token budgets of the experiment."""
    return EpisodeLimits(
        max_turns=config.rollout_manager.max_turns,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        max_trajectory_length=config.data.max_trajectory_length,
        window=context_window(config),
    )


def sampling_of(config: SamplingConfig) -> Sampling:
    """Sampling options as the policy takes them."""
    return Sampling(temperature=config.temperature, top_p=config.top_p, top_k=config.top_k)


def play(
    config: ExperimentConfig,
    specs: Sequence[EpisodeSpec],
    *,
    policy: Policy,
    processor: Processor,
    sampling: SamplingConfig,
    split: str,
    on_finish: Callable[[Trajectory], None] | None = None,
) -> tuple[list[Trajectory], dict[str, bytes]]:
    """Plays episodes; returns them in order, and every frame shown (PNG bytes by SHA-256).

    Raises:
        RenderError: The model cannot read what an environment shows, or a prompt is too long.
        EpisodesFailed: Every episode failed in its environment.
    """
    renderer = ChatRenderer(processor)
    _check_rendering(config, renderer, split)
    runner = EpisodeRunner(
        policy=policy,
        renderer=renderer,
        limits=limits_of(config),
        sampling=sampling_of(sampling),
        frame_digest=_frame_digest,
    )
    trajectories = run_to_end(
        run_episodes(
            runner,
            specs,
            lambda spec: make(spec.env_name, config.envs[spec.config_id].env_config, split),
            max_concurrency=config.actor_rollout_ref.rollout.max_concurrency,
            on_finish=on_finish,
        )
    )
    failures = [t.error for t in trajectories if t.status is Status.ENV_ERROR]
    if failures and len(failures) == len(trajectories):
        raise EpisodesFailed(
            f"all {len(failures)} episodes failed in their environment, the first with "
            f"{failures[0]}"
        )
    return trajectories, runner.images


def _check_rendering(config: ExperimentConfig, renderer: ChatRenderer, split: str) -> None:
    """Start-up check: parts laid end to end equal the whole conversation."""
    for spec in config.envs.values():
        env = make(spec.env_name, spec.env_config, split)
        first, _ = env.reset(seed=0)
        second, *_ = env.step(env.expert_response())
        renderer.check(env.system_prompt(), [first, second, first])
        if context_window(config) is not None:
            renderer.check(env.system_prompt(), [second, first])
        env.close()


def _frame_digest(frame: np.ndarray) -> tuple[str, bytes]:
    png = png_bytes(frame)
    return image_digest(png), png


def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Order of the training levels in an epoch."""
    rng = np.random.Generator(np.random.Philox(key=derive_seed(seed, "order", epoch)))
    return rng.permutation(count)
