"""Runs environments of VAGEN's `GymImageEnv` interface, with their own parsing."""

import asyncio
import hashlib
import importlib
import math
import re
import threading
from collections.abc import Coroutine, Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pydantic import Field, PositiveFloat, field_validator

from vagen.envs.adapters import AdapterError, SeedLevel, seed_level
from vagen.envs.adapters.pictures import frame_of
from vagen.envs.answers import STEP, AnswerError, flag, kind, number, unpacked
from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation, State
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split, check_split
from vagen.envs.parsing import ParsedResponse, PromptFormat

SUCCESS_KEYS = ("success", "is_success", "traj_success")


class GymImageConfig(EnvConfig):
    """Options of an environment written for `GymImageEnv`.

    The environment decides on observations, parsing and rewards. Of the common options only
    `max_steps` (responses) applies.
    """

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"reward": 1.0},
        "vagen-new": {"reward": 1.0},
    }

    prompt_format: PromptFormat = "free_think"
    """Not used: the environment has its own format."""
    entry_point: str
    """`module:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The class's `env_config`."""
    example: str = "<think>look</think><answer>wait</answer>"
    """An example response, for checks of prompts and sizes before a run."""
    timeout: PositiveFloat = 600.0
    """Timeout of a call in seconds."""

    @field_validator("entry_point")
    @classmethod
    def _names_a_class(cls, entry_point: str) -> str:
        module, colon, name = entry_point.partition(":")
        if not (module and colon and name.isidentifier()):
            raise ValueError(f"write module:Class; got {entry_point!r}")
        return entry_point

    @field_validator("memory")
    @classmethod
    def _has_no_memory_section(cls, memory: bool) -> bool:
        if memory:
            raise ValueError(
                "a GymImageEnv reads responses itself, and no tag of keep or drop: take another "
                "rollout_manager.context than gate"
            )
        return memory

    @property
    def reads_thought(self) -> bool:
        """Whether the example begins with `<think>`."""
        return self.example.startswith("<think>")


