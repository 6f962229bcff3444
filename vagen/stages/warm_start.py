"""Warm start: the policy that reinforcement learning begins with.

A hub model or a local directory is taken as it is; a tiny model is built in code. If the experiment
asks for it, the policy then learns from expert episodes of training levels only, or from
conversations in a file.
"""

import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vagen import progress
from vagen.config.infra import EnvironmentsConfig, S3Config
from vagen.config.schema import ExperimentConfig
from vagen.engines.make import configure_torch, device_of, helpers_of
from vagen.models.processor import ProcessedImage, Processor, load_processor
from vagen.models.sources import is_packed
from vagen.models.tiny import TINY_MODELS
from vagen.models.tiny_policy import build_tiny_policy
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.demonstrations import DemonstrationError, read_demonstrations
from vagen.rollout.levels import LevelSet
from vagen.rollout.play import check_failures, limits_of, make_environment, make_runner
from vagen.rollout.reach import out_of_reach
from vagen.rollout.runner import EpisodeSpec, derive_seed, run_episodes, run_to_end
from vagen.rollout.scripted import ExpertPolicy
from vagen.rollout.types import TokenRow, Trajectory
from vagen.run.folder import result
from vagen.run.run import Run
from vagen.service import AsyncEnv, environments_of
from vagen.stages.build import load_levels
from vagen.stages.checks import check_endpoints
from vagen.storage import commit_directory

if TYPE_CHECKING:
    from vagen.models.loading import LanguageModel


def warm_start(run: Run) -> dict[str, Any]:
    """Makes or checks the initial policy and commits it.

    Raises:
        ModelError: The model's directory or hub id cannot be loaded.
        JudgeUnavailable, EndpointError: See `check_endpoints`.
    """
    import torch

    from vagen.engines.local.supervised import WINDOW, learn_from_experts
    from vagen.models.loading import load_model

    if run.infra.has_ray_cluster:  # the first stage there
        check_endpoints(run)
    configure_torch(run.infra)
    config = run.experiment
    for text in out_of_reach(config, environments_of(run.infra.environments)):
        progress.note(text)
    levels = load_levels(run)
    path = config.actor_rollout_ref.model.path
    with tempfile.TemporaryDirectory() as scratch:
        source = path
        if path in TINY_MODELS:
            source = scratch
            build_tiny_policy(config, levels, Path(scratch), run.infra.environments)
        # Every process of the run reads what is built or converted here from the run's folder.
        made_here = path in TINY_MODELS or is_packed(path)
        if config.warm_start.steps == 0 and not made_here:
            load_processor(path)  # the weights are checked when the engine loads them
            payload: dict[str, Any] = {"model_path": path, "metrics": {}}
            with commit_directory(run.warm_start, kind="warm_start", payload=payload):
                pass
            return result(run.warm_start)
        language_model = load_model(
            source, device=device_of(run.infra), dtype=getattr(torch, run.infra.dtype)
        )
        if run.infra.local.gradient_checkpointing:
            language_model.recompute_activations()
        check_adapters(config, language_model)
        payload = {"model_path": None, "metrics": {}}
        with commit_directory(run.warm_start, kind="warm_start", payload=payload) as folder:
            if config.warm_start.steps:
                if config.warm_start.data is not None:
                    taught = Conversations(config, language_model.processor, run.infra.s3)
                    payload["metrics"]["warm_start/too_long"] = float(taught.too_long)
                else:
                    processor, placed = language_model.processor, run.infra.environments
                    taught = ExpertEpisodes(config, levels, processor, placed)
                    _show_expert(levels[0], placed)
                default = "muon" if path in TINY_MODELS else "adamw"
                with progress.bar("supervised batches", config.warm_start.steps) as advance:
                    losses = learn_from_experts(
                        language_model,
                        taught.batch,
                        config.warm_start,
                        muon=(config.warm_start.optimizer or default) == "muon",
                        on_step=lambda _, loss: advance(1, loss=loss),
                        helpers=helpers_of(run.infra),
                    )
                payload["metrics"]["warm_start/steps"] = float(len(losses))
                payload["metrics"]["warm_start/loss"] = float(np.mean(losses[-WINDOW:]))
            language_model.save(folder / "policy")
    return result(run.warm_start)


def _show_expert(level_set: LevelSet, environments: EnvironmentsConfig | None) -> None:
    """Shows a training level and the answer that the warm start teaches there."""
    env = environments_of(environments).open(level_set.spec.env_name, level_set.spec.env_config)
    observation, _ = env.reset(seed=level_set.splits["train"][0].seed)
    answer = textwrap.shorten(env.expert_response(), 400, placeholder=" …")
    env.close()
    picture = observation["images"][0] if observation["images"] else None
    progress.note(f"a training level, and the expert's answer: {answer}", picture)


def check_adapters(config: ExperimentConfig, language_model: "LanguageModel") -> None:
    """Refuses adapters for layers that the model does not have, before anything is learnt.

    Raises:
        ModelError: Which layers, and which there are.
    """
    from vagen.models.lora import adapted_layers

    model = language_model.model
    if config.actor_rollout_ref.model.lora_rank:
        adapted_layers(model, config.actor_rollout_ref.model.target_modules)
    if config.critic.model.lora_rank:
        adapted_layers(model.model, config.critic.model.target_modules)


