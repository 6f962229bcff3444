"""Common parts of grid games: cells, moves, options, claims about positions, images and texts.

A cell is an index `row * width + column`; a set of cells is an int with bit `cell` set. Rows count
downwards and columns rightwards, both from 0.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vagen.envs.base import State
from vagen.envs.claims import Claim, best_matching, load_json
from vagen.envs.config import EnvConfig
from vagen.envs.images import TileSet
from vagen.envs.levels import draw_index
from vagen.envs.parsing import Notation
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
    return [cell for cell, bit in enumerate(f"{cells:b}"[::-1]) if bit == "1"]


Position = list[int]
"""Row and column."""


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


class GridConfig(EnvConfig):
    """Options of a grid game."""

    notations: ClassVar[tuple[Notation, ...]] = ("natural", "structured", "symbolic")

    tile_size: int = Field(32, ge=32, le=256)
    """Side of a grid cell in pixels."""

    def positions(self, state: dict[str, Any]) -> dict[str, Any]:
        """Positions [row, column] in a structured state text."""
        raise NotImplementedError


VERTICAL = {-1: "above", 0: "same row", 1: "below"}
HORIZONTAL = {-1: "left", 0: "same column", 1: "right"}


class _OnGrid(Claim):
    @classmethod
    def most(cls, count: int) -> int:
        """Number of objects, plus one for a miscount if there are several."""
        return count + (count > 1)


class Place(_OnGrid):
    """Position of an object relative to the player; phrases of a game name the object."""

    hint = (
        "where it is as seen from the player, so that the box is right where the player is left of "
        "it; unstated where the text says nothing of up and down, or of left and right"
    )

    vertical: Literal["above", "same row", "below", "unstated"]
    horizontal: Literal["left", "same column", "right", "unstated"]

    def agreement(self, true: "Place") -> float:
        """Share of the two axes that is correct."""
        return ((self.vertical == true.vertical) + (self.horizontal == true.horizontal)) / 2

    @classmethod
    def seen(cls, player: Position, thing: Position) -> "Place":
        """The true claim about an object there."""
        rows, columns = thing[0] - player[0], thing[1] - player[1]
        return cls.model_validate(
            {
                "vertical": VERTICAL[(rows > 0) - (rows < 0)],
                "horizontal": HORIZONTAL[(columns > 0) - (columns < 0)],
            }
        )


class Spot(_OnGrid):
    """Row and column of an object."""

    hint = "rows count downwards and columns rightwards, both from 0"

    row: int
    column: int

    def agreement(self, true: "Spot") -> float:
        """Share of the two axes that is correct."""
        return ((self.row == true.row) + (self.column == true.column)) / 2


class Player(Spot):
    """Row and column of the player, required in structured texts."""

    phrase = "player is at row {row} and column {column}"


def spots_at(positions: Mapping[str, Any], kinds: Mapping[str, type[Spot]]) -> list[Claim]:
    """Claims of a structured text.

    Args:
        positions: A position, or a list of them for several objects, by key.
        kinds: Claim classes by key, in order; missing keys are skipped.

    Raises:
        TypeError, ValueError: A value has another format.
    """
    return [
        kind(row=row, column=column)
        for key, kind in kinds.items()
        if key in positions
        for row, column in (positions[key] if kind.several else [positions[key]])
    ]


def read_positions(text: str, kinds: Mapping[str, type[Spot]]) -> list[Claim] | None:
    """Parses a JSON object with exactly the keys of `kinds`; None for other texts."""
    try:
        given = load_json(text)
        return spots_at(given, kinds) if given.keys() == kinds.keys() else None
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def read_drawing(text: str, kinds: Mapping[str, Sequence[type[Spot]]]) -> list[Claim] | None:
    """Parses a grid of symbols, a row per line; None for other texts.

    Args:
        text: Any text.
        kinds: Claim classes by symbol.
    """
    rows = [line.replace(" ", "") for line in text.strip().split("\n")]
    if len(set(map(len, rows))) > 1 or not set().union(*rows) <= kinds.keys():
        return None
    return [
        kind(row=row, column=column)
        for row, line in enumerate(rows)
        for column, symbol in enumerate(line)
        for kind in kinds[symbol]
    ]


def score_places(
    said: Sequence[Claim],
    true: Sequence[Claim],
    required: Sequence[type[Claim]],
    *,
    halves: bool = True,
) -> float:
    """Mean F1 over kinds of objects, weighted by claims; skips kinds that are absent in both.

    Args:
        said: Claims without contradictions.
        true: Relative positions, or rows and columns with the player's.
        required: Kinds that a text must locate for a score above 0.
        halves: Whether one correct axis of two counts half instead of 0.
    """
    if isinstance(true[0], Player):
        said = _from_player(said, true[0])
    things: dict[type[Claim], tuple[list[Claim], list[Claim]]] = {}
    for side, claims in enumerate((said, true)):
        for claim in claims:
            things.setdefault(type(claim), ([], []))[side].append(claim)
    things.pop(Player, None)
    score = total = 0.0
    for kind, (stated, facts) in things.items():
        if kind in required and not stated:
            return 0.0
        credits = [[claim.agreement(fact) for fact in facts] for claim in stated]
        if not halves:
            credits = [[credit // 1 for credit in row] for row in credits]
        score += kind.weight * 2 * best_matching(credits) / (len(stated) + len(facts))
        total += kind.weight
    return score / total


def _from_player(said: Sequence[Claim], player: Player) -> list[Claim]:
    """Claims relative to the player, made wrong on axes where the player's own position is wrong.

    Otherwise an object at a wrong relative position could count as correct.
    """
    stated = next((claim for claim in said if type(claim) is Player), None)
    wrong = {
        axis: -1
        for axis in ("row", "column")
        if getattr(stated, axis, None) != getattr(player, axis)
    }
    return [claim.model_copy(update=wrong) for claim in said] if wrong else list(said)


class GridEnv(TurnEnv):
    """A grid game with images made of tiles and texts about positions.

    In addition to the methods of `TurnEnv`, a game defines its size, tiles, symbols and claims.
    """

    symbols: ClassVar[str]
    """One character per tile code."""
    required: ClassVar[tuple[type[Claim], ...]]
    """Claims without which a text scores 0."""
    half_credit: ClassVar[bool] = True
    """Whether one correct axis of two counts half."""
    places: ClassVar[Mapping[str, type[Place]]]
    """Claims of sentences, by key in structured texts."""
    spots: ClassVar[Mapping[str, type[Spot]]]
    """Claims of structured texts, by key."""
    drawn: ClassVar[Mapping[str, Sequence[type[Spot]]]]
    """Claims of a grid of symbols, by symbol."""

    config: GridConfig

    @property
    def _tiles(self) -> TileSet:
        return self._draw_tiles(self.config.tile_size)

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

    @classmethod
    def score_claims(
        cls, said: Sequence[Claim], true: Sequence[Claim], config: GridConfig
    ) -> float:
        """Mean F1 over kinds of objects: see `score_places`."""
        return score_places(said, true, cls.required, halves=cls.half_credit)

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
