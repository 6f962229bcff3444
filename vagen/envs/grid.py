"""What the grid games share: cells, moves, descriptions of a state, and the environment itself.

A cell is an index `row * width + column`; a set of cells is an int with bit `cell` set. Rows count
downwards and columns rightwards, both from 0.
"""

import json
from abc import abstractmethod
from random import Random
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vagen.envs.base import IMAGE_PLACEHOLDER, AgentEnv, Observation, State
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Level, Split, check_split
from vagen.envs.parsing import ResponseParser, SectionName, write_response
from vagen.envs.prompts import TurnPrompt, system_text
from vagen.envs.render import TileSet

Cell: TypeAlias = int
Cells: TypeAlias = int
Position: TypeAlias = list[int]

DIRECTIONS: dict[str, tuple[int, int]] = {
    "Up": (-1, 0),
    "Down": (1, 0),
    "Left": (0, -1),
    "Right": (0, 1),
}
"""Row and column change of each action."""

TEXT_CHARACTERS = "".join(map(chr, range(32, 127))) + "\n\t√"


def cells_of(cells: Cells) -> list[Cell]:
    """The members of a cell set, ascending."""
    if cells.bit_count() > 4:  # reading every digit is faster than finding each set one
        return [cell for cell, bit in enumerate(f"{cells:b}"[::-1]) if bit == "1"]
    members = []
    while cells:
        lowest = cells & -cells
        members.append(lowest.bit_length() - 1)
        cells ^= lowest
    return members


