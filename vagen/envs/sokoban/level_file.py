"""Levels from a file in Boxoban's text format.

Levels are blocks of lines of `#` wall, blank floor, `.` target, `$` box, `*` box on a target, `@`
player, `+` player on a target; lines that start with `;` and empty lines separate them.
"""

import functools
import os
from pathlib import Path

from vagen.envs.grid import Cells
from vagen.envs.levels import SPLITS, LevelError, Split, content_hash, split_of
from vagen.envs.sokoban.game import Room, SokobanLevel, flood
from vagen.envs.sokoban.solver import BudgetSpent, solve

MAX_SIDE = 20
GREEDY_WEIGHT = 3


class LevelFile:
    """The levels of a file by split; each is checked to be solvable when it is first used."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the file.

        Raises:
            LevelError: if the file cannot be read or a level in it is malformed; the message names
                the file and the level.
        """
        self.path = path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise LevelError(f"level file {path} cannot be read: {error}") from error
        blocks = _blocks(lines)
        if not blocks:
            raise LevelError(f"level file {path} holds no level")
        self.rows = max(len(block) for _, block in blocks)
        self.columns = max(len(line) for _, block in blocks for line in block)
        if max(self.rows, self.columns) > MAX_SIDE:
            raise LevelError(
                f"level file {path}: a level of {self.rows} x {self.columns} cells; "
                f"at most {MAX_SIDE} x {MAX_SIDE} are supported"
            )
        self._solved: dict[int, SokobanLevel] = {}
        self._levels: list[tuple[str, SokobanLevel]] = []
        self._members: dict[Split, list[int]] = {split: [] for split in SPLITS}
        for index, (first_line, block) in enumerate(blocks):
            where = f"level file {path}, level {index} (line {first_line})"
            level = _parse(block, self.rows, self.columns, where)
            self._levels.append((where, level))
            self._members[split_of(content_hash(level.room.content))].append(index)

    def __len__(self) -> int:
        return len(self._levels)

    def level(self, seed: int, split: Split, *, budget: int) -> SokobanLevel:
        """The level of a seed: successive seeds go round the split's levels.

        Raises:
            LevelError: if the split has no level, or this level has no solution or none was found
                by expanding `budget` states.
        """
        members = self._members[split]
        if not members:
            raise LevelError(
                f"level file {self.path} has {len(self)} levels, none of them in split {split!r} "
                f"(a level's split is decided by its content); use a file with more levels"
            )
        index = members[seed % len(members)]
        if index not in self._solved:
            where, level = self._levels[index]
            self._solved[index] = _checked(level, budget, where)
        return self._solved[index]


def open_level_file(path: str) -> LevelFile:
    """The file's levels, read once as long as the file does not change.

    Raises:
        LevelError: if the file is missing or malformed.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise LevelError(f"level file {path} cannot be read: {error.strerror}") from error
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: str, modified: int, size: int) -> LevelFile:
    return LevelFile(Path(path))


def _blocks(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Levels as lines, each with the number of its first line."""
    blocks: list[tuple[int, list[str]]] = []
    inside = False
    for number, line in enumerate(lines, start=1):
        line = line.rstrip()
        if not line or line.startswith(";"):
            inside = False
        elif inside:
            blocks[-1][1].append(line)
        else:
            blocks.append((number, [line]))
            inside = True
    return blocks


def _parse(block: list[str], rows: int, columns: int, where: str) -> SokobanLevel:
    """A level on a grid of the file's common size, filled up with walls."""
    sets: dict[str, Cells] = dict.fromkeys("# .$*@+", 0)
    for row, line in enumerate(block):
        for column, symbol in enumerate(line):
            if symbol not in sets:
                raise LevelError(
                    f"{where}: unknown character {symbol!r} in row {row}, column {column}; "
                    f"known are # (wall), blank, . (target), $ (box), * (box on target), "
                    f"@ (player), + (player on target)"
                )
            sets[symbol] |= 1 << row * columns + column
    boxes, targets = sets["$"] | sets["*"], sets["."] | sets["*"] | sets["+"]
    player = sets["@"] | sets["+"]
    if player.bit_count() != 1:
        raise LevelError(f"{where}: {player.bit_count()} players; a level has exactly one")
    if not boxes or boxes.bit_count() != targets.bit_count():
        raise LevelError(
            f"{where}: {boxes.bit_count()} boxes and {targets.bit_count()} targets; "
            f"a level has as many boxes as targets, at least one"
        )
    edge = sum(
        1 << row * columns + column
        for row in range(rows)
        for column in range(columns)
        if row in (0, rows - 1) or column in (0, columns - 1)
    )
    not_wall = sets[" "] | boxes | targets | player
    if (player | boxes | targets) & edge:
        raise LevelError(f"{where}: the outermost cells hold more than walls")
    floor = flood(player, not_wall & ~edge, columns)
    if _beside(floor, columns) & not_wall & edge:
        raise LevelError(f"{where}: the room is not closed by walls")
    if (boxes | targets) & ~floor:
        raise LevelError(f"{where}: a box or target is outside the player's room")
    room = Room(rows, columns, floor, targets)
    return SokobanLevel.create(room, boxes, player.bit_length() - 1, None)


def _beside(cells: Cells, columns: int) -> Cells:
    return cells << 1 | cells >> 1 | cells << columns | cells >> columns


def _checked(level: SokobanLevel, budget: int, where: str) -> SokobanLevel:
    if level.boxes == level.room.targets:
        raise LevelError(f"{where}: every box is on a target already")
    try:
        solution = solve(level.room, level.boxes, level.player, budget=budget, weight=GREEDY_WEIGHT)
    except BudgetSpent as spent:
        raise LevelError(
            f"{where}: no solution found in {budget} states; raise search_budget or leave it out"
        ) from spent
    if not solution:
        raise LevelError(f"{where}: this level cannot be solved")
    return level
