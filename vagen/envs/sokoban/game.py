"""The game of Sokoban: levels and moves."""

from dataclasses import dataclass
from typing import Self

from vagen.envs.grid import DIRECTIONS, Cell, Cells
from vagen.envs.levels import content_hash

ACTIONS = tuple(DIRECTIONS)


@dataclass(frozen=True, slots=True)
class Room:
    """Walls and targets, the constant part of a level. The outermost cells are walls."""

    rows: int
    columns: int
    floor: Cells
    """Cells that are not walls, including targets; all connected."""
    targets: Cells

    @property
    def walls(self) -> Cells:
        """All other cells."""
        return (1 << self.rows * self.columns) - 1 & ~self.floor

    @property
    def offsets(self) -> tuple[int, ...]:
        """Change of the cell index for each action of `ACTIONS`."""
        return (-self.columns, self.columns, -1, 1)

    @property
    def content(self) -> str:
        """Canonical text."""
        return f"Sokoban {self.rows} {self.columns} {self.floor:x} {self.targets:x}"


@dataclass(frozen=True, slots=True)
class SokobanLevel:
    """A solvable start in a room."""

    room: Room
    boxes: Cells
    player: Cell
    optimal_length: int | None
    """Moves of a shortest solution; None if unknown (levels of a file)."""
    level_hash: str

    @classmethod
    def create(cls, room: Room, boxes: Cells, player: Cell, optimal_length: int | None) -> Self:
        """A level with its content hash."""
        digest = content_hash(f"{room.content} {boxes:x} {player}")
        return cls(room, boxes, player, optimal_length, digest)


def shift(cells: Cells, offset: int) -> Cells:
    """Moves every member of a cell set by `offset`."""
    return cells << offset if offset > 0 else cells >> -offset


def flood(start: Cells, free: Cells, columns: int) -> Cells:
    """All cells of `free` reachable from `start`; no free cell may be on the edge."""
    reached = start
    while True:
        grown = reached | reached << 1 | reached >> 1 | reached << columns | reached >> columns
        grown = grown & free | start
        if grown == reached:
            return reached
        reached = grown


class Sokoban:
    """A game on a level."""

    def __init__(self, level: SokobanLevel) -> None:
        """Starts `level`."""
        self.room = level.room
        self.boxes = level.boxes
        self.player = level.player
        self._offsets = level.room.offsets

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes == self.room.targets

    @property
    def boxes_on_target(self) -> int:
        """Number of boxes on a target."""
        return (self.boxes & self.room.targets).bit_count()

    def move(self, action: int) -> None:
        """Walks or pushes by an index of `ACTIONS`; does nothing if the way is blocked."""
        offset = self._offsets[action]
        ahead = self.player + offset
        if not self.room.floor >> ahead & 1:
            return
        if self.boxes >> ahead & 1:
            beyond = ahead + offset
            if not (self.room.floor & ~self.boxes) >> beyond & 1:
                return
            self.boxes ^= 1 << ahead | 1 << beyond
        self.player = ahead
