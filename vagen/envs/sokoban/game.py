"""The game of Sokoban: options, levels and moves."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from vagen.envs.base import State
from vagen.envs.config import Served
from vagen.envs.grid import DIRECTIONS, Cell, Cells, GridConfig
from vagen.envs.levels import content_hash

ACTIONS = tuple(DIRECTIONS)


class SokobanConfig(GridConfig):
    """Options of Sokoban."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "success": 10.0, "box": 1.0, "step": -0.1},
        "vagen-new": {"format": 0.1, "success": 1.0, "box": 0.0, "step": 0.0},
    }

    dim_room: tuple[int, int] = (6, 6)
    """Rows and columns, including the border of walls."""
    num_boxes: PositiveInt = 1
    """Number of boxes, and of targets."""
    wall_density: float = Field(0.2, ge=0.0, le=0.6)
    """Probability of a cell inside the border to be a wall."""
    min_solution_length: PositiveInt = 1
    """Fewest moves of the shortest solution."""
    max_solution_length: PositiveInt | None = None
    """Most moves of the shortest solution; null: no limit."""
    search_budget: Annotated[PositiveInt, Served(at_most=100_000)] = 10_000
    """Most box arrangements examined per level; more finds longer levels, and solves harder ones
    of a file."""
    level_file: Annotated[str | None, Served()] = None
    """Levels in Boxoban's text format instead of generated ones."""

    @field_validator("dim_room")
    @classmethod
    def _has_an_inside(cls, dim_room: tuple[int, int]) -> tuple[int, int]:
        if min(dim_room) < 4 or max(dim_room) > 20:
            raise ValueError(f"rows and columns must be 4 to 20, border included; got {dim_room}")
        return dim_room

    @model_validator(mode="after")
    def _possible(self) -> "SokobanConfig":
        inside = (self.dim_room[0] - 2) * (self.dim_room[1] - 2)
        if self.num_boxes > inside // 2 - 1:
            raise ValueError(
                f"num_boxes is {self.num_boxes}, but a room of {self.dim_room} with its {inside} "
                f"cells inside holds at most {inside // 2 - 1}"
            )
        least, most = self.min_solution_length, self.max_solution_length
        if most is not None and most < least:
            raise ValueError(f"max_solution_length ({most}) is below min_solution_length ({least})")
        if self.level_file is not None and (most is not None or least > 1):
            raise ValueError(
                "level_file goes without min_solution_length and max_solution_length: the best "
                "solutions of its levels are not known"
            )
        return self

    @property
    def picture_side(self) -> int:
        """Longer side of the image in pixels."""
        return max(self.dim_room) * self.tile_size

    def positions(self, state: State) -> dict[str, Any]:
        """Player, boxes and targets."""
        return {key: state[key] for key in ("player", "boxes", "targets")}


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


def neighbours(cells: Cells, columns: int) -> Cells:
    """All cells beside a member; no member may be on the edge."""
    return cells << 1 | cells >> 1 | cells << columns | cells >> columns


def flood(start: Cells, free: Cells, columns: int) -> Cells:
    """All cells of `free` reachable from `start`; no free cell may be on the edge."""
    reached = start
    while True:
        grown = (reached | neighbours(reached, columns)) & free | start
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
