"""What adapters share that read answers here: named actions, a prompt and a success rule."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar

from pydantic import Field, PositiveInt, field_validator, model_validator

from vagen.envs.adapters.success import read_rule
from vagen.envs.answers import STEP, AnswerError, flag, number, unpacked
from vagen.envs.base import State
from vagen.envs.config import EnvConfig
from vagen.envs.parsing import (
    ActionReader,
    PromptFormat,
    ResponseParser,
    SectionName,
    named,
    write_response,
)
from vagen.envs.turns import TurnEnv


class ForeignConfig(EnvConfig):
    """Options of an adapted environment with named actions."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "reward": 1.0, "success": 0.0},
        "vagen-new": {"format": 0.1, "reward": 1.0, "success": 0.0},
    }

    prompt_format: PromptFormat = "free_think"
    """`free_think` or `no_think`, since there are no state texts."""
    max_actions_per_step: PositiveInt = 1
    """Maximum actions in one response."""
    actions: Mapping[str, Any]
    """Action names."""
    prompt: str = Field(min_length=1)
    """Description of the task, the observation and the actions."""
    success: str = "terminated and reward > 0"
    """Success rule, such as `return >= 200` or `info.is_success`."""

    @field_validator("prompt_format")
    @classmethod
    def _has_no_state_texts(cls, prompt_format: PromptFormat) -> PromptFormat:
        if prompt_format not in ("free_think", "no_think"):
            raise ValueError(
                f"{prompt_format} asks for state texts, and nothing is known of the states of an "
                "adapted environment; take free_think or no_think"
            )
        return prompt_format

    @field_validator("success")
    @classmethod
    def _is_rule(cls, rule: str) -> str:
        read_rule(rule)
        return rule

    @field_validator("actions")
    @classmethod
    def _are_words(cls, actions: Mapping[str, Any]) -> Mapping[str, Any]:
        if len({word.casefold() for word in actions}) < len(actions):
            raise ValueError("names of actions differ by more than case")
        return actions

    @model_validator(mode="after")
    def _can_be_played(self) -> "ForeignConfig":
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


class ForeignEnv(TurnEnv):
    """An environment of another interface whose answers are read here.

    It has no expert, so a warm start is impossible. `expert_response` plays at random, for checks
    of prompts and sizes.
    """

    config_class: ClassVar[type[ForeignConfig]] = ForeignConfig
    has_expert: ClassVar[bool] = False
    example_state: ClassVar[State] = {}

    config: ForeignConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The arguments are those of `TurnEnv`."""
        super().__init__(*args, **kwargs)
        self._is_success = read_rule(self.config.success)

    @abstractmethod
    def _step_name(self) -> str:
        """The called method in error messages, such as `CartPole.step()`."""

    def _begin(self, seed: int) -> None:
        self._facts: dict[str, Any] = {"reward": 0.0, "return": 0.0, "steps": 0}
        self._random = Random(seed)

    def _keep_step(
        self, result: Any, keep: Callable[[Any], None], facts: str | None = None
    ) -> tuple[float, bool]:
        """Checks and keeps the result of Gymnasium's `step`; returns what `_move` does.

        `facts` is the key of `info` whose entries the success rule reads; None for `info` itself.

        Raises:
            AnswerError: A part is something else.
        """
        where = self._step_name()
        observation, reward, terminated, truncated, info = unpacked(result, where, STEP)
        keep(observation)
        return self._record(
            number(reward, f"{where}'s reward"),
            flag(terminated, f"{where}'s terminated"),
            flag(truncated, f"{where}'s truncated"),
            info if facts is None else info[facts],
        )

    def _record(
        self, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Any]
    ) -> tuple[float, bool]:
        """Keeps the facts of a step for the success rule; returns what `_move` does."""
        self._facts = {
            **{f"info.{key}": value for key, value in info.items()},
            "reward": reward,
            "return": self._facts["return"] + reward,
            "steps": self._facts["steps"] + 1,
            "terminated": terminated,
            "truncated": truncated,
        }
        paid = self._rewards["reward"] * reward + self._rewards["success"] * self._is_won()
        return paid, terminated or truncated

    def step(self, action: str) -> Any:
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
                f"{self._step_name()}: {error} (env_config.success is {self.config.success!r}; "
                "numbers are compared, as in `info.KEY > 0`)"
            ) from error

    def _action_reader(self) -> ActionReader:
        return named(tuple(self.config.actions))

    def _plan(self, count: int) -> list[str]:
        words = list(self.config.actions)
        return [words[int(self._random.random() * len(words))] for _ in range(count)]

    def _after(self, state: State, actions: list[str]) -> State:
        return state

    def example_response(self) -> str:
        """A response with the first action."""
        return self._write([next(iter(self.config.actions))], {}, {})

    def state_text(self, state: State) -> str:
        """Empty, as no layout of this environment has state texts."""
        return ""

    def _rules(self) -> str:
        return self.config.prompt