class GymImageAdapter(AgentEnv):
    """An asynchronous environment behind the synchronous contract.

    Its coroutines run in an event loop in a separate thread, so that objects stay with their loop
    and a blocking environment does not block others. It has no expert.
    """

    env_name: ClassVar[str] = "GymImageEnv"
    config_class: ClassVar[type[GymImageConfig]] = GymImageConfig
    has_expert: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    config: GymImageConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Creates the environment; the arguments are those of `AgentEnv`.

        Raises:
            AdapterError: The class cannot be imported or created, or is not a `GymImageEnv`.
        """
        super().__init__(*args, **kwargs)
        self.action_space = spaces.Text(max_length=65_536, min_length=0)
        inner_class = _load(self.config.entry_point)
        self._name = inner_class.__name__
        try:
            self._inner = inner_class(dict(self.config.kwargs))
        except Exception as error:  # any failure of an environment
            raise AdapterError(
                f"{self._name}(env_config) raises {type(error).__name__}: {error}; env_config is "
                f"the option kwargs, {self.config.kwargs}"
            ) from error
        self._reads_tokens = "response_token_ids" in signature(self._inner.step).parameters
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hangs = False
        self._prompt: str | None = None
        self._state: State = {}
        self._turns = 0
        self._running = False

    @classmethod
    def sample_level(cls, config: GymImageConfig, seed: int, split: Split) -> SeedLevel:
        """The environment's seed for `reset(seed=seed)` in this split."""
        return seed_level(f"GymImageEnv {config.entry_point}", config.kwargs, seed, split)

    def system_prompt(self) -> str:
        """The environment's system prompt.

        Raises:
            AdapterError: It contains images.
        """
        if self._prompt is None:
            shown = self._run(self._inner.system_prompt())
            prompt = _observation("" if shown is None else shown, f"{self._name}.system_prompt()")
            if prompt["images"]:
                raise AdapterError(
                    f"{self.config.entry_point} has pictures in its system prompt, which stands "
                    "for every level; show them in the first observation"
                )
            self._prompt = prompt["text"]
        return self._prompt

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the episode of a seed; `options` may hold `split`."""
        super().reset(seed=seed)
        split = check_split((options or {}).get("split", self.split))
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        level = self.sample_level(self.config, seed, split)
        where, result = f"{self._name}.reset()", self._run(self._inner.reset(level.seed))
        shown, _ = unpacked(result, where, ("observation", "info"))
        observation = _observation(shown, where)
        self._turns, self._running = 0, True
        self._state = self._state_of(observation)
        self.system_prompt()  # cached for later calls
        return observation, {"state": self._state, "level_hash": level.level_hash}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Passes the response on unchanged."""
        if not self._running:
            raise ResetNeeded("the episode is over or was never started: call reset first")
        more: dict[str, Any] = {}
        if self._reads_tokens:
            more = {"response_token_ids": [*map(ord, action)], "tokenizer": Characters()}
        where, result = f"{self._name}.step()", self._run(self._inner.step(action, **more))
        five = isinstance(result, tuple) and len(result) == len(STEP)
        parts = STEP if five else ("observation", "reward", "done", "info")
        shown, reward, done, *ends, info = unpacked(result, where, parts)
        found = _Info(info, f"{where}'s info")
        over = flag(done, f"{where}'s {parts[2]}")
        if five:
            cut = flag(ends[0], f"{where}'s truncated")
        else:
            cut = over and found.flag("truncated", False)
        self._turns += 1
        success = any(found.flag(key, False) for key in SUCCESS_KEYS)
        terminated = not cut and (success or over)
        truncated = not terminated and (cut or self._turns >= self.config.max_steps)
        self._running = not (terminated or truncated)
        # The last observation is not shown, and many environments return nothing there.
        nothing = terminated and (shown is None or shown == {})
        observation, before = _observation("" if nothing else shown, where), self._state
        self._state = self._state_of(observation)
        turn = found.part("metrics").part("turn_metrics")
        valid = turn.flag("action_is_valid", found.flag("format_correct", True))
        parsed = ParsedResponse(format_correct=valid, actions=found.texts("actions"))
        scale = self.config.reward_values["reward"]
        paid, placed = _rewards(reward, action, f"{where}'s reward")
        paid *= scale
        effective = turn.flag("action_is_effective", self._state != before)
        return (
            observation,
            paid,
            terminated,
            truncated,
            {
                "rewards": {"env": paid, "format": 0.0},
                "placed": [(end, scale * amount) for end, amount in placed],
                "parsed": parsed.to_dict(),
                "metrics": {"action_is_valid": valid, "action_is_effective": effective},
                "success": success,
                "state": self._state,
            },
        )

    def state(self) -> State:
        """A digest of the observation, since the true state is unknown."""
        return self._state

    def expert_response(self) -> str:
        """`example`: the environment has no expert."""
        return self.config.example

    def close(self) -> None:
        """Closes the environment, unless one of its calls hangs."""
        try:
            if not self._hangs:
                self._run(self._inner.close())
        finally:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _state_of(self, observation: Observation) -> State:
        digest = hashlib.sha256(observation["text"].encode("utf-8", "replace"))
        for image in observation["images"]:
            digest.update(image.tobytes())
        return {
            "env_name": self.env_name,
            "entry_point": self.config.entry_point,
            "observation": digest.hexdigest(),
        }

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(self.config.timeout)
        except TimeoutError:
            if future.done():
                raise  # raised by the environment
            self._hangs = True
            future.cancel()
            raise TimeoutError(
                f"{self.config.entry_point} took more than {self.config.timeout:g} s"
            ) from None


class Characters:
    """Tokenizer of responses whose tokens are their characters.

    An environment that rewards tokens gets it with the ids of a response, so that it depends on no
    model; the rewards are then given to the tokens that complete those characters.

    >>> Characters().decode([72, 105], skip_special_tokens=True)
    'Hi'
    """

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        """The text of some ids."""
        return "".join(map(chr, token_ids))


