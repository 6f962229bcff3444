"""What the grid games share: cells, moves, pictures and descriptions of a state.

A cell is an index `row * width + column`; a set of cells is an int with bit `cell` set. Rows count
downwards and columns rightwards, both from 0.
"""

import json
from abc import abstractmethod
from random import Random
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.envs.config import GridConfig
from vagen.envs.render import TileSet
from vagen.envs.turns import TurnEnv

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


class GridEnv(TurnEnv):
    """A grid game: its picture is put together from tiles, its texts say where things are.

    A game adds to what `TurnEnv` wants its size, its tiles and symbols, and which objects its
    state texts speak of.
    """

    symbols: ClassVar[str]
    """One character per tile code."""

    config: GridConfig

    def __init__(
        self,
        env_config: dict[str, Any] | GridConfig | None = None,
        *,
        split: str = "train",
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        """Creates the environment; the arguments are those of `TurnEnv`."""
        super().__init__(env_config, split=split, render_mode=render_mode)
        self._tiles = self._draw_tiles(self.config.tile_size)

    @abstractmethod
    def _grid_size(self) -> tuple[int, int]:
        """Rows and columns of every level."""

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

    @classmethod
    @abstractmethod
    def symbol_legend(cls) -> str:
        """What each symbol stands for."""

    def _frame_size(self) -> tuple[int, int]:
        rows, columns = self._grid_size()
        return rows * self.config.tile_size, columns * self.config.tile_size

    def picture(self) -> NDArray[np.uint8]:
        """A picture of the state, uint8 [height, width, 3]; a new array each time."""
        return self._tiles.frame(self.codes_of(self._state))

    def text_view(self) -> str:
        """The grid as symbols."""
        return self.grid_text(self._state)

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
