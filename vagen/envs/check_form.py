"""Plays episodes of an environment under test and checks the format of all results."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vagen.envs.answers import METRICS, REWARDS, STEP_INFO, AnswerError, begun, kind, stepped
from vagen.envs.base import AgentEnv, Observation, State
from vagen.envs.parsing import ParsedResponse


class ContractError(ValueError):
    """An environment violates the contract of `AgentEnv`; says how, and what is expected."""


def demand(holds: bool, otherwise: str) -> None:
    """Raises `ContractError` with the text `otherwise` unless it holds."""
    if not holds:
        raise ContractError(otherwise)


@dataclass
class FormEpisode:
    """A checked episode."""

    observations: list[Observation]
    infos: list[dict[str, Any]]
    """The info of `reset` and of each step."""
    responses: list[str] = field(default_factory=list)
    ends: list[tuple[bool, bool]] = field(default_factory=list)
    """Terminated and truncated after each step."""

    @property
    def success(self) -> bool:
        """Final success."""
        return bool(self.ends) and self.infos[-1]["success"]

    @property
    def states(self) -> list[State]:
        """True states after `reset` and after each step."""
        return [info["state"] for info in self.infos]


def play(env: AgentEnv, seed: int | None, responses: Sequence[str] | None = None) -> FormEpisode:
    """Plays given responses, or the expert to the end."""
    observation, info = reset(env, seed)
    episode = FormEpisode([observation], [info])
    states = [json.dumps(info["state"])]
    most = env.config.max_steps if responses is None else len(responses)
    while len(episode.responses) < most and not (episode.ends and any(episode.ends[-1])):
        turn = len(episode.responses)
        response = env.expert_response() if responses is None else responses[turn]
        demand(isinstance(response, str), f"expert_response() gives {kind(response)}, not a text")
        demand(
            json.dumps(env.state()) == states[-1],
            "state() is not the last info's state, or expert_response() changed it",
        )
        observation, terminated, truncated, info = step(env, response)
        demand(
            responses is not None
            or not env.has_expert
            or (info["parsed"]["format_correct"] and info["metrics"]["action_is_valid"]),
            f"the expert's response {response!r} is not accepted by the environment",
        )
        episode.responses.append(response)
        episode.observations.append(observation)
        episode.infos.append(info)
        episode.ends.append((terminated, truncated))
        states.append(json.dumps(info["state"]))
    demand(
        [json.dumps(state) for state in episode.states] == states,
        "a later step changes a state that was handed out before: build a new state each time",
    )
    demand(
        responses is not None or any(episode.ends[-1]),
        f"an episode does not end after {most} responses, though max_steps is {most}",
    )
    return episode


def reset(env: AgentEnv, seed: int | None) -> tuple[Observation, dict[str, Any]]:
    """`env.reset` with checks."""
    result: Any = env.reset(seed=seed)
    _converted(begun, env, result)
    observation, info = result
    _check_observation(env, observation, "reset()")
    _check_keys(info, {"state", "level_hash"}, "reset()'s info")
    _check_json(info, "reset()'s info")
    demand(isinstance(info["level_hash"], str), "level_hash is not a text; use content_hash")
    return observation, info


def step(env: AgentEnv, response: str) -> tuple[Observation, bool, bool, dict[str, Any]]:
    """`env.step` with checks; without the reward, which is the sum of its parts in the info."""
    result: Any = env.step(response)
    _converted(stepped, env, result)
    observation, reward, terminated, truncated, info = result
    _check_observation(env, observation, "step()")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        demand(isinstance(flag, bool), f"step()'s {name} is {kind(flag)}; it must be a bool")
    demand(not (terminated and truncated), "an episode is both terminated and truncated")
    _check_keys(info, {*STEP_INFO, *({"placed"} & info.keys())}, "step()'s info")
    _check_json(info, "step()'s info")
    _check_keys(info["rewards"], set(REWARDS), "info['rewards']")
    _check_keys(info["metrics"], set(METRICS), "info['metrics']")
    total = sum(info["rewards"].values())
    demand(
        isinstance(reward, float | int) and math.isclose(reward, total, abs_tol=1e-9),
        f"the reward is {reward}, but its parts info['rewards'] sum to {total}",
    )
    optional = {"memory"} & info["parsed"].keys()
    _check_keys(info["parsed"], {*ParsedResponse(False).to_dict(), *optional}, "info['parsed']")
    demand(
        info["parsed"]["format_correct"] or info["rewards"]["format"] <= 0,
        f"a format reward of {info['rewards']['format']} is paid for a response whose format is "
        "wrong; it must be 0",
    )
    return observation, terminated, truncated, info


def _converted(convert: Callable[[AgentEnv, Any], Any], env: AgentEnv, result: Any) -> Any:
    """What the rollout makes of a result; the checks here demand that it is this already."""
    try:
        return convert(env, result)
    except AnswerError as error:
        raise ContractError(str(error)) from error


def _check_observation(env: AgentEnv, observation: Observation, where: str) -> None:
    _check_keys(observation, {"text", "images"}, f"{where}'s observation")
    images = observation["images"]
    demand(isinstance(images, tuple), f"{where}'s images are {kind(images)}, not a tuple")
    demand(
        not images or env.config.render_mode != "text",
        f"{where} shows images, though render_mode is text",
    )


def _check_keys(found: Any, wanted: set[str], what: str) -> None:
    demand(
        set(found) == wanted,
        f"{what} has the keys {_listed(found)}; they must be {_listed(wanted)}",
    )


def _check_json(value: Any, where: str) -> None:
    """Rejects values that are not plain JSON: tuples, numpy numbers, keys other than strings."""
    if type(value) is dict:
        for key, part in value.items():
            _check_json(part, f"{where}[{key!r}]")
    elif type(value) is list:
        for index, part in enumerate(value):
            _check_json(part, f"{where}[{index}]")
    elif value is not None and type(value) not in (str, int, bool, float):
        raise ContractError(
            f"{where} is {kind(value)}, which JSON does not hold as it is; write dict, list, str, "
            "int, float, bool or None"
        )


def same(left: Any, right: Any) -> bool:
    """Equality of nested results with arrays."""
    if isinstance(left, FormEpisode):
        return same(vars(left), vars(right))
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))
