"""Levels from a file in Boxoban's text format.

Levels are blocks of lines of `#` wall, blank floor, `.` target, `$` box, `*` box on a target, `@`
player, `+` player on a target; lines that start with `;` and empty lines separate them.
"""

import functools
import os
from pathlib import Path

from vagen.envs.grid import DIRECTIONS, Cells
from vagen.envs.levels import SPLITS, LevelError, Split, content_hash, split_of
from vagen.envs.sokoban.game import Room, SokobanLevel
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
    """A level on a grid of the file's common size; all but the player's room becomes walls."""
    symbols = {(r, c): symbol for r, line in enumerate(block) for c, symbol in enumerate(line)}
    for (row, column), symbol in symbols.items():
        if symbol not in "# .$*@+":
            raise LevelError(
                f"{where}: unknown character {symbol!r} in row {row}, column {column}; "
                f"known are # (wall), blank, . (target), $ (box), * (box on target), "
                f"@ (player), + (player on target)"
            )
    players = [cell for cell, symbol in symbols.items() if symbol in "@+"]
    boxes = {cell for cell, symbol in symbols.items() if symbol in "$*"}
    targets = {cell for cell, symbol in symbols.items() if symbol in ".*+"}
    if len(players) != 1:
        raise LevelError(f"{where}: {len(players)} players; a level has exactly one")
    if not boxes or len(boxes) != len(targets):
        raise LevelError(
            f"{where}: {len(boxes)} boxes and {len(targets)} targets; "
            f"a level has as many boxes as targets, at least one"
        )
    floor: set[tuple[int, int]] = set()
    todo = [*players]
    while todo:
        row, column = todo.pop()
        if (row, column) not in symbols:
            raise LevelError(f"{where}: the player's room is not closed by walls")
        if symbols[row, column] != "#" and (row, column) not in floor:
            floor.add((row, column))
            todo += [(row + down, column + right) for down, right in DIRECTIONS.values()]
    if not boxes | targets <= floor:
        raise LevelError(f"{where}: a box or target is outside the player's room")

    def cells(positions: set[tuple[int, int]]) -> Cells:
        return sum(1 << row * columns + column for row, column in positions)

    room = Room(rows, columns, cells(floor), cells(targets))
    player = players[0][0] * columns + players[0][1]
    return SokobanLevel.create(room, cells(boxes), player, None)


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