def positions_of(cells: Cells, columns: int) -> list[Position]:
    """The members of a cell set as [row, column], ascending."""
    return [[cell // columns, cell % columns] for cell in cells_of(cells)]


def nth_cell(cells: Cells, index: int) -> Cell:
    """The member of a cell set with `index` lower ones."""
    for _ in range(index):
        cells &= cells - 1
    return (cells & -cells).bit_length() - 1


def draw_index(rng: Random, count: int) -> int:
    """A uniform index below `count`, from `random()` alone: the same in every Python version."""
    return int(rng.random() * count)


def draw_cell(rng: Random, cells: Cells) -> Cell:
    """A uniform member of a cell set that is not empty."""
    return nth_cell(cells, draw_index(rng, cells.bit_count()))


def relation(player: Position, thing: Position) -> str:
    """Where `thing` is from `player`, such as `below and left` or `same row and right`."""
    rows, columns = thing[0] - player[0], thing[1] - player[1]
    vertical = "below" if rows > 0 else "above" if rows < 0 else "same row"
    horizontal = "right" if columns > 0 else "left" if columns < 0 else "same column"
    return f"{vertical} and {horizontal}"


class GridEnv(AgentEnv):
    """A grid game played by text: prompts, parsing, rewards, limits and pictures.

    A game adds its rules (`_load_level`, `_move`), its ground truth (`state`), its look
    (`codes_of`, tiles, symbols) and its best play (`_plan`).
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    config_class: ClassVar[type[EnvConfig]]
    actions: ClassVar[tuple[str, ...]]
    symbols: ClassVar[str]
    """One character per tile code."""
    example_state: ClassVar[State]
    """State before the example response of the system prompt."""
    example_actions: ClassVar[tuple[str, ...]]
    """Legal moves from there; an example shows as many as an answer may hold."""

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
        self._rewards = env_config.reward_values
        self._parser = ResponseParser(
            layout=env_config.layout,
            tags=env_config.tags,
            actions=self.actions,
            separator=env_config.action_sep,
            max_actions=env_config.max_actions_per_step,
        )
        self._turn_prompt = TurnPrompt(env_config)
        self._tiles = self._draw_tiles(env_config.tile_size)
        rows, columns = self._grid_size()
        frame = spaces.Box(
            0, 255, (rows * env_config.tile_size, columns * env_config.tile_size, 3), np.uint8
        )
        self.action_space = spaces.Text(max_length=4096, min_length=0, charset=TEXT_CHARACTERS)
        self.observation_space: Any = spaces.Dict(
            {
                "text": spaces.Text(max_length=8192, min_length=0, charset=TEXT_CHARACTERS),
                "images": spaces.Sequence(frame),
            }
        )
        self._running = False
        self._steps_taken = 0
        self._success = False
        self._state: State = {}

    # Rules of the game, given by each environment.

    @classmethod
    @abstractmethod
    def sample_level(cls, config: Any, seed: int, split: Split) -> Level:
        """The level that `reset(seed=seed)` loads in this split."""

    @abstractmethod
    def _grid_size(self) -> tuple[int, int]:
        """Rows and columns of every level."""

    @abstractmethod
    def _load_level(self, level: Any, seed: int) -> None:
        """Puts the game at the start of `level`; `seed` drives whatever chance follows."""

    @abstractmethod
    def _move(self, action: str) -> tuple[float, bool]:
        """Carries out one move; returns its reward and whether the game is over."""

    @abstractmethod
    def _is_won(self) -> bool:
        """Whether the state is a success."""

    @abstractmethod
    def _read_state(self) -> State:
        """Ground truth, built anew."""

    @abstractmethod
    def _plan(self, count: int) -> list[str]:
        """Up to `count` best moves from the present state; at least one."""

    @abstractmethod
    def _state_after(self, actions: list[str]) -> State:
        """The state that `actions` would lead to if every move goes as intended."""

    @classmethod
    @abstractmethod
    def distance(cls, state: State) -> float | None:
        """How far a state is from success, 0 there; None where success is out of reach."""

    @classmethod
    def potential(cls, state: State, start: State) -> float:
        """Progress from `start`, in [0, 1]: `1 - d / d_start` of the distances to success.

        0 at the start, farther away than it and where success is out of reach; 1 at success.
        """
        left, whole = cls.distance(state), cls.distance(start)
        if left is None or not whole:
            return 0.0
        return min(max(1.0 - left / whole, 0.0), 1.0)

    @staticmethod
    @abstractmethod
    def codes_of(state: State) -> NDArray[np.uint8]:
        """Tile codes of a state, [rows, columns]."""

    @abstractmethod
    def _described(self, state: State) -> list[tuple[str, Position]]:
        """Objects that the state texts speak of, with their names."""

    @abstractmethod
    def _structured(self, state: State) -> dict[str, Any]:
        """Positions that a structured state text holds."""

    @staticmethod
    @abstractmethod
    def _draw_tiles(side: int) -> TileSet:
        """Pictures of the tile codes, shared between instances."""

    @abstractmethod
    def _rules(self) -> str:
        """The game in words, as configured."""

    @abstractmethod
    def _brief_rules(self) -> str:
        """The game in at most 25 words."""

    # The contract.

    def system_prompt(self) -> str:
        """Rules and response format with an example, or the rules in a few words if brief."""
        if self.config.prompt_detail == "brief":
            return self._brief_rules()
        return system_text(
            self.config,
            rules=self._rules(),
            state_rule=self._state_rule(),
            example=self.example_response(),
        )

    def example_response(self) -> str:
        """A response in the configured layout, true of `example_state`."""
        actions = self.example_actions[: self.config.max_actions_per_step]
        return self._write(list(actions), self.example_state, self._example_after(actions))

    @abstractmethod
    def _example_after(self, actions: tuple[str, ...]) -> State:
        """`example_state` after some of `example_actions`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the level of `seed` (drawn from the instance's generator if None).

        Args:
            seed: decides the level and, if the game has chance in it, every draw.
            options: `{"split": ...}` overrides the split for this episode.

        Raises:
            LevelError: if the split or the options have no level.
        """
        super().reset(seed=seed)
        split = self.split if not options else _split_option(options, self.split)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        level = self.sample_level(self.config, seed, split)
        self._load_level(level, seed)
        self._running = True
        self._steps_taken = 0
        self._success = False
        self._state = self._read_state()
        info = {"state": self._state, "level_hash": level.level_hash}
        return self._observe(None), info

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Parses a response and carries out its moves until one ends the episode.

        Raises:
            ResetNeeded: if the episode is over, or none was started.
        """
        if not self._running:
            raise ResetNeeded("the episode is over or was never started: call reset first")
        parsed = self._parser.parse(action)
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
            if self._steps_taken >= self.config.max_steps:
                truncated = True
                break
        before = self._state
        self._state = self._read_state()
        self._success = self._is_won()
        self._running = not (terminated or truncated)
        format_reward = self._rewards["format"] if parsed.format_correct else 0.0
        info = {
            "rewards": {"env": env_reward, "format": format_reward},
            "parsed": parsed.to_dict(),
            "metrics": {
                "action_is_valid": parsed.format_correct,
                "action_is_effective": self._state != before,
            },
            "success": self._success,
            "state": self._state,
        }
        observation = self._observe(tuple(moves))
        return observation, env_reward + format_reward, terminated, truncated, info

    def state(self) -> State:
        """Ground truth now; to be read, not changed."""
        return self._state

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A picture of the state, uint8 [height, width, 3], if made with `render_mode`."""
        return self.picture() if self.render_mode == "rgb_array" else None

    def picture(self) -> NDArray[np.uint8]:
        """A picture of the state, uint8 [height, width, 3]; a new array each time."""
        return self._tiles.frame(self.codes_of(self._state))

    def expert_response(self) -> str:
        """Plays `expert_actions_per_turn` best moves and describes the state truly."""
        actions = self._plan(self.config.expert_actions_per_turn)
        return self._write(actions, self._state, self._state_after(actions))

    # Texts.

    def state_text(self, state: State) -> str:
        """`state` in the notation of the configured `prompt_format`."""
        notation = self.config.layout.notation
        if notation == "structured":
            return json.dumps(self._structured(state))
        if notation == "symbolic":
            return self.grid_text(state)
        player = state["player"]
        return " . ".join(
            f"{name} is {relation(player, position)}" for name, position in self._described(state)
        )

    @classmethod
    def grid_text(cls, state: State) -> str:
        """The grid as symbols, a row per line, separated by single spaces."""
        symbols, columns = cls.symbols, state["size"][1]
        line = " ".join([symbols[code] for code in cls.codes_of(state).tobytes()])
        width = 2 * columns
        return "\n".join([line[i : i + width - 1] for i in range(0, len(line), width)])

    def _state_rule(self) -> str:
        """How the state texts are written, for the full prompt."""
        notation = self.config.layout.notation
        example = self.state_text(self.example_state)
        if notation == "structured":
            return f"Write a state as positions [row, column] counted from 0, such as {example}."
        if notation == "symbolic":
            return (
                f"Write a state as the grid, a row per line, with the symbols "
                f"{self.symbol_legend()}."
            )
        names = list(dict.fromkeys(name for name, _ in self._described(self.example_state)))
        return (
            f"Describe a state by where each {' and each '.join(names)} is from the player: "
            f"above, below or same row, and left, right or same column; "
            f"such as: {example}"
        )

    @classmethod
    @abstractmethod
    def symbol_legend(cls) -> str:
        """What each symbol stands for."""

    def _write(self, actions: list[str], before: State, after: State) -> str:
        config = self.config
        reason = "move " + " ".join(actions)
        texts: dict[SectionName, str] = {
            "think": reason,
            "observation": self.state_text(before),
            "reasoning": reason,
            "prediction": self.state_text(after),
            "answer": f" {config.action_sep} ".join(actions),
        }
        return write_response(config.layout, config.tags, texts)

    def _observe(self, moves: tuple[str, ...] | None) -> Observation:
        if self.config.render_mode == "vision":
            text = self._turn_prompt(IMAGE_PLACEHOLDER, moves)
            return Observation(text=text, images=(self.picture(),))
        return Observation(text=self._turn_prompt(self.grid_text(self._state), moves), images=())


def _split_option(options: dict[str, Any], default: Split) -> Split:
    unknown = sorted(set(options) - {"split"})
    if unknown:
        raise ValueError(f"unknown reset options {unknown}: only 'split' is known")
    return check_split(options.get("split", default))
