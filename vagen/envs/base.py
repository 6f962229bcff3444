"""The contract of an environment: a Gymnasium environment that speaks text and images."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypedDict

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vagen.envs.claims import Claim, read_claims, score_claims
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Level, Split, check_split

IMAGE_PLACEHOLDER = "<image>"

State = dict[str, Any]
"""JSON-able ground truth, such as positions on a grid; of our own environments with `env_name`."""


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
    config_class: ClassVar[type[EnvConfig]]
    """Class of its options."""
    needs_process: ClassVar[bool] = False
    """Its simulator has globals or a graphics context: instances live in processes of their own."""
    waits: ClassVar[bool] = False
    """Its calls wait for something else than this processor: each is made in a thread, so that
    nobody waits with it."""
    has_expert: ClassVar[bool] = True
    """Whether `expert_response` plays well. If not, there is nothing to warm-start from, and it
    only gives some response, for checks of prompts and sizes."""

    claims: ClassVar[tuple[type[Claim], ...]] = ()
    """What its state texts can claim: with these and `truth` it has a judge. Empty: it has none."""

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
            env_config: options, as the environment's config class or as a dict for it.
            split: which levels `reset` draws from, unless its options say otherwise.
            render_mode: Gymnasium's own; what observations hold is `env_config["render_mode"]`.
        """
        if not isinstance(env_config, self.config_class):
            env_config = self.config_class.model_validate(env_config or {})
        self.config = env_config
        self.split: Split = check_split(split)
        self.render_mode = render_mode

    @classmethod
    @abstractmethod
    def sample_level(cls, config: Any, seed: int, split: Split) -> Level:
        """The level that `reset(seed=seed)` loads in this split; cheap, without a simulator.

        Raises:
            LevelError: if the options have no such level.
        """

    @classmethod
    def claims_of(cls, config: Any) -> tuple[type[Claim], ...]:
        """Those of `claims` that texts can make as configured."""
        return cls.claims

    @classmethod
    def truth(cls, state: State, config: Any) -> list[Claim]:
        """What a complete and right description of a state claims."""
        raise NotImplementedError(f"{cls.__name__} has claims, but no truth(state, config)")

    @classmethod
    def read_claims(cls, text: str, config: Any) -> list[Claim] | None:
        """The claims of a text in the words that prompts dictate; None if any part is in others."""
        return read_claims(text, cls.claims_of(config))

    @classmethod
    def score_claims(cls, said: Sequence[Claim], true: Sequence[Claim], config: Any) -> float:
        """How well claims that do not contradict each other agree with `truth`, in [0, 1]."""
        return score_claims(said, true)

    @classmethod
    def difficulty(cls, level: Any) -> tuple[float, ...]:
        """How hard a level is, larger is harder: the first number counts, the next where it ties.

        As long for every level of the options. An environment that cannot tell says nothing: then
        its levels are equally hard, as far as a curriculum knows.

        Args:
            level: of `sample_level`.
        """
        return ()

    @classmethod
    def distance(cls, state: State) -> float | None:
        """How far a state is from success, 0 there; None where success is out of reach.

        An environment that cannot tell says None always.
        """
        return None

    @classmethod
    def potential(cls, state: State, start: State) -> float:
        """Progress from `start`, in [0, 1]: `1 - d / d_start` of the distances to success.

        0 at the start, farther away than it and where success is out of reach; 1 at success.
        """
        left, whole = cls.distance(state), cls.distance(start)
        if left is None or not whole:
            return 0.0
        return min(max(1.0 - left / whole, 0.0), 1.0)

    @abstractmethod
    def system_prompt(self) -> str:
        """Rules and response format with an example; does not depend on the level."""

    @abstractmethod
    def state(self) -> State:
        """Ground truth now, for the judge and the report; JSON-able."""

    @abstractmethod
    def expert_response(self) -> str:
        """A response in the configured layout: an optimal action and true state texts."""

    def expert_summary(self) -> str:
        """What a player should know who forgets all that was shown; by default the state as JSON.

        Warm starts with `context: compact` learn to write it.
        """
        return json.dumps(self.state(), separators=(",", ":"))
