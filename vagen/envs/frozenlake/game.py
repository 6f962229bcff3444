"""The game of FrozenLake: levels, moves, shortest paths.

Moves are those of Gymnasium's FrozenLake: the border blocks the player, a hole or the target ends
the episode, and on slippery ice a move succeeds with the success rate and otherwise goes to one of
the two sides equally.
"""

import functools
from dataclasses import dataclass
from random import Random

from vagen.envs.frozenlake.config import FrozenLakeConfig
from vagen.envs.grid import Cell, Cells
from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of

ACTIONS = ("Left", "Down", "Right", "Up")
"""In Gymnasium's order, where the neighbours of an action are its two sides."""


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
