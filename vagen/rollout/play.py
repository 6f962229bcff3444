"""Plays episodes with an experiment's environments, limits and sampling."""

from collections.abc import Callable, Sequence

import numpy as np

from vagen.config.infra import EnvironmentsConfig
from vagen.config.schema import ExperimentConfig, SamplingConfig, context_window
from vagen.envs import parse_env_config
from vagen.envs.images import image_digest, png_bytes
from vagen.rollout.contexts import DROPPED, SUMMARY_REQUEST
from vagen.rollout.conversation import ChatProcessor, ChatRenderer
from vagen.rollout.runner import EpisodeLimits, EpisodeRunner, EpisodeSpec, run_episodes, run_to_end
from vagen.rollout.types import Policy, Sampling, Status, Trajectory
from vagen.service import AsyncEnv, Environments, environments_of


class EpisodesFailed(ValueError):
    """Every episode of a batch failed."""


def limits_of(config: ExperimentConfig) -> EpisodeLimits:
    """Turn and token limits of the experiment."""
    return EpisodeLimits(
        max_turns=config.rollout_manager.max_turns,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        max_trajectory_length=config.data.max_trajectory_length,
        window=context_window(config),
        compact=config.rollout_manager.context == "compact",
        compact_budget=config.rollout_manager.compact_budget,
        gate=config.rollout_manager.context == "gate",
        whole_turns=config.rollout_manager.whole_turns,
        thinking_budget=config.rollout_manager.thinking_budget,
    )


def sampling_of(config: SamplingConfig) -> Sampling:
    """Sampling options for the policy."""
    return Sampling(temperature=config.temperature, top_p=config.top_p, top_k=config.top_k)


def play(
    config: ExperimentConfig,
    specs: Sequence[EpisodeSpec],
    *,
    policy: Policy,
    processor: ChatProcessor,
    sampling: SamplingConfig,
    split: str,
    concurrency: int | None = None,
    environments: EnvironmentsConfig | None = None,
    num_processes: int = 1,
    on_finish: Callable[[Trajectory], None] | None = None,
) -> tuple[list[Trajectory], dict[str, bytes]]:
    """Plays episodes in this process; returns them in order, and all frames as PNG.

    Args:
        config: The experiment.
        specs: The episodes.
        policy: Generates the responses.
        processor: Processor of the policy's model.
        sampling: Sampling options.
        split: Split of the levels.
        concurrency: Number of concurrent episodes; None for the experiment's.
        environments: Where environments run; None for the default.
        num_processes: Number of processes on this machine that play.
        on_finish: Called with each finished trajectory.

    Raises:
        RenderError: A prompt is too long.
    """
    placed = environments_of(environments, num_processes=num_processes)
    runner = make_runner(config, policy=policy, processor=processor, sampling=sampling)
    trajectories = run_to_end(
        run_episodes(
            runner,
            specs,
            lambda spec: make_environment(config, spec, split, placed),
            max_concurrency=concurrency or config.actor_rollout_ref.rollout.max_concurrency,
            on_finish=on_finish,
        )
    )
    return trajectories, runner.images


def make_runner(
    config: ExperimentConfig,
    *,
    policy: Policy,
    processor: ChatProcessor,
    sampling: SamplingConfig,
    stopped: Callable[[], bool] = lambda: False,
) -> EpisodeRunner:
    """A runner of the experiment's episodes, until `stopped` returns True."""
    return EpisodeRunner(
        policy=policy,
        renderer=ChatRenderer(processor),
        limits=limits_of(config),
        sampling=sampling_of(sampling),
        frame_digest=_frame_digest,
        stopped=stopped,
        hides_thought=[
            config_id
            for config_id, spec in config.envs.items()
            if not parse_env_config(spec.env_name, spec.env_config).reads_thought
        ],
    )


async def make_environment(
    config: ExperimentConfig, spec: EpisodeSpec, split: str, environments: Environments
) -> AsyncEnv:
    """The environment of an episode."""
    return await environments.make(spec.env_name, config.envs[spec.config_id].env_config, split)


def check_rendering(
    config: ExperimentConfig,
    processor: ChatProcessor,
    split: str,
    environments: EnvironmentsConfig | None = None,
) -> None:
    """Checks at the start that concatenated parts equal the whole conversation.

    Raises:
        RenderError: They differ for an environment of the experiment.
    """
    renderer = ChatRenderer(processor)
    for spec in config.envs.values():
        env = environments_of(environments).open(spec.env_name, spec.env_config, split)
        first, _ = env.reset(seed=0)
        second, *_ = env.step(env.expert_response())
        renderer.check(env.system_prompt(), [first, second, first])
        if config.rollout_manager.context == "compact":
            renderer.check(env.system_prompt(), [first, SUMMARY_REQUEST])
            renderer.check(env.system_prompt(), [SUMMARY_REQUEST, second])
        elif config.rollout_manager.context == "gate":
            renderer.check(env.system_prompt(), [DROPPED, second, DROPPED])
            renderer.check(env.system_prompt(), [first, DROPPED, second])
        elif context_window(config) is not None:
            renderer.check(env.system_prompt(), [second, first])
        env.close()


def check_failures(trajectories: Sequence[Trajectory]) -> None:
    """Rejects a batch without usable episodes.

    Raises:
        EpisodesFailed: Every episode failed in its environment; the message has the first error.
    """
    failures = [t for t in trajectories if t.status is Status.ENV_ERROR]
    if failures and len(failures) == len(trajectories):
        raise EpisodesFailed(
            f"all {len(failures)} episodes failed in their environment, the first "
            f"({failures[0].config_id}, seed {failures[0].seed}) with {failures[0].error}"
        )


def _frame_digest(frame: np.ndarray) -> tuple[str, bytes]:
    png = png_bytes(frame)
    return image_digest(png), png
