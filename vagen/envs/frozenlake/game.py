"""The game of FrozenLake: options, levels, moves, shortest paths.

Moves are those of Gymnasium's FrozenLake: the border blocks the player, a hole or the target ends
the episode, and on slippery ice a move succeeds with the success rate and otherwise goes to one of
the two sides equally.
"""

import functools
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from vagen.envs.base import State
from vagen.envs.grid import Cell, Cells, GridConfig, Position
from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of

ACTIONS = ("Left", "Down", "Right", "Up")
"""In Gymnasium's order, where the neighbours of an action are its two sides."""


class FrozenLakeConfig(GridConfig):
    """Options of FrozenLake."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "success": 10.0, "hole": 0.0, "step": 0.0},
        "vagen-new": {"format": 0.02, "success": 1.0, "hole": 0.0, "step": 0.0},
    }

    size: int = Field(4, ge=2, le=16)
    """Rows and columns of the lake."""
    p_frozen: float = Field(0.8, gt=0.0, le=1.0)
    """Probability of a cell to be ice instead of a hole."""
    is_slippery: bool = False
    """Whether moves may slip sideways."""
    success_rate: float = Field(1 / 3, ge=0.0, le=1.0)
    """Probability of the intended move on slippery ice; otherwise to either side equally."""
    min_distance: PositiveInt = 1
    """Fewest moves of the shortest safe path."""
    max_distance: PositiveInt | None = None
    """Most moves of the shortest safe path; null: no limit."""
    state_objects: Literal["target", "near", "all"] | None = None
    """Objects in state texts: the target, also the holes next to the player (`near`), or every hole
    (`all`); null is `target` in brief prompts and `all` in full ones."""

    @model_validator(mode="after")
    def _distances_in_order(self) -> "FrozenLakeConfig":
        if self.max_distance is not None and self.max_distance < self.min_distance:
            raise ValueError(
                f"max_distance ({self.max_distance}) is below min_distance ({self.min_distance})"
            )
        return self

    @property
    def picture_side(self) -> int:
        """Side of the image in pixels."""
        return self.size * self.tile_size

    @property
    def described(self) -> Literal["target", "near", "all"]:
        """Objects in state texts."""
        if self.layout.notation == "symbolic":
            return "all"
        return self.state_objects or ("all" if self.prompt_detail == "full" else "target")

    def positions(self, state: State) -> dict[str, Any]:
        """Player, target and the described holes."""
        places = {"player": state["player"], "target": state["target"]}
        if self.described != "target":
            near = self.described == "near"
            places["holes"] = holes_beside(state) if near else state["holes"]
        return places


def holes_beside(state: State) -> list[Position]:
    """Holes one move away from the player."""
    row, column = state["player"]
    return [[r, c] for r, c in state["holes"] if abs(r - row) + abs(c - column) == 1]


@dataclass(frozen=True, slots=True)
class FrozenLakeLevel:
    """A solvable lake."""

    size: int
    holes: Cells
    start: Cell
    target: Cell
    distance: int
    """Length of the shortest safe path, in moves."""
    level_hash: str


@functools.cache
def neighbours(size: int) -> list[tuple[Cell, Cell, Cell, Cell]]:
    """Target cell of each action of `ACTIONS` from each cell."""
    table = []
    for cell in range(size * size):
        row, column = divmod(cell, size)
        table.append(
            (
                cell - (column > 0),
                cell + size * (row < size - 1),
                cell + (column < size - 1),
                cell - size * (row > 0),
            )
        )
    return table


def distances_to(target: Cell, holes: Cells, size: int) -> list[int]:
    """Safe moves from each cell to `target`; -1 for holes and unreachable cells."""
    table = neighbours(size)
    distances = [-1] * (size * size)
    distances[target] = 0
    queue = [target]
    for cell in queue:
        further = distances[cell] + 1
        for neighbour in table[cell]:
            if distances[neighbour] < 0 and not holes >> neighbour & 1:
                distances[neighbour] = further
                queue.append(neighbour)
    return distances


def sample_level(config: FrozenLakeConfig, seed: int, split: Split) -> FrozenLakeLevel:
    """The level of a seed in a split: the first candidate that satisfies all options.

    Raises:
        LevelError: None of many candidates does.
    """
    rng = Random(seed)
    size, p_frozen = config.size, config.p_frozen
    least, most = config.min_distance, config.max_distance or size * size
    for _ in range(MAX_CANDIDATES):
        holes = 0
        for cell in range(size * size):
            if rng.random() >= p_frozen:
                holes |= 1 << cell
        ice = [cell for cell in range(size * size) if not holes >> cell & 1]
        if len(ice) < 2:
            continue
        start = ice.pop(draw_index(rng, len(ice)))
        target = ice[draw_index(rng, len(ice))]
        digest = content_hash(f"FrozenLake {size} {holes:x} {start} {target}")
        if split_of(digest) != split:
            continue
        distance = distances_to(target, holes, size)[start]
        if least <= distance <= most:
            return FrozenLakeLevel(size, holes, start, target, distance, digest)
    raise LevelError(
        f"FrozenLake: none of {MAX_CANDIDATES} lakes of size {size} with p_frozen {p_frozen} has a "
        f"safe path of {least} to {most} moves in split {split!r}; widen min_distance and "
        f"max_distance, or change size or p_frozen"
    )


class FrozenLake:
    """A game on a level; randomness depends only on its seed."""

    def __init__(self, level: FrozenLakeLevel, *, slip: Random | None, success_rate: float) -> None:
        """Starts `level`; `slip` None disables slipping."""
        self.level = level
        self.player: Cell = level.start
        self._slip = slip
        self._success_rate = success_rate

    @property
    def in_hole(self) -> bool:
        """Whether the player is in a hole."""
        return bool(self.level.holes >> self.player & 1)

    @property
    def at_target(self) -> bool:
        """Whether the player is at the target."""
        return self.player == self.level.target

    def move(self, action: int) -> None:
        """Moves by an index of `ACTIONS`."""
        if self._slip is not None:
            draw = self._slip.random() - self._success_rate
            if draw >= 0:
                action = (action + (1 if 2 * draw < 1 - self._success_rate else 3)) % 4
        self.player = neighbours(self.level.size)[self.player][action]

    def best_path(self, count: int) -> list[int]:
        """Up to `count` moves of a shortest safe path, as indices of `ACTIONS`."""
        table = neighbours(self.level.size)
        distances = distances_to(self.level.target, self.level.holes, self.level.size)
        cell, path = self.player, []
        while len(path) < count and distances[cell] > 0:
            action = next(a for a in range(4) if distances[table[cell][a]] == distances[cell] - 1)
            path.append(action)
            cell = table[cell][action]
        return path
