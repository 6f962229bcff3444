"""What an environment answers, as plain values; what is of another form is refused in words.

Foreign code returns numbers of numpy, flags that are none, tuples of another length. Nothing of
that may reach a trajectory: its rewards are summed, its states are written as JSON.
"""

import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation

LARGEST = float(np.finfo(np.float32).max)
"""Rewards become float32."""
REWARDS = ("env", "format")
METRICS = ("action_is_valid", "action_is_effective")
STEP_INFO = ("rewards", "parsed", "metrics", "success", "state")
STEP = ("observation", "reward", "terminated", "truncated", "info")


class AnswerError(ValueError):
    """An environment answers in a wrong form; says which class and method, and what is right."""


def unpacked(result: Any, where: str, parts: tuple[str, ...]) -> tuple[Any, ...]:
    """A tuple of as many parts as are named, of which `info` is a dict.

    Args:
        result: What a method returned.
        where: Class and method, such as `Maze.step()`.
        parts: Names of what it is to return.

    Raises:
        AnswerError: It is another one.
    """
    wanted = f"it is to return ({', '.join(parts)})"
    if not isinstance(result, tuple) or len(result) != len(parts):
        raise AnswerError(f"{where} returns {kind(result)}; {wanted}")
    info = result[parts.index("info")]
    if not isinstance(info, Mapping):
        raise AnswerError(f"{where} returns {kind(info)} as info; {wanted}, info being a dict")
    return result


def flag(value: Any, what: str) -> bool:
    """True or False, also numpy's; nothing else is read as one.

    Raises:
        AnswerError: It is something else, such as `"False"` or .25.
    """
    value = _item(value)
    if not isinstance(value, bool):
        raise AnswerError(f"{what} is {kind(value)}; it is to be True or False")
    return value


def number(value: Any, what: str) -> float:
    """A finite number that float32 can hold, from any kind of number.

    Raises:
        AnswerError: It is none, several, or not finite.
    """
    value = _item(value)
    if not isinstance(value, str | bytes) and np.ndim(value) == 0:
        try:
            found = operator.index(value) if hasattr(value, "__index__") else float(value)
            if abs(found) <= LARGEST:
                return float(found)
        except (TypeError, ValueError):
            pass
    raise AnswerError(f"{what} is {kind(value)}; it is to be one finite number")


def plain(value: Any, what: str) -> Any:
    """A value as JSON holds it, with Python's own types.

    Raises:
        AnswerError: JSON has no room for it.
    """
    value = _item(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise AnswerError(f"{what} has the key {kind(wrong[0])}; keys are texts")
        return {key: plain(part, f"{what}[{key!r}]") for key, part in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part, f"{what}[{index}]") for index, part in enumerate(value)]
    raise AnswerError(
        f"{what} is {kind(value)}, which JSON does not hold; it holds dict, list, str, int, bool, "
        "None and finite float"
    )


def begun(env: AgentEnv, result: Any) -> tuple[Observation, dict[str, Any]]:
    """What `reset` of an `AgentEnv` returned, plain.

    Raises:
        AnswerError: It breaks the contract so that no episode can begin.
    """
    where = f"{type(env).__name__}.reset()"
    observation, info = unpacked(result, where, ("observation", "info"))
    _check_observation(observation, where)
    about = f"{where}'s info"
    return observation, plain(_with_keys(info, about, ("state", "level_hash")), about)


def stepped(env: AgentEnv, result: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """What `step` of an `AgentEnv` returned, plain.

    Raises:
        AnswerError: It breaks the contract so that the turn cannot be learnt from.
    """
    where = f"{type(env).__name__}.step()"
    observation, reward, terminated, truncated, info = unpacked(result, where, STEP)
    _check_observation(observation, where)
    about = f"{where}'s info"
    info = _with_keys(info, about, STEP_INFO)
    rewards = _with_keys(info["rewards"], f"{about}['rewards']", REWARDS)
    metrics = _with_keys(info["metrics"], f"{about}['metrics']", METRICS)
    info = {
        **info,
        "rewards": {part: number(rewards[part], f"{where}'s reward {part}") for part in REWARDS},
        "metrics": {name: flag(metrics[name], f"{about}: {name}") for name in METRICS},
        "success": flag(info["success"], f"{about}: success"),
    }
    return (
        observation,
        number(reward, f"{where}'s reward"),
        flag(terminated, f"{where}'s terminated"),
        flag(truncated, f"{where}'s truncated"),
        plain(info, about),
    )


def kind(value: Any) -> str:
    """A value in a message: what it is, not all that it holds."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if value is None:
        return "None"
    return f"{' '.join(repr(value).split()):.60} ({type(value).__module__}.{type(value).__name__})"


def _item(value: Any) -> Any:
    """The Python value of a scalar of numpy or torch, also one in an array without dimensions."""
    return value.item() if getattr(value, "shape", None) == () else value


def _with_keys(found: Any, what: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or not set(keys) <= found.keys():
        holds = f"holds {', '.join(map(str, found))}" if isinstance(found, Mapping) else None
        raise AnswerError(f"{what} {holds or f'is {kind(found)}'}; it is to hold {', '.join(keys)}")
    return found


def _check_observation(observation: Any, where: str) -> None:
    if not isinstance(observation, Mapping) or not {"text", "images"} <= observation.keys():
        raise AnswerError(f"{where} shows {kind(observation)}; it is to be a dict of text, images")
    text, images = observation["text"], observation["images"]
    if not isinstance(text, str):
        raise AnswerError(f"{where} shows the text {kind(text)}; it is to be a str")
    for image in images:
        if getattr(image, "dtype", None) != np.uint8 or image.shape[2:] != (3,) or not image.size:
            raise AnswerError(
                f"{where} shows {kind(image)}; an image is an array uint8 [height, width, 3]"
            )
    if (count := text.count(IMAGE_PLACEHOLDER)) != len(images):
        raise AnswerError(
            f"{where} shows a text that holds {IMAGE_PLACEHOLDER} {count} times for {len(images)} "
            "images; it is to hold it once for each"
        )
