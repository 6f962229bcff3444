"""Runs an environment of VAGEN's `GymImageEnv` interface: asynchronous, with its own parsing."""

import asyncio
import functools
import hashlib
import importlib
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pydantic import Field, PositiveFloat, field_validator

from vagen.envs.adapters.seeds import AdapterError, SeedLevel, seed_level
from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation, State
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split, check_split
from vagen.envs.parsing import ParsedResponse, PromptFormat

SUCCESS_KEYS = ("success", "is_success", "traj_success")


class GymImageConfig(EnvConfig):
    """Options of an environment written for `GymImageEnv`.

    What the environment shows, reads and pays is its own affair: of the common options only
    `max_steps` (responses) has a meaning.
    """

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"reward": 1.0},
        "vagen-new": {"reward": 1.0},
    }

    prompt_format: PromptFormat = "free_think"
    """Not used: the environment asks for its own format."""
    entry_point: str
    """`module:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The class's `env_config`."""
    example: str = "<think>look</think><answer>wait</answer>"
    """Some response, for checks of prompts and sizes before a run."""
    timeout: PositiveFloat = 600.0
    """Seconds that a call may take."""

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


class GymImageAdapter(AgentEnv):
    """An asynchronous environment behind the synchronous contract.

    Its coroutines run in one event loop of the process, in a thread of its own, so that objects
    bound to a loop stay with theirs. It has no expert.
    """

    env_name: ClassVar[str] = "GymImageEnv"
    config_class: ClassVar[type[GymImageConfig]] = GymImageConfig
    has_expert: ClassVar[bool] = False

    config: GymImageConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Creates the environment; the arguments are those of `AgentEnv`.

        Raises:
            AdapterError: If the class cannot be imported or is no such environment.
        """
        super().__init__(*args, **kwargs)
        self.action_space = spaces.Text(max_length=65_536, min_length=0)
        self._inner = _load(self.config.entry_point)(dict(self.config.kwargs))
        self._prompt: str | None = None
        self._state: State = {}
        self._turns = 0
        self._running = False

    @classmethod
    def sample_level(cls, config: GymImageConfig, seed: int, split: Split) -> SeedLevel:
        """The seed that `reset(seed=seed)` hands on in this split."""
        return seed_level(f"GymImageEnv {config.entry_point}", config.kwargs, seed, split)

    def system_prompt(self) -> str:
        """The environment's own.

        Raises:
            AdapterError: If it holds pictures.
        """
        if self._prompt is None:
            prompt = _observation(self._run(self._inner.system_prompt()) or {"obs_str": ""})
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
        shown, _ = self._run(self._inner.reset(level.seed))
        observation = _observation(shown)
        self._turns, self._running = 0, True
        self._state = self._state_of(observation)
        return observation, {"state": self._state, "level_hash": level.level_hash}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Hands the response over as it is."""
        if not self._running:
            raise ResetNeeded("the episode is over or was never started: call reset first")
        shown, reward, done, found = self._run(self._inner.step(action))
        observation, before = _observation(shown), self._state
        self._turns += 1
        self._state = self._state_of(observation)
        success = any(bool(found.get(key)) for key in SUCCESS_KEYS)
        terminated = bool(done) or success
        truncated = not terminated and self._turns >= self.config.max_steps
        self._running = not (terminated or truncated)
        turn = found.get("metrics", {}).get("turn_metrics", {})
        valid = bool(turn.get("action_is_valid", found.get("format_correct", True)))
        parsed = ParsedResponse(
            format_correct=valid, actions=tuple(map(str, found.get("actions") or ()))
        )
        paid = float(reward) * self.config.reward_values["reward"]
        info = {
            "rewards": {"env": paid, "format": 0.0},
            "parsed": parsed.to_dict(),
            "metrics": {
                "action_is_valid": valid,
                "action_is_effective": bool(turn.get("action_is_effective", self._state != before)),
            },
            "success": success,
            "state": self._state,
        }
        return observation, paid, terminated, truncated, info

    def state(self) -> State:
        """A digest of what is shown: nothing else is known."""
        return self._state

    def expert_response(self) -> str:
        """`example`: the environment has no expert."""
        return self.config.example

    def close(self) -> None:
        """Closes the environment."""
        self._run(self._inner.close())

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
        future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
        try:
            return future.result(self.config.timeout)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(
                f"{self.config.entry_point} took more than {self.config.timeout:g} s"
            ) from None


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


def _observation(shown: dict[str, Any]) -> Observation:
    """An observation in this project's form.

    Raises:
        ValueError: If placeholders and pictures do not match.
    """
    text = str(shown["obs_str"])
    pictures = (shown.get("multi_modal_input") or {}).get(IMAGE_PLACEHOLDER) or []
    if text.count(IMAGE_PLACEHOLDER) != len(pictures):
        raise ValueError(
            f"obs_str holds {IMAGE_PLACEHOLDER} {text.count(IMAGE_PLACEHOLDER)} times for "
            f"{len(pictures)} pictures"
        )
    images = tuple(np.asarray(picture.convert("RGB"), np.uint8) for picture in pictures)
    return Observation(text=text, images=images)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gym-image-env", daemon=True).start()
    return loop
