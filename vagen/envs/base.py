"""The contract of environments: Gymnasium environments with text and images."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypedDict

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vagen.envs.claims import Claim, read_claims, read_object, score_claims
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Level, Split, check_split

IMAGE_PLACEHOLDER = "<image>"

State = dict[str, Any]
"""JSON-serialisable true state, such as positions on a grid; ours have `env_name`."""


class Observation(TypedDict):
    """An observation of the agent."""

    text: str
    """Text with `IMAGE_PLACEHOLDER` once per image, in order."""
    images: tuple[NDArray[np.uint8], ...]
    """Frames, each uint8 [height, width, 3]; empty in text mode."""


class AgentEnv(gymnasium.Env[Observation, str]):
    """An environment whose action is a model response and whose observation is a chat message.

    `reset(seed=, options=)` returns `(observation, info)` with
    `info = {"state": State, "level_hash": str}`: the same seed gives the same level and, with the
    same responses, the same episode, in any process.

    `step(response)` returns `(observation, reward, terminated, truncated, info)` with

    - `info["rewards"]`: `{"env": float, "format": float}`, which sum to `reward`;
    - `info["placed"]`, optional: `[[end, amount], ...]`, parts of the `env` reward earned by the
      text of the response before the character `end` (`rollout_manager.reward_placement`);
    - `info["parsed"]`: `ParsedResponse.to_dict()` (`format_correct`, `actions`, `observation`,
      `reasoning`, `prediction`, `answer`);
    - `info["metrics"]`: `{"action_is_valid": bool, "action_is_effective": bool}`;
    - `info["success"]`: bool, the trajectory metric so far;
    - `info["state"]`: true state after the step.
    """

    env_name: ClassVar[str]
    config_class: ClassVar[type[EnvConfig]]
    """Class of its options."""
    needs_process: ClassVar[bool] = False
    """Whether its simulator has globals or a graphics context, so that instances need processes."""
    waits: ClassVar[bool] = False
    """Whether calls wait for something other than the CPU; they are made in threads, so that they
    do not block other environments."""
    has_expert: ClassVar[bool] = True
    """Whether `expert_response` plays well. If not, there is no warm start, and it returns an
    arbitrary response, for checks of prompts and sizes."""

    claims: ClassVar[tuple[type[Claim], ...]] = ()
    """Claims of its state texts; with these and `truth` it has a judge. Empty: it has none."""
    calibration_options: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Options, besides the defaults, with which its judge is calibrated."""
    difficulty_name: ClassVar[str] = "difficulty"
    """Meaning of the first number of `difficulty` in reports."""
    gallery_options: ClassVar[dict[str, Any]] = {}
    """Options with which the documentation's gallery shows it."""

    config: EnvConfig

    def __init__(
        self,
        env_config: dict[str, Any] | EnvConfig | None = None,
        *,
        split: str = "train",
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        """Creates the environment.

        Args:
            env_config: Options, as the environment's config class or a dict.
            split: Split of the levels, unless the options of `reset` set another.
            render_mode: Gymnasium's mode; `env_config["render_mode"]` decides on observations.
        """
        if not isinstance(env_config, self.config_class):
            env_config = self.config_class.model_validate(env_config or {})
        self.config = env_config
        self.split: Split = check_split(split)
        self.render_mode = render_mode

    @classmethod
    @abstractmethod
    def sample_level(cls, config: Any, seed: int, split: Split) -> Level:
        """The level of `reset(seed=seed)` in this split; fast, without a simulator.

        Raises:
            LevelError: The options have no such level.
        """

    @classmethod
    def claims_of(cls, config: Any) -> tuple[type[Claim], ...]:
        """The claims that texts can make with these options."""
        return cls.claims

    @classmethod
    def truth(cls, state: State, config: Any) -> list[Claim]:
        """The claims of a complete and correct description of a state."""
        raise NotImplementedError(f"{cls.__name__} has claims, but no truth(state, config)")

    @classmethod
    def read_claims(cls, text: str, config: Any) -> list[Claim] | None:
        """Parses a text in the prompt's wording into claims; None if any part differs."""
        record = read_object(text)
        return read_claims(text if record is None else cls.clauses(record), cls.claims_of(config))

    @classmethod
    def record(cls, state: State, config: Any) -> dict[str, Any] | None:
        """A state in the structured notation; None: the phrases of `truth` are all there is."""
        return None

    @classmethod
    def clauses(cls, record: dict[str, Any]) -> str:
        """The phrases that a structured text stands for; inverse of `record`."""
        return json.dumps(record)

    @classmethod
    def score_claims(cls, said: Sequence[Claim], true: Sequence[Claim], config: Any) -> float:
        """Agreement of consistent claims with `truth`, in [0, 1]."""
        return score_claims(said, true)

    @classmethod
    def difficulty(cls, level: Any) -> tuple[float, ...]:
        """Difficulty of a level, larger is harder; compared lexicographically.

        Has the same length for all levels of the options. Empty if unknown: then a curriculum
        treats all levels as equally hard.

        Args:
            level: A result of `sample_level`.
        """
        return ()

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Distance of a state from success, 0 there; None if success is impossible or unknown."""
        return None

    @classmethod
    def potential(cls, state: State, start: State) -> float:
        """Progress from `start`, in [0, 1]: `1 - d / d_start` of the distances to success.

        It is 0 at the start, beyond it and where success is impossible, and 1 at success.
        """
        left, whole = cls.distance(state), cls.distance(start)
        if left is None or not whole:
            return 0.0
        return min(max(1.0 - left / whole, 0.0), 1.0)

    @abstractmethod
    def system_prompt(self) -> str:
        """Rules and response format with an example; the same for all levels."""

    @abstractmethod
    def state(self) -> State:
        """Current true state for the judge and the report; JSON-serialisable."""

    @abstractmethod
    def expert_response(self) -> str:
        """A response in the configured layout with an optimal action and true state texts."""

    def expert_summary(self) -> str:
        """What a player must know after forgetting all observations; by default the state as JSON.

        The target of warm starts with `context: compact`.
        """
        return json.dumps(self.state(), separators=(",", ":"))