def _rewards(reward: Any, action: str, what: str) -> tuple[float, list[tuple[int, float]]]:
    """The sum of a reward, and the ends in characters of its parts, if it is one per token."""
    if not isinstance(reward, list | tuple | np.ndarray) or np.ndim(reward) != 1:
        return number(reward, what), []
    if len(reward) != len(action):
        raise AnswerError(
            f"{what} has {len(reward)} numbers; it must be one number, or one for each of the "
            f"{len(action)} response_token_ids"
        )
    amounts = [number(amount, what) for amount in reward]
    placed = [(i + 1, amount) for i, amount in enumerate(amounts) if amount]
    return math.fsum(amounts), placed


class _Info:
    """The `info` of an environment, with checked access."""

    def __init__(self, found: Any, what: str) -> None:
        self._found, self._what = found, what

    def flag(self, key: str, default: bool) -> bool:
        return flag(self._found.get(key, default), f"{self._what}[{key!r}]")

    def part(self, key: str) -> "_Info":
        found, what = self._found.get(key, {}), f"{self._what}[{key!r}]"
        if not isinstance(found, Mapping):
            raise AnswerError(f"{what} is {kind(found)}; it must be a dict, or left out")
        return _Info(found, what)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; also accepts a single one."""
        found = self._found.get(key)
        if found is None:
            return ()
        if isinstance(found, str):
            return (found,)
        if not isinstance(found, list | tuple | np.ndarray):
            raise AnswerError(f"{self._what}[{key!r}] is {kind(found)}; it must be a list")
        return tuple(map(str, found))


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _load(entry_point: str) -> Any:
    module, _, name = entry_point.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AdapterError(
            f"env_config.entry_point {entry_point!r} cannot be loaded: {error}; its module must "
            "be installed or on PYTHONPATH"
        ) from error
    missing = [
        method
        for method in ("reset", "step", "system_prompt", "close")
        if not asyncio.iscoroutinefunction(getattr(found, method, None))
    ]
    if missing:
        raise AdapterError(
            f"{entry_point} is no GymImageEnv: it has no coroutine {', '.join(missing)}"
        )
    return found


def _observation(shown: Any, where: str) -> Observation:
    """Converts an observation to this project's format.

    Args:
        shown: A string, or a dict of `obs_str` and `multi_modal_input` with images by placeholder.
            The text has the placeholder once per image; a single image need not be in a list.
        where: Class and method, for error messages.

    Raises:
        AnswerError: It is neither, or placeholders and images do not match.
    """
    if isinstance(shown, str):
        shown = {"obs_str": shown}
    if not isinstance(shown, Mapping) or not isinstance(shown.get("obs_str"), str):
        raise AnswerError(
            f"{where} shows {kind(shown)}; it must be a text, or a dict of obs_str, a text, and "
            "multi_modal_input"
        )
    text = str(shown["obs_str"])
    pictures = shown.get("multi_modal_input")
    pictures = {} if pictures is None else pictures
    if not isinstance(pictures, Mapping):
        raise AnswerError(
            f"{where}'s multi_modal_input is {kind(pictures)}; it must be a dict of placeholder "
            "and list of pictures"
        )
    left = {key: _listed(found) for key, found in pictures.items()}
    left = {key: found for key, found in left.items() if found or key == IMAGE_PLACEHOLDER}
    left.setdefault(IMAGE_PLACEHOLDER, [])
    for key, found in left.items():
        if (count := text.count(key)) != len(found):
            raise AnswerError(
                f"{where}'s obs_str holds {key} {count} times for {len(found)} pictures in "
                "multi_modal_input; it must hold it once for each"
            )
    shape = re.compile("|".join(re.escape(key) for key in sorted(left, key=lambda key: -len(key))))
    images = tuple(
        frame_of(left[key].pop(0), f"{where}'s picture at {key}") for key in shape.findall(text)
    )
    return Observation(text=shape.sub(IMAGE_PLACEHOLDER, text), images=images)


def _listed(found: Any) -> list[Any]:
    """Images as a list; also accepts a single one."""
    if found is None:
        return []
    if isinstance(found, np.ndarray):
        return [found] if found.ndim < 4 else list(found)
    return list(found) if isinstance(found, list | tuple) else [found]
