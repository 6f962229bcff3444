"""The contract of an environment: a Gymnasium environment that speaks text and images."""

from abc import abstractmethod
from typing import Any, ClassVar, TypedDict

import gymnasium
import numpy as np
from numpy.typing import NDArray

IMAGE_PLACEHOLDER = "<image>"

State = dict[str, Any]
"""JSON-able ground truth: `env_name` plus the environment's own keys (grid positions, ...)."""


class Observation(TypedDict):
    """What the agent is shown."""

    text: str
    """Holds `IMAGE_PLACEHOLDER` exactly once per image, in order."""
    images: tuple[NDArray[np.uint8], ...]
    """Frames, each uint8 [height, width, 3]; empty in text mode."""


class AgentEnv(gymnasium.Env[Observation, str]):
    """An environment whose action is a model response and whose observation is a chat message.

    `reset(seed=, options=)` returns `(observation, info)` with
    `info = {"state": State, "level_hash": str}`: the same seed gives the same level and, with the
    same responses, the same episode, in any process.

    `step(response)` returns `(observation, reward, terminated, truncated, info)` with

    - `info["rewards"]`: `{"env": float, "format": float}`, which sum to `reward`;
    - `info["parsed"]`: `ParsedResponse.to_dict()` (`format_correct`, `actions`, `observation`,
      `reasoning`, `prediction`, `answer`);
    - `info["metrics"]`: `{"action_is_valid": bool, "action_is_effective": bool}`;
    - `info["success"]`: bool, the trajectory metric so far;
    - `info["state"]`: ground truth after the step.
    """

    env_name: ClassVar[str]

    @abstractmethod
    def system_prompt(self) -> str:
        """Rules and response format with an example; does not depend on the level."""

    @abstractmethod
    def state(self) -> State:
        """Ground truth now, for the judge and the report; JSON-able."""

    @abstractmethod
    def expert_response(self) -> str:
        """A response in the configured layout: an optimal action and true state texts."""
