"""Adapts Gymnasium environments with discrete actions and `rgb_array` images."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from random import Random
from threading import Lock
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt, field_validator, model_validator

from vagen.envs.adapters import AdapterError, SeedLevel, seed_level
from vagen.envs.adapters.pictures import frame_of
from vagen.envs.adapters.success import read_rule
from vagen.envs.answers import STEP, AnswerError, flag, kind, number, unpacked
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation, State
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split
from vagen.envs.parsing import (
    ActionReader,
    PromptFormat,
    ResponseParser,
    SectionName,
    named,
    write_response,
)
from vagen.envs.turns import TurnEnv

MAX_NUMBERS = 512
"""Maximum size of an array in states and texts. States have a digest of larger ones, and text mode
rejects them."""
SCREEN = "SDL_VIDEODRIVER"
"""Environment variable for pygame's video driver."""

_drawing = Lock()
"""Held during rendering: many environments use pygame, which has globals."""
_screen = Lock()
"""Held while `SCREEN` is changed."""


class GymnasiumConfig(EnvConfig):
    """Options of an adapted Gymnasium environment."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "reward": 1.0, "success": 0.0},
        "vagen-new": {"format": 0.1, "reward": 1.0, "success": 0.0},
    }

    prompt_format: PromptFormat = "free_think"
    """`free_think` or `no_think`, since there are no state texts."""
    max_actions_per_step: PositiveInt = 1
    """Maximum actions in one response."""
    id: str
    """Gymnasium's id, such as `CartPole-v1` or `my_module:MyEnv-v0`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `gymnasium.make`."""
    actions: dict[str, int] = Field(min_length=1)
    """Action names and their numbers in the environment."""
    prompt: str = Field(min_length=1)
    """Description of the task, the observation and the actions."""
    success: str = "terminated and reward > 0"
    """Success rule, such as `terminated and reward > 0`, `return >= 200`, `info.is_success`."""
    frame_size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width of scaled images in pixels; null does not scale."""

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

    @model_validator(mode="after")
    def _can_be_played(self) -> "GymnasiumConfig":
        parser = ResponseParser(
            layout=self.layout,
            tags=self.tags,
            read_action=named(tuple(self.actions)),
            separator=self.action_sep,
            max_actions=1,
        )
        for word in self.actions:
            texts: dict[SectionName, str] = {"think": "so", "answer": word, "memory": "keep"}
            if parser.parse(write_response(self.layout, self.tags, texts)).actions != (word,):
                raise ValueError(
                    f"actions: no answer can play {word!r}; a name is words without spaces around "
                    f"them, without tags and without action_sep, which is {self.action_sep!r}"
                )
        return self


class GymnasiumEnv(TurnEnv):
    """A Gymnasium environment whose actions have names.

    It has no expert, so a warm start is impossible. `expert_response` plays at random, for checks
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
            AdapterError: Gymnasium cannot create it, its actions differ, or it has no observation
                that fits the configuration.
            AnswerError: Its `reset` or `render` returns an invalid value.
        """
        self._gym: gymnasium.Env[Any, Any] | None = None
        super().__init__(*args, **kwargs)
        self._is_success = read_rule(self.config.success)

    @classmethod
    def sample_level(cls, config: GymnasiumConfig, seed: int, split: Split) -> SeedLevel:
        """The environment's seed for `reset(seed=seed)` in this split."""
        return seed_level(f"Gymnasium {config.id}", config.kwargs, seed, split)

    @property
    def inner(self) -> gymnasium.Env[Any, Any]:
        """The adapted environment, created on first use."""
        if self._gym is None:
            draws = self.config.render_mode == "vision" or self.render_mode is not None
            self._gym, self._drawn = _make(self.config, draws)
        return self._gym

    def _frame_size(self) -> tuple[int, int]:
        assert self.inner
        return self.config.frame_size or self._drawn

    def _load_level(self, level: SeedLevel, seed: int) -> None:
        result = self.inner.reset(seed=level.seed)
        observation, _ = unpacked(result, f"{_name(self.inner)}.reset()", ("observation", "info"))
        self._facts: dict[str, Any] = {"reward": 0.0, "return": 0.0, "steps": 0}
        self._keep(observation)
        self._random = Random(level.seed)

    def _keep(self, observation: Any) -> None:
        kept = _Kept(observation)
        self._seen, self._texts = kept.value, kept.texts

    def _action_reader(self) -> ActionReader:
        return named(tuple(self.config.actions))

    def _move(self, action: str) -> tuple[float, bool]:
        where = f"{_name(self.inner)}.step()"
        result = self.inner.step(self.config.actions[action])
        observation, reward, terminated, truncated, info = unpacked(result, where, STEP)
        self._keep(observation)
        reward = number(reward, f"{where}'s reward")
        self._facts = {
            **{f"info.{key}": value for key, value in info.items()},
            "reward": reward,
            "return": self._facts["return"] + reward,
            "steps": self._facts["steps"] + 1,
            "terminated": flag(terminated, f"{where}'s terminated"),
            "truncated": flag(truncated, f"{where}'s truncated"),
        }
        paid = self._rewards["reward"] * reward + self._rewards["success"] * self._is_won()
        return paid, self._facts["terminated"] or self._facts["truncated"]

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Like `TurnEnv.step`; also truncates when the environment does."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated and not self._facts["terminated"]:
            terminated, truncated = False, True
        return observation, reward, terminated, truncated, info

    def _is_won(self) -> bool:
        if "terminated" not in self._facts:
            return False
        try:
            return self._is_success(self._facts)
        except AnswerError as error:
            raise AnswerError(
                f"{_name(self.inner)}.step(): {error} (env_config.success is "
                f"{self.config.success!r}; numbers are compared, as in `info.KEY > 0`)"
            ) from error

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
        """The rendered image, scaled to `frame_size`."""
        frame = _frame(self.inner)
        if self.config.frame_size is None or frame.shape[:2] == self.config.frame_size:
            return frame.copy()
        height, width = self.config.frame_size
        image = Image.fromarray(frame).resize((width, height))
        return np.asarray(image).copy()

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        """Adds text parts of the observation, such as a mission, to the image."""
        shown, images = super()._shown()
        if not images:
            return shown.replace(IMAGE_PLACEHOLDER, "image"), ()
        texts = [text.replace(IMAGE_PLACEHOLDER, "image") for text in self._texts]
        return "\n".join([*texts, shown]), images

    def text_view(self) -> str:
        """The observation as text or JSON, with five significant digits."""
        seen = self._seen
        return seen if isinstance(seen, str) else json.dumps(_rounded(seen))

    def state_text(self, state: State) -> str:
        """Empty, as no layout of this environment has state texts."""
        return ""

    def _rules(self) -> str:
        return self.config.prompt

    def close(self) -> None:
        """Closes the environment."""
        if self._gym is not None:
            self._gym.close()
            self._gym = None


