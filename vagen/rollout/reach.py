"""Checks by playing whether success is possible, and whether experts achieve it."""

import math
from collections.abc import Iterator
from typing import Any

from vagen.config.schema import ExperimentConfig
from vagen.envs import parse_env_config
from vagen.envs.adapters.gymnasium import GymnasiumConfig
from vagen.envs.adapters.success import least
from vagen.envs.registry import get_environment
from vagen.rollout.scripted import play_expert
from vagen.rollout.types import Trajectory
from vagen.service import Environments

EPISODES = 8
COMPARED = 32
"""Number of levels to compare two action limits of an expert on."""


def out_of_reach(config: ExperimentConfig, places: Environments) -> Iterator[str]:
    """Yields a message for each environment where success seems impossible.

    The expert fails on all of some levels within the turn limit, with as many actions per turn as
    allowed; without an expert, the required sum of rewards exceeds what actions can earn.

    Args:
        config: The experiment.
        places: Where environments run.
    """
    turns = config.rollout_manager.max_turns
    for config_id, spec in config.envs.items():
        options = parse_env_config(spec.env_name, spec.env_config)
        max_actions = options.max_actions_per_step
        actions = min(turns * max_actions, options.max_steps)
        played = _played(config, config_id, places, per_turn=max_actions, episodes=EPISODES)
        advice = (
            "allow more (rollout_manager.max_turns, and max_actions_per_step and max_steps of the "
            "environment), or ask for less"
        )
        if get_environment(spec.env_name).load().has_expert:
            if not any(episode.success for episode in played):
                yield (
                    f"{config_id}: success seems out of reach: the expert wins none of "
                    f"{EPISODES} levels in {turns} turns, which are {actions} actions at most; "
                    f"{advice}"
                )
        elif isinstance(options, GymnasiumConfig):
            yield from (
                f"{config_id}: success is out of reach: {reason}; {advice}"
                for reason in _too_few(options, actions, played)
            )


def weak_experts(config: ExperimentConfig, places: Environments) -> Iterator[str]:
    """Yields a message for each expert that would win more levels with more actions per turn.

    The expert is the source of the warm start, the reference score and the judge's audit.
    """
    for config_id, spec in config.envs.items():
        options = parse_env_config(spec.env_name, spec.env_config)
        given, max_actions = options.expert_actions_per_turn, options.max_actions_per_step
        if given == max_actions or not get_environment(spec.env_name).load().has_expert:
            continue
        won, possible = (
            sum(
                episode.success
                for episode in _played(config, config_id, places, per_turn=n, episodes=COMPARED)
            )
            for n in (given, max_actions)
        )
        if won < possible:
            yield (
                f"{config_id}: the expert wins {won} of {COMPARED} levels with "
                f"expert_actions_per_turn = {given}, and {possible} with the {max_actions} that "
                "max_actions_per_step allows: warm start, reference score and audit are of the "
                f"weaker one; set envs.{config_id}.env_config.expert_actions_per_turn to "
                f"{max_actions}"
            )


def _played(
    config: ExperimentConfig, config_id: str, places: Environments, *, per_turn: int, episodes: int
) -> list[Trajectory]:
    """Episodes of the expert with this many actions per turn."""
    spec = config.envs[config_id]
    options = parse_env_config(spec.env_name, spec.env_config)
    env = places.open(
        spec.env_name, options.model_copy(update={"expert_actions_per_turn": per_turn})
    )
    try:
        return play_expert(config, config_id, env, range(episodes))
    finally:
        env.close()


def _too_few(options: GymnasiumConfig, actions: int, played: list[Trajectory]) -> Iterator[str]:
    """Reasons why a success rule cannot be met with this many actions."""
    wanted = least(options.success)
    scale = options.reward_values["reward"]
    if (steps := wanted.get("steps", 0)) > actions:
        yield f"`{options.success}` takes {steps:g} actions, and an episode has {actions} at most"
    if "return" in wanted and scale > 0 and not any(episode.success for episode in played):
        found = (turn.rewards.env / scale / _count(turn) for e in played for turn in e.turns)
        paid = max(found, default=math.inf)  # infinite if all failed
        if paid * actions < wanted["return"]:
            yield (
                f"`{options.success}` is asked for, and an episode has {actions} actions at most, "
                f"none of which has earned more than {paid:g} in {EPISODES} random episodes"
            )


def _count(turn: Any) -> int:
    return max(len(turn.parsed.actions), 1)
