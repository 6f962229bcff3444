"""Any Gymnasium environment with discrete actions and `rgb_array` pictures, by configuration."""

import hashlib
import json
import os
from collections import OrderedDict
from random import Random
from threading import Lock
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt, field_validator

from vagen.envs.adapters.seeds import AdapterError, SeedLevel, seed_level
from vagen.envs.adapters.success import read_rule
from vagen.envs.base import Observation, State
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split
from vagen.envs.parsing import ActionReader, PromptFormat, named
from vagen.envs.turns import TurnEnv

SHORT = 64
"""Numbers of an observation that is kept in states as it is; of a larger one its digest is."""


_drawing = Lock()
"""Held while a picture is drawn: many environments draw with pygame, which has globals."""


class GymnasiumConfig(EnvConfig):
    """Options of an adapted Gymnasium environment."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "reward": 1.0, "success": 0.0},
        "vagen-new": {"format": 0.1, "reward": 1.0, "success": 0.0},
    }

    prompt_format: PromptFormat = "free_think"
    """`free_think` or `no_think`: nothing is known of the state that a text could say."""
    max_actions_per_step: PositiveInt = 1
    """Most actions in one response."""
    id: str
    """Gymnasium's id, such as `CartPole-v1` or `my_module:MyEnv-v0`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `gymnasium.make`."""
    actions: dict[str, int] = Field(min_length=1)
    """Word of each action -> its number in the environment."""
    prompt: str = Field(min_length=1)
    """The task, what is seen and the actions, in words."""
    success: str = "terminated and reward > 0"
    """When an episode is solved, such as `terminated and reward > 0`, `return >= 200`,
    `info.is_success`."""
    frame_size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width that pictures are brought to, in pixels; null leaves them."""

    @field_validator("prompt_format")
    @classmethod
    def _has_no_state_texts(cls, prompt_format: PromptFormat) -> PromptFormat:
        if prompt_format not in ("free_think", "no_think"):
            raise ValueError(
                f"{prompt_format} asks for state texts, and nothing is known of the states of a "
                "Gymnasium environment; take free_think or no_think"
            )
        return prompt_format

    @field_validator("success")
    @classmethod
    def _is_rule(cls, rule: str) -> str:
        read_rule(rule)
        return rule

    @field_validator("actions")
    @classmethod
    def _are_words(cls, actions: dict[str, int]) -> dict[str, int]:
        if len({word.casefold() for word in actions}) < len(actions):
            raise ValueError("names of actions differ by more than case")
        return actions


class GymnasiumEnv(TurnEnv):
    """A Gymnasium environment whose actions have names.

    It has no expert: a warm start is impossible, and `expert_response` plays at random, for checks
    of prompts and sizes.
    """

    env_name: ClassVar[str] = "Gymnasium"
    config_class: ClassVar[type[GymnasiumConfig]] = GymnasiumConfig
    has_expert: ClassVar[bool] = False
    example_state: ClassVar[State] = {}

    config: GymnasiumConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Creates the environment; the arguments are those of `TurnEnv`.

        Raises:
            AdapterError: If Gymnasium cannot make it, or it has other actions or no pictures.
        """
        self._gym: gymnasium.Env[Any, Any] | None = None
        super().__init__(*args, **kwargs)
        self._is_success = read_rule(self.config.success)

    @classmethod
    def sample_level(cls, config: GymnasiumConfig, seed: int, split: Split) -> SeedLevel:
        """The seed that `reset(seed=seed)` hands on in this split."""
        return seed_level(f"Gymnasium {config.id}", config.kwargs, seed, split)

    @property
    def inner(self) -> gymnasium.Env[Any, Any]:
        """The environment itself, made when it is first needed."""
        if self._gym is None:
            self._gym = _make(self.config)
        return self._gym

    def _frame_size(self) -> tuple[int, int]:
        height, width, _ = _frame(self.inner).shape
        return self.config.frame_size or (height, width)

    def _load_level(self, level: SeedLevel, seed: int) -> None:
        observation, _ = self.inner.reset(seed=level.seed)
        self._facts: dict[str, Any] = {"reward": 0.0, "return": 0.0, "steps": 0}
        self._seen = _jsonable(observation)
        self._random = Random(level.seed)

    def _action_reader(self) -> ActionReader:
        return named(tuple(self.config.actions))

    def _move(self, action: str) -> tuple[float, bool]:
        step = self.inner.step(self.config.actions[action])
        observation, reward, terminated, truncated, info = step
        self._seen = _jsonable(observation)
        self._facts = {
            **{f"info.{key}": value for key, value in info.items()},
            "reward": float(reward),
            "return": self._facts["return"] + float(reward),
            "steps": self._facts["steps"] + 1,
            "terminated": terminated,
            "truncated": truncated,
        }
        paid = self._rewards["reward"] * float(reward)
        return paid + self._rewards["success"] * self._is_won(), terminated or truncated

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """As `TurnEnv.step`; where the environment truncates, the episode is truncated."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated and not self._facts["terminated"]:
            terminated, truncated = False, True
        return observation, reward, terminated, truncated, info

    def _is_won(self) -> bool:
        return "terminated" in self._facts and self._is_success(self._facts)

    def _read_state(self) -> State:
        return {"env_name": self.env_name, "id": self.config.id, "observation": self._seen}

    def _plan(self, count: int) -> list[str]:
        words = list(self.config.actions)
        return [words[int(self._random.random() * len(words))] for _ in range(count)]

    def _after(self, state: State, actions: list[str]) -> State:
        return state

    def example_response(self) -> str:
        """A response with the first action."""
        return self._write([next(iter(self.config.actions))], {}, {})

    def picture(self) -> NDArray[np.uint8]:
        """What the environment renders, brought to `frame_size`."""
        frame = _frame(self.inner)
        if self.config.frame_size is None or frame.shape[:2] == self.config.frame_size:
            return frame.copy()
        height, width = self.config.frame_size
        image = Image.fromarray(frame).resize((width, height))
        return np.asarray(image).copy()

    def text_view(self) -> str:
        """The observation as JSON."""
        return json.dumps(self._seen)

    def state_text(self, state: State) -> str:
        """Nothing: no layout of this environment holds a state text."""
        return ""

    def _rules(self) -> str:
        return self.config.prompt

    def close(self) -> None:
        """Closes the environment."""
        if self._gym is not None:
            self._gym.close()
            self._gym = None


def _make(config: GymnasiumConfig) -> gymnasium.Env[Any, Any]:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into arrays, on no screen
    try:
        # Its own time limit is left out: `max_steps` is the limit here.
        options: dict[str, Any] = {
            "max_episode_steps": -1,
            **config.kwargs,
            "render_mode": "rgb_array",
        }
        env = gymnasium.make(config.id, disable_env_checker=True, **options)
        env.reset(seed=0)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise AdapterError(f"Gymnasium cannot make {config.id!r}: {error}") from error
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise AdapterError(
            f"{config.id} has the action space {space}; only discrete actions can have names"
        )
    for word, number in config.actions.items():
        if not space.contains(number):
            raise AdapterError(f"{config.id} has no action {number} ({word!r}): it has {space}")
    if "rgb_array" not in env.metadata.get("render_modes", ()):
        raise AdapterError(f"{config.id} draws no pictures: it has no render_mode 'rgb_array'")
    return env


def _frame(env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    try:
        with _drawing:
            frame = np.asarray(env.render())
    except gymnasium.error.DependencyNotInstalled as error:
        raise AdapterError(f"pictures cannot be drawn: {error}") from error
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise AdapterError(f"pictures are [height, width, 3]; got an array of shape {frame.shape}")
    return frame.astype(np.uint8, copy=False)


def _jsonable(observation: Any) -> Any:
    """An observation for the state: as it is where it is small, else its digest."""
    if isinstance(observation, dict | OrderedDict):
        return {str(key): _jsonable(value) for key, value in observation.items()}
    if isinstance(observation, tuple | list):
        return [_jsonable(value) for value in observation]
    if isinstance(observation, str):
        return observation
    array = np.asarray(observation)
    if array.dtype == object:
        return hashlib.sha256(repr(observation).encode()).hexdigest()
    if array.size > SHORT:
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return array.tolist()