class ExpertEpisodes:
    """Expert episodes of training levels as token rows."""

    def __init__(
        self,
        config: ExperimentConfig,
        levels: list[LevelSet],
        processor: Any,
        environments: EnvironmentsConfig | None = None,
    ):
        """Prepares the expert.

        Args:
            config: The experiment.
            levels: Level sets with a `train` split.
            processor: The model's, or a `ChatProcessor` if only `play` is called.
            environments: Where environments run; None for the default.
        """
        from vagen.engines.local.packing import ImageCache

        self.config = _demonstrated(config)
        self.environments = environments_of(environments)
        self.pool = [(level_set, ref) for level_set in levels for ref in level_set.splits["train"]]
        self.processor = processor
        self.renderer = ChatRenderer(processor)
        self.rng = np.random.Generator(np.random.Philox(key=derive_seed(config.seed, "experts")))
        self.frames = ImageCache(self.processor)
        self.played: list[tuple[list[TokenRow], dict[str, bytes]]] = []
        """Rows and PNG of each batch that will be learnt from again."""

    def batch(self, step: int) -> tuple[list[TokenRow], dict[str, ProcessedImage]]:
        """Rows of one step and the processed images they show."""
        size, episodes = self.config.warm_start.batch_size, self.config.warm_start.episodes
        if episodes is not None and len(self.played) * size >= episodes:
            rows, frames = self.played[step % len(self.played)]
        else:
            trajectories, frames = self.play(step)
            rows = [row for t in trajectories for row in t.rows if row.loss_mask.any()]
            if episodes is not None:
                self.played.append((rows, frames))
        return rows, self.frames.shown_by(rows, frames)

    def play(self, step: int) -> tuple[list[Trajectory], dict[str, bytes]]:
        """The next batch of episodes, with `step` in their names, and PNG by digest."""
        size = self.config.warm_start.batch_size
        policy = ExpertPolicy(self.renderer)
        runner = make_runner(
            self.config,
            policy=policy,
            processor=self.processor,
            sampling=self.config.actor_rollout_ref.rollout,
        )

        async def environment(spec: EpisodeSpec) -> AsyncEnv:
            env = await make_environment(self.config, spec, "train", self.environments)
            policy.envs[spec.trajectory_id] = env
            return env

        specs = [
            EpisodeSpec(
                trajectory_id=f"{step}-{i}",
                group_id=f"{step}-{i}",
                config_id=self.pool[k][0].config_id,
                env_name=self.pool[k][0].spec.env_name,
                env_config_digest=self.pool[k][0].env_config_digest,
                level_seed=self.pool[k][1].seed,
                sampling_seed=0,
            )
            for i, k in enumerate(self.rng.integers(len(self.pool), size=size))
        ]
        trajectories = run_to_end(
            run_episodes(runner, specs, environment, max_concurrency=len(specs))
        )
        check_failures(trajectories)
        return trajectories, runner.images


class Conversations:
    """The conversations of `warm_start.data` as token rows."""

    def __init__(self, config: ExperimentConfig, processor: Processor, s3: S3Config | None = None):
        """Reads and renders all.

        Raises:
            DemonstrationError: The file cannot be used, or all of it is too long.
        """
        from vagen.engines.local.packing import ImageCache

        source, self.size = config.warm_start.data, config.warm_start.batch_size
        assert source is not None
        found = read_demonstrations(source, s3)
        if (episodes := config.warm_start.episodes) is not None:
            found = found[: -(-episodes // self.size) * self.size]
        renderer, limits = ChatRenderer(processor), limits_of(config)
        rendered = [each.rows(renderer, limits) for each in found]
        self.kept = [each for each in rendered if each is not None]
        self.too_long = len(found) - len(self.kept)
        lengths = (
            f"data.max_prompt_length={limits.max_prompt_length}, max_response_length="
            f"{limits.max_response_length} or max_trajectory_length={limits.max_trajectory_length}"
        )
        if not self.kept:
            raise DemonstrationError(
                f"all {len(found):,} conversations of {source} exceed {lengths}: raise these"
            )
        progress.note(f"{len(found):,} conversations in {source}")
        if self.too_long:
            progress.note(f"{self.too_long:,} of them are left out: they exceed {lengths}")
        self.frames = ImageCache(processor)

    def batch(self, step: int) -> tuple[list[TokenRow], dict[str, ProcessedImage]]:
        """Rows of one step and the processed images they show."""
        places = range(step * self.size, (step + 1) * self.size)
        taken = [self.kept[place % len(self.kept)] for place in places]
        rows = [row for part, _ in taken for row in part if row.loss_mask.any()]
        return rows, self.frames.shown_by(
            rows, {k: v for _, pngs in taken for k, v in pngs.items()}
        )


def _demonstrated(config: ExperimentConfig) -> ExperimentConfig:
    """The experiment whose expert plays `warm_start.random_moves`."""
    if not (share := config.warm_start.random_moves):
        return config
    envs = {
        env_id: spec.model_copy(
            update={"env_config": {**spec.env_config, "expert_random_moves": share}}
        )
        for env_id, spec in config.envs.items()
    }
    return config.model_copy(update={"envs": envs})
