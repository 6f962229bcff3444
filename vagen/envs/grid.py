"""Common parts of grid games: cells, moves, images and descriptions of a state.

A cell is an index `row * width + column`; a set of cells is an int with bit `cell` set. Rows count
downwards and columns rightwards, both from 0.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.envs.claims import Claim
from vagen.envs.config import GridConfig
from vagen.envs.grid_claims import (
    Place,
    Position,
    Spot,
    read_drawing,
    read_positions,
    spots_at,
)
from vagen.envs.levels import draw_index
from vagen.envs.render import TileSet
from vagen.envs.turns import TurnEnv

Cell: TypeAlias = int
Cells: TypeAlias = int

DIRECTIONS: dict[str, tuple[int, int]] = {
    "Up": (-1, 0),
    "Down": (1, 0),
    "Left": (0, -1),
    "Right": (0, 1),
}
"""Row and column change of each action."""


def cells_of(cells: Cells) -> list[Cell]:
    """Members of a cell set, ascending."""
    if cells.bit_count() > 4:  # scanning all digits is faster
        return [cell for cell, bit in enumerate(f"{cells:b}"[::-1]) if bit == "1"]
    members = []
    while cells:
        lowest = cells & -cells
        members.append(lowest.bit_length() - 1)
        cells ^= lowest
    return members


def positions_of(cells: Cells, columns: int) -> list[Position]:
    """Members of a cell set as [row, column], ascending."""
    return [[cell // columns, cell % columns] for cell in cells_of(cells)]


def nth_cell(cells: Cells, index: int) -> Cell:
    """The member of a cell set with `index` lower ones."""
    for _ in range(index):
        cells &= cells - 1
    return (cells & -cells).bit_length() - 1


def draw_cell(rng: Random, cells: Cells) -> Cell:
    """A uniform member of a non-empty cell set."""
    return nth_cell(cells, draw_index(rng, cells.bit_count()))


class GridEnv(TurnEnv):
    """A grid game with images made of tiles and texts about positions.

    In addition to the methods of `TurnEnv`, a game defines its size, tiles, symbols and claims.
    """

    symbols: ClassVar[str]
    """One character per tile code."""
    places: ClassVar[Mapping[str, type[Place]]]
    """Claims of sentences, by key in structured texts."""
    spots: ClassVar[Mapping[str, type[Spot]]]
    """Claims of structured texts, by key."""
    drawn: ClassVar[Mapping[str, Sequence[type[Spot]]]]
    """Claims of a grid of symbols, by symbol."""

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

    @staticmethod
    @abstractmethod
    def _draw_tiles(side: int) -> TileSet:
        """Images of the tile codes, shared between instances."""

    @classmethod
    @abstractmethod
    def symbol_legend(cls) -> str:
        """Meaning of each symbol."""

    def _frame_size(self) -> tuple[int, int]:
        rows, columns = self._grid_size()
        return rows * self.config.tile_size, columns * self.config.tile_size

    def _expert_keeps(self) -> bool:
        """False: each image shows the whole state."""
        return False

    def picture(self) -> NDArray[np.uint8]:
        """An image of the state, uint8 [height, width, 3]; a new array each time."""
        return self._tiles.frame(self.codes_of(self._state))

    def text_view(self) -> str:
        """The grid as symbols."""
        return self.grid_text(self._state)

    @classmethod
    def claims_of(cls, config: GridConfig) -> tuple[type[Claim], ...]:
        """Relative positions in sentences, otherwise rows and columns, of the described objects."""
        kinds = cls.places if config.layout.notation == "natural" else cls.spots
        described = config.positions(cls.example_state)
        return tuple(kind for key, kind in kinds.items() if key in described)

    @classmethod
    def truth(cls, state: State, config: GridConfig) -> list[Claim]:
        """Positions of the described objects."""
        positions = config.positions(state)
        if config.layout.notation != "natural":
            return spots_at(positions, cls.spots)
        player = state["player"]
        return [
            kind.seen(player, thing)
            for key, kind in cls.places.items()
            if key in positions
            for thing in (positions[key] if kind.several else [positions[key]])
        ]

    @classmethod
    def read_claims(cls, text: str, config: GridConfig) -> list[Claim] | None:
        """Parses the prompt's notation, sentences or JSON."""
        notation, found = config.layout.notation, None
        if notation == "structured" and text.lstrip().startswith("{"):
            keys = config.positions(cls.example_state)
            return read_positions(text, {k: kind for k, kind in cls.spots.items() if k in keys})
        if notation == "symbolic":
            found = read_drawing(text, cls.drawn)
        return super().read_claims(text, config) if found is None else found

    @classmethod
    def record(cls, state: State, config: GridConfig) -> dict[str, Any]:
        """Positions [row, column] of the described objects."""
        return config.positions(state)

    def state_text(self, state: State) -> str:
        """`state` in the notation of the configured `prompt_format`."""
        if self.config.layout.notation == "symbolic":
            return self.grid_text(state)
        return super().state_text(state)

    @classmethod
    def grid_text(cls, state: State) -> str:
        """The grid as symbols, a row per line, separated by single spaces."""
        symbols, columns = cls.symbols, state["size"][1]
        line = " ".join([symbols[code] for code in cls.codes_of(state).tobytes()])
        width = 2 * columns
        return "\n".join([line[i : i + width - 1] for i in range(0, len(line), width)])

    def _state_rule(self) -> str:
        """Description of the state texts for the full prompt."""
        notation = self.config.layout.notation
        example = self.state_text(self.example_state)
        if notation == "structured":
            return f"Write a state as positions [row, column] counted from 0, such as {example}."
        if notation == "symbolic":
            return (
                f"Write a state as the grid, a row per line, with the symbols "
                f"{self.symbol_legend()}."
            )
        names = [kind.claim_name() for kind in self.claims_of(self.config)]
        return (
            f"Describe a state by where each {' and each '.join(names)} is from the player: "
            f"above, below or same row, and left, right or same column; "
            f"such as: {example}"
        )
