"""Base class of environments played by text responses: prompts, parsing, rewards, limits."""

import json
from abc import abstractmethod
from functools import cached_property
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation, State
from vagen.envs.claims import write_claims
from vagen.envs.config import EnvConfig
from vagen.envs.levels import check_split
from vagen.envs.parsing import (
    ActionReader,
    ParsedResponse,
    ResponseParser,
    SectionName,
    named,
    write_response,
)

TEXT_CHARACTERS = "".join(map(chr, range(32, 127))) + "\n\t√"


class TurnEnv(AgentEnv):
    """Parses a response, executes its actions, and shows the result.

    A subclass defines its rules (`_load_level`, `_move`, `_is_won`), its true state
    (`_read_state`), its image (`picture`), its texts (`state_text`, `_rules`) and its expert
    (`_plan`, `_after`).
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    actions: ClassVar[tuple[str, ...]] = ()
    """Names of the actions; environments with action arguments override `_action_reader`."""
    markup_answer: ClassVar[bool] = False
    """Whether an answer is a document with its own tags."""
    example_state: ClassVar[State]
    """State before the example response of the system prompt."""
    example_actions: ClassVar[tuple[str, ...]]
    """Legal actions from `example_state`; an example shows as many as an answer may have."""

    def __init__(
        self,
        env_config: dict[str, Any] | EnvConfig | None = None,
        *,
        split: str = "train",
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        """Creates the environment; the arguments are those of `AgentEnv`."""
        super().__init__(env_config, split=split, render_mode=render_mode)
        self._rewards = self.config.reward_values
        self._parser = ResponseParser(
            layout=self.config.layout,
            tags=self.config.tags,
            read_action=self._action_reader(),
            separator=self.config.action_sep,
            max_actions=self.config.max_actions_per_step,
            markup_answer=self.markup_answer,
        )
        self._reminder = f"{action_rule(self.config)}\n{format_line(self.config)}"
        # May read a level file for the size, so that invalid files are rejected here.
        self._frame_shape = (*self._frame_size(), 3)
        self.action_space = spaces.Text(max_length=4096, min_length=0, charset=TEXT_CHARACTERS)
        self._running = False
        self._seed = 0
        self._steps_taken = 0
        self._state: State = {}

    @cached_property
    def observation_space(self) -> Any:
        """Space of text and frames; created on demand, as a box has four times a frame's size."""
        frame = spaces.Box(0, 255, self._frame_shape, np.uint8)
        return spaces.Dict(
            {
                "text": spaces.Text(max_length=8192, min_length=0, charset=TEXT_CHARACTERS),
                "images": spaces.Sequence(frame),
            }
        )

    # Game logic, defined by each environment.

    @abstractmethod
    def _frame_size(self) -> tuple[int, int]:
        """Height and width of every picture, in pixels."""

    @abstractmethod
    def _load_level(self, level: Any, seed: int) -> None:
        """Starts the game at `level`; `seed` determines all randomness."""

    def _action_reader(self) -> ActionReader:
        """Returns the canonical form of a written action, or None."""
        return named(self.actions)

    @abstractmethod
    def _move(self, action: str) -> tuple[float, bool]:
        """Executes one action; returns its reward and whether the game is over."""

    @abstractmethod
    def _is_won(self) -> bool:
        """Whether the state is a success."""

    @abstractmethod
    def _read_state(self) -> State:
        """A new copy of the true state."""

    @abstractmethod
    def _plan(self, count: int) -> list[str]:
        """Up to `count` optimal actions from the current state; at least one."""

    @abstractmethod
    def _after(self, state: State, actions: list[str]) -> State:
        """The state after the expert's `actions` if all of them succeed.

        Args:
            state: The current state, or `example_state`; must not be changed.
            actions: Result of `_plan`, or some of `actions` or `example_actions`.
        """

    # Images and texts.

    @abstractmethod
    def picture(self) -> NDArray[np.uint8]:
        """An image of the state, uint8 [height, width, 3]; a new array each time."""

    def text_view(self) -> str:
        """The observation in text mode; by default the state text."""
        return self.state_text(self._state)

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        """The current observation: a text with `IMAGE_PLACEHOLDER` per frame, and the frames.

        Override it to add information to the image.
        """
        if self.config.render_mode == "vision":
            return IMAGE_PLACEHOLDER, (self.picture(),)
        return self.text_view(), ()

    def state_text(self, state: State) -> str:
        """A true description of `state` in the configured notation; by default `record` as JSON,
        or the phrases of `truth`.
        """
        record = None
        if self.config.layout.notation == "structured":
            record = self.record(state, self.config)
        return (
            write_claims(self.truth(state, self.config)) if record is None else json.dumps(record)
        )

    def _state_rule(self) -> str:
        """Description of the state texts for the full prompt; by default an example."""
        return f"Describe a state like this: {self.state_text(self.example_state)}"

    @abstractmethod
    def _rules(self) -> str:
        """The rules in words, for the configuration."""

    def _brief_rules(self) -> str:
        """The rules in at most 25 words, for a tiny model; by default `_rules`."""
        return self._rules()

    # The contract.

    def parse(self, response: str) -> ParsedResponse:
        """A response as `step` reads it; does nothing with it."""
        return self._parser.parse(response)

    def system_prompt(self) -> str:
        """Rules and response format with an example, or brief rules."""
        if self.config.prompt_detail == "brief":
            return self._brief_rules()
        config = self.config
        tags, layout = config.tags, config.layout
        describes = [
            text
            for section, text in (
                ("observation", f"<{tags.observation}>: the state before your actions."),
                ("reasoning", f"<{tags.reasoning}>: why you choose them."),
                ("prediction", f"<{tags.prediction}>: the state after them."),
            )
            if section in layout.inner
        ]
        if "observation" in layout.inner or "prediction" in layout.inner:
            describes.append(self._state_rule())
        if layout.memory:
            describes.append(
                f"<{tags.memory}>: keep what you are shown now if you will need to see it again, "
                "drop it if not."
            )
        lines = [
            self._rules(),
            action_rule(config),
            format_line(config),
            *describes,
            f"Write nothing outside the tags. Example:\n{self.example_response()}",
        ]
        return "\n".join(lines)

    def example_response(self) -> str:
        """A response in the configured layout that is true for `example_state`."""
        before = self.example_state
        actions = list(self.example_actions[: self.config.max_actions_per_step])
        return self._write(actions, before, self._after(before, actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the level of `seed` (drawn from the instance's generator if None).

        Args:
            seed: Determines the level and all randomness.
            options: `{"split": ...}` overrides the split for this episode.

        Raises:
            LevelError: The split or the options have no level.
        """
        super().reset(seed=seed)
        options = options or {}
        if unknown := sorted(set(options) - {"split"}):
            raise ValueError(f"unknown reset options {unknown}: only 'split' is known")
        split = check_split(options.get("split", self.split))
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        level = self.sample_level(self.config, seed, split)
        self._load_level(level, seed)
        self._seed = seed
        self._running = True
        self._steps_taken = 0
        self._state = self._read_state()
        info = {"state": self._state, "level_hash": level.level_hash}
        return self._observe(None), info

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Parses a response and executes its actions until one ends the episode.

        Raises:
            ResetNeeded: The episode is over, or none was started.
        """
        if not self._running:
            raise ResetNeeded("the episode is over or was never started: call reset first")
        parsed = self.parse(action)
        moves: list[str] = []
        env_reward = 0.0
        terminated = truncated = False
        for move in parsed.actions:
            reward, terminated = self._move(move)
            env_reward += reward
            self._steps_taken += 1
            moves.append(move)
            if terminated:
                break
            if self._steps_taken >= self._most_steps():
                truncated = True
                break
        before = self._state
        self._state = self._read_state()
        self._running = not (terminated or truncated)
        format_reward = self._rewards["format" if parsed.format_correct else "format_penalty"]
        info = {
            "rewards": {"env": env_reward, "format": format_reward},
            "parsed": parsed.to_dict(),
            "metrics": {
                "action_is_valid": parsed.format_correct,
                "action_is_effective": self._state != before,
            },
            "success": self._is_won(),
            "state": self._state,
        }
        observation = self._observe(tuple(moves))
        return observation, env_reward + format_reward, terminated, truncated, info

    def _most_steps(self) -> int:
        """Actions until truncation."""
        return self.config.max_steps

    def state(self) -> State:
        """Current true state; must not be changed."""
        return self._state

    def render(self) -> NDArray[np.uint8] | None:
        """An image of the state, uint8 [height, width, 3], if created with `render_mode`."""
        return self.picture() if self.render_mode == "rgb_array" else None

    def expert_response(self) -> str:
        """A response with `expert_actions_per_turn` optimal actions and true state texts.

        A share of `expert_random_moves` has a random action, the same on each call.

        Raises:
            ResetNeeded: No episode was started.
        """
        self._check_begun()
        chance = Random(f"{self._seed} {self._steps_taken}")
        if chance.random() < self.config.expert_random_moves:
            actions = [self.any_action(chance)]
        else:
            actions = self._plan(self.config.expert_actions_per_turn)
        after = self._after(self._state, actions)
        return self._write(actions, self._state, after, keeps=self._expert_keeps())

    def any_action(self, chance: Random) -> str:
        """A random action, with random arguments if actions have any."""
        return chance.choice(self.actions)

    def expert_summary(self) -> str:
        """The state text.

        Raises:
            ResetNeeded: No episode was started.
        """
        self._check_begun()
        return self.state_text(self._state)

    def _check_begun(self) -> None:
        if not self._state:
            raise ResetNeeded("no episode was started: call reset first")

    def _expert_keeps(self) -> bool:
        """Whether the expert keeps the current observation (`context: gate`), since it will be
        needed and is not shown again. By default True.
        """
        return True

    def _write(self, actions: list[str], before: State, after: State, *, keeps: bool = True) -> str:
        config, reason = self.config, self._reason(actions)
        texts: dict[SectionName, str] = {
            "think": reason,
            "observation": self.state_text(before),
            "reasoning": reason,
            "prediction": self.state_text(after),
            "answer": f" {config.action_sep} ".join(actions),
            "memory": "keep" if keeps else "drop",
        }
        return write_response(config.layout, config.tags, texts)

    def _reason(self, actions: list[str]) -> str:
        """Brief reasoning of the expert."""
        return "move " + " ".join(actions)

    def _observe(self, moves: tuple[str, ...] | None) -> Observation:
        """What is shown, with the executed actions (None at the start) and the format, if full."""
        shown, images = self._shown()
        if self.config.prompt_detail == "brief":
            return Observation(text=shown, images=images)
        if moves is None:
            opening = "This is the start."
        elif moves:
            opening = f"Carried out: {', '.join(moves)}. This is the state now."
        else:
            opening = "Your response held no valid action, so nothing changed."
        return Observation(text=f"{opening}\n{shown}\n{self._reminder}", images=images)


def action_rule(config: EnvConfig) -> str:
    """Rule for the number and separator of actions in an answer."""
    if config.max_actions_per_step == 1:
        return "Answer with one action."
    return (
        f"Answer with one to {config.max_actions_per_step} actions, "
        f"separated by {config.action_sep!r}; they are carried out in order."
    )


def format_line(config: EnvConfig) -> str:
    """The layout of a response, without an example."""
    layout = config.layout
    texts: dict[SectionName, str] = dict.fromkeys(layout.sections, "...")
    texts["memory"] = "keep or drop"
    return "Write exactly: " + write_response(layout, config.tags, texts)
