"""Checks results of environments and converts them to plain values.

Other environments may return numpy numbers, wrong types or tuples of the wrong length. Trajectories
need plain values, as rewards are summed and states are written as JSON.
"""

import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation

LARGEST = float(np.finfo(np.float32).max)
"""Largest float32, the type of rewards."""
REWARDS = ("env", "format")
METRICS = ("action_is_valid", "action_is_effective")
STEP_INFO = ("rewards", "parsed", "metrics", "success", "state")
STEP = ("observation", "reward", "terminated", "truncated", "info")


class AnswerError(ValueError):
    """Invalid result of an environment; the message names the method and what is expected."""


def unpacked(result: Any, where: str, parts: tuple[str, ...]) -> tuple[Any, ...]:
    """Checks for a tuple of the named parts, with a dict as `info`.

    Args:
        result: Result of a method.
        where: Class and method, such as `Maze.step()`.
        parts: Names of the tuple's parts.

    Raises:
        AnswerError: It is something else.
    """
    wanted = f"it must return ({', '.join(parts)})"
    if not isinstance(result, tuple) or len(result) != len(parts):
        raise AnswerError(f"{where} returns {kind(result)}; {wanted}")
    info = result[parts.index("info")]
    if not isinstance(info, Mapping):
        raise AnswerError(f"{where} returns {kind(info)} as info; {wanted}, info being a dict")
    return result


def flag(value: Any, what: str) -> bool:
    """Converts Python's and numpy's bools only.

    Raises:
        AnswerError: It is something else, such as `"False"` or .25.
    """
    value = _item(value)
    if not isinstance(value, bool):
        raise AnswerError(f"{what} is {kind(value)}; it must be True or False")
    return value


def number(value: Any, what: str) -> float:
    """Converts any kind of number that is finite in float32.

    Raises:
        AnswerError: It is not a single finite number.
    """
    value = _item(value)
    if not isinstance(value, str | bytes) and np.ndim(value) == 0:
        try:
            found = operator.index(value) if hasattr(value, "__index__") else float(value)
            if abs(found) <= LARGEST:
                return float(found)
        except (TypeError, ValueError):
            pass
    raise AnswerError(f"{what} is {kind(value)}; it must be one finite number")


def plain(value: Any, what: str) -> Any:
    """Converts a value to JSON types of Python.

    Raises:
        AnswerError: JSON cannot represent it.
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
    """Checks and converts the result of `AgentEnv.reset`.

    Raises:
        AnswerError: It violates the contract, so that no episode can start.
    """
    where = f"{type(env).__name__}.reset()"
    observation, info = unpacked(result, where, ("observation", "info"))
    _check_observation(observation, where)
    about = f"{where}'s info"
    return observation, plain(_with_keys(info, about, ("state", "level_hash")), about)


def stepped(env: AgentEnv, result: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Checks and converts the result of `AgentEnv.step`.

    Raises:
        AnswerError: It violates the contract, so that the turn is useless for training.
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
    if "placed" in info:
        info["placed"] = _places(info["placed"], f"{about}: placed")
    return (
        observation,
        number(reward, f"{where}'s reward"),
        flag(terminated, f"{where}'s terminated"),
        flag(truncated, f"{where}'s truncated"),
        plain(info, about),
    )


def kind(value: Any) -> str:
    """A value in an error message: its type, and its content if short."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if value is None:
        return "None"
    return f"{' '.join(repr(value).split()):.60} ({type(value).__module__}.{type(value).__name__})"


def _item(value: Any) -> Any:
    """The Python value of a numpy or torch scalar, also of a 0-d array."""
    return value.item() if getattr(value, "shape", None) == () else value


def _places(parts: Any, what: str) -> list[tuple[int, float]]:
    if not isinstance(parts, list | tuple) or any(np.shape(part) != (2,) for part in parts):
        raise AnswerError(f"{what} is {kind(parts)}; it must be a list of pairs (end, amount)")
    return [(int(number(end, what)), number(amount, what)) for end, amount in parts]


def _with_keys(found: Any, what: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or not set(keys) <= found.keys():
        holds = f"holds {', '.join(map(str, found))}" if isinstance(found, Mapping) else None
        raise AnswerError(f"{what} {holds or f'is {kind(found)}'}; it must hold {', '.join(keys)}")
    return found


def _check_observation(observation: Any, where: str) -> None:
    if not isinstance(observation, Mapping) or not {"text", "images"} <= observation.keys():
        raise AnswerError(f"{where} shows {kind(observation)}; it must be a dict of text, images")
    text, images = observation["text"], observation["images"]
    if not isinstance(text, str):
        raise AnswerError(f"{where} shows the text {kind(text)}; it must be a str")
    for image in images:
        if getattr(image, "dtype", None) != np.uint8 or image.shape[2:] != (3,) or not image.size:
            raise AnswerError(
                f"{where} shows {kind(image)}; an image is an array uint8 [height, width, 3]"
            )
    if (count := text.count(IMAGE_PLACEHOLDER)) != len(images):
        raise AnswerError(
            f"{where} shows a text that holds {IMAGE_PLACEHOLDER} {count} times for {len(images)} "
            "images; it must hold it once for each"
        )
