"""Builds a tiny model for an experiment's texts and frames."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from vagen.config.infra import EnvironmentsConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs import parse_env_config
from vagen.envs.parsing import GateDecision
from vagen.models.tiny import PixelStatistics, build_tiny_model
from vagen.rollout.contexts import DROPPED, SUMMARY_REQUEST
from vagen.rollout.levels import LevelSet, draw_levels
from vagen.rollout.runner import derive_seed
from vagen.service import EnvironmentRaised, environments_of

SAMPLE_EPISODES = 200
"""Number of expert episodes for the tokenizer and the image statistics."""


def sampled_levels(config: ExperimentConfig) -> list[LevelSet]:
    """The levels that `build_tiny_policy` reads, without a run: the first of every training set.

    Raises:
        LevelError: An environment has fewer distinct levels than asked for.
    """
    return draw_levels(config, {"train": None}, at_most=SAMPLE_EPISODES)


def build_tiny_policy(
    config: ExperimentConfig,
    levels: Sequence[LevelSet],
    directory: str | Path,
    environments: EnvironmentsConfig | None = None,
) -> None:
    """Builds the tiny model for the texts and frames of this experiment's training levels.

    Args:
        config: The experiment; its model is a tiny one.
        levels: Level sets with a `train` split; uses the first `SAMPLE_EPISODES` of each.
        directory: Receives the model.
        environments: Where environments run; None for the default.
    """
    texts: list[str] = []
    tags: set[str] = set()
    context = config.rollout_manager.context
    for level_set in levels:
        env_config = parse_env_config(level_set.spec.env_name, level_set.spec.env_config)
        for section, name in env_config.tags.model_dump().items():
            if section != "memory" or env_config.memory:
                tags |= {f"<{name}>", f"</{name}>"}
        if context == "gate":
            texts += [f"{DROPPED['text']} {' '.join(get_args(GateDecision))}"]

    def frames() -> Iterator[np.ndarray]:
        for level_set in levels:
            samples = _expert_samples(level_set, environments, summaries=context == "compact")
            for text, shown in samples:
                texts.append(text)
                yield from shown

    pixels = PixelStatistics.of(frames())
    build_tiny_model(
        config.actor_rollout_ref.model.path,
        Path(directory),
        corpus=texts,
        tags=tags,
        seed=derive_seed(config.seed, "tiny"),
        pixels=pixels,
    )


def _expert_samples(
    level_set: LevelSet, environments: EnvironmentsConfig | None, *, summaries: bool
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Texts and frames of a few expert episodes, with a summary after each turn if asked for."""
    spec = level_set.spec
    env = environments_of(environments).open(spec.env_name, spec.env_config)
    for ref in level_set.splits["train"][:SAMPLE_EPISODES]:
        observation, _ = env.reset(seed=ref.seed)
        yield env.system_prompt(), []
        over = False
        while not over:
            yield observation["text"], list(observation["images"])
            response = env.expert_response()
            yield response, []
            try:
                observation, _, terminated, truncated, _ = env.step(response)
            except EnvironmentRaised:  # counted where the episode is played
                break
            over = terminated or truncated
            if summaries:
                yield SUMMARY_REQUEST["text"], []
                yield env.expert_summary(), []
    env.close()