def _make(config: GymnasiumConfig, draws: bool) -> tuple[gymnasium.Env[Any, Any], tuple[int, int]]:
    """The environment after a first reset, and the size of its images if it renders.

    Tries first without a pygame display, on which some environments draw black images.
    """
    try:
        return _tried(config, draws)
    except (AdapterError, AnswerError):
        raise
    except Exception as error:  # any failure of an environment
        problem = AdapterError(
            f"Gymnasium cannot make {config.id!r}: {type(error).__name__}: {error}".rstrip(": ")
        )
        problem.__cause__ = error
    with _screen:
        before = os.environ.get(SCREEN)
        os.environ[SCREEN] = "dummy"
        try:
            made = _tried(config, draws)
        except Exception:
            del os.environ[SCREEN]
            if before is not None:
                os.environ[SCREEN] = before
            raise problem from problem.__cause__
    warnings.warn(
        f"{config.id} draws on a screen, and this machine has none: {SCREEN} is dummy from now on "
        "in this process, in which other environments may draw black",
        stacklevel=2,
    )
    return made


def _tried(config: GymnasiumConfig, draws: bool) -> tuple[gymnasium.Env[Any, Any], tuple[int, int]]:
    # Its time limit is removed, as `max_steps` is the limit here.
    options: dict[str, Any] = {"max_episode_steps": -1, **config.kwargs}
    if draws:
        options["render_mode"] = "rgb_array"
    env = gymnasium.make(config.id, disable_env_checker=True, **options)
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise AdapterError(
            f"{config.id} has the action space {space}; only discrete actions can have names"
        )
    for word, action in config.actions.items():
        if not space.contains(action):
            raise AdapterError(f"{config.id} has no action {action} ({word!r}): it has {space}")
    if draws and "rgb_array" not in env.metadata.get("render_modes", ()):
        raise AdapterError(
            f"{config.id} draws no pictures: it has no render_mode 'rgb_array'; "
            "env_config.render_mode: text shows its observations"
        )
    where = f"{_name(env)}.reset()"
    observation, _ = unpacked(env.reset(seed=0), where, ("observation", "info"))
    if config.render_mode == "text" and (large := _Kept(observation).left_out):
        raise AdapterError(
            f"text mode cannot show what {where} returns: {large[0]}, and a text holds at most "
            f"{MAX_NUMBERS} numbers of an array; take render_mode: vision"
        )
    height, width = _frame(env).shape[:2] if draws else (1, 1)
    return env, (height, width)


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return type(env.unwrapped).__name__


def _frame(env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    with _drawing:
        return frame_of(env.render(), f"{_name(env)}.render()'s picture")


class _Kept:
    """A JSON-serialisable observation: its `value`, the `texts` in it, and what was `left_out`.

    Arrays of more than `MAX_NUMBERS` are replaced by digests, so that states differ.
    """

    def __init__(self, observation: Any) -> None:
        self.texts: list[str] = []
        self.left_out: list[str] = []
        self.value = self._keep(observation, ())

    def _keep(self, part: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(part, Mapping):
            return {str(key): self._keep(each, (*path, key)) for key, each in part.items()}
        if isinstance(part, tuple | list):
            return [self._keep(each, (*path, index)) for index, each in enumerate(part)]
        name = ".".join(map(str, path))
        if isinstance(part, str):
            self.texts.append(f"{name}: {part}" if name else part)
            return str(part)
        array = np.asarray(part)
        if array.dtype.kind in "biufU" and array.size <= MAX_NUMBERS:
            return _finite(array.tolist())
        if part is None:
            return None
        self.left_out.append(f"{name or 'it'} is {kind(part)}")
        if array.dtype.kind == "O":
            return f"({type(part).__name__})"
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _finite(value: Any) -> Any:
    """Replaces non-finite numbers, which JSON lacks, by words."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rounded(value: Any) -> Any:
    """Rounds all numbers to five significant digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
