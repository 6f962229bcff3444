"""Adapts Gymnasium environments with discrete actions and `rgb_array` images."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from threading import Lock
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt

from vagen.envs.adapters import AdapterError, SeedLevel, seed_level
from vagen.envs.adapters.foreign import ForeignConfig, ForeignEnv
from vagen.envs.adapters.pictures import frame_of
from vagen.envs.answers import AnswerError, kind, unpacked
from vagen.envs.base import IMAGE_PLACEHOLDER, State
from vagen.envs.levels import Split

MAX_NUMBERS = 512
"""Maximum size of an array in states and texts. States have a digest of larger ones, and text mode
rejects them."""
SCREEN = "SDL_VIDEODRIVER"
"""Environment variable for pygame's video driver."""

_drawing = Lock()
"""Held during rendering: many environments use pygame, which has globals."""
_screen = Lock()
"""Held while `SCREEN` is changed."""


class GymnasiumConfig(ForeignConfig):
    """Options of an adapted Gymnasium environment."""

    id: str
    """Gymnasium's id, such as `CartPole-v1` or `my_module:MyEnv-v0`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `gymnasium.make`."""
    actions: dict[str, int] = Field(min_length=1)
    """Action names and their numbers in the environment."""
    frame_size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width of scaled images in pixels; null does not scale."""


class GymnasiumEnv(ForeignEnv):
    """A Gymnasium environment whose actions have names."""

    env_name: ClassVar[str] = "Gymnasium"
    config_class: ClassVar[type[GymnasiumConfig]] = GymnasiumConfig

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
        self._begin(level.seed)
        self._keep(observation)

    def _keep(self, observation: Any) -> None:
        kept = _Kept(observation)
        self._seen, self._texts = kept.value, kept.texts

    def _step_name(self) -> str:
        return f"{_name(self.inner)}.step()"

    def _move(self, action: str) -> tuple[float, bool]:
        return self._keep_step(self.inner.step(self.config.actions[action]), self._keep)

    def _read_state(self) -> State:
        return {"env_name": self.env_name, "id": self.config.id, "observation": self._seen}

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
