"""Reads levels from a text file in the formats of Boxoban and Sokoban's players (xsb, sok).

A line with a wall and only symbols is a row of a level: `#` wall, blank, `-` or `_` floor, `.` or
`o` target, `$` or `b` box, `*` or `B` box on a target, `@` or `p` player, `+` or `P` player on a
target. A number repeats the next symbol, `|` ends a row (`4#|#@$.#`). Other lines (empty, title,
author, comment, solution) separate levels and are ignored, as are single rows.
"""

import functools
import os
import re
from pathlib import Path

from vagen.envs.grid import DIRECTIONS, Cells
from vagen.envs.levels import SPLITS, LevelError, Split, content_hash, split_of
from vagen.envs.sokoban.game import Room, SokobanLevel
from vagen.envs.sokoban.solver import SearchLimitReached, solve

MAX_SIDE = 50
_SYMBOLS = str.maketrans("-_obBpP", "  .$*@+")
_ROWS = re.compile(r"[-_#@+$*.obBpP \d|()]*")
_GROUP = re.compile(r"(\d{1,3})\(([^()\d]*)\)")
_RUN = re.compile(r"(\d{1,3})([^()\d|])")
_LONGEST = 10_000
"""Maximum characters of an expanded line."""
GREEDY_WEIGHT = 3


class LevelFile:
    """The levels of a file by split; each is checked to be solvable on first use."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the file.

        Raises:
            LevelError: The file cannot be read or a level is malformed; the message names the file
                and the level.
        """
        self.path = path
        try:
            content = path.read_bytes()
        except OSError as error:
            raise LevelError(f"level file {path} cannot be read: {error}") from error
        if b"\0" in content:
            raise LevelError(f"level file {path} cannot be read: it is no text")
        # Authors' names have various encodings, but levels are the same in all of them.
        blocks = _blocks(content.decode("utf-8-sig", "replace").splitlines(), f"level file {path}")
        if not blocks:
            raise LevelError(f"level file {path} holds no level")
        self.rows = max(len(block) for _, block in blocks)
        self.columns = max(len(line) for _, block in blocks for line in block)
        if max(self.rows, self.columns) > MAX_SIDE:
            raise LevelError(
                f"level file {path}: its levels are shown on one grid, and need one of "
                f"{self.rows} x {self.columns} cells; at most {MAX_SIDE} x {MAX_SIDE} are "
                "supported: leave the largest out"
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
        """The level of a seed, modulo the number of the split's levels.

        Raises:
            LevelError: The split has no level, or this level has no solution, or none was found
                within `budget` states.
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
    """The file's levels, cached until the file changes.

    Raises:
        LevelError: The file is missing or malformed.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise LevelError(f"level file {path} cannot be read: {error.strerror}") from error
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: str, modified: int, size: int) -> LevelFile:
    return LevelFile(Path(path))


def _blocks(lines: list[str], where: str) -> list[tuple[int, list[str]]]:
    """Levels as rows of `# .$*@+`, each with its first line's number.

    Raises:
        LevelError: A row of a level has another character.
    """
    blocks: list[tuple[int, list[str]]] = []
    inside = False
    for number, line in enumerate(lines, start=1):
        line = line.expandtabs().rstrip()
        rows = _rows(line)
        if not rows:
            if inside and line.lstrip("-_ ").startswith("#"):
                first, block = blocks[-1]
                column, symbol = next(
                    (i, s) for i, s in enumerate(line) if s.isdigit() or not _ROWS.fullmatch(s)
                )
                raise LevelError(
                    f"{where}, level {len(blocks) - 1} (line {first}): unknown character "
                    f"{symbol!r} in row {len(block)}, column {column}; known are # (wall), blank, "
                    "- and _ (floor), . (target), $ (box), * (box on target), @ (player), + "
                    "(player on target)"
                )
            inside = False
        elif inside:
            blocks[-1][1].extend(rows)
        else:
            blocks.append((number, rows))
            inside = True
    return [(number, rows) for number, rows in blocks if len(rows) > 1]


def _rows(line: str) -> list[str]:
    """Expands a line to rows; empty if it is not part of a level."""
    in_runs = any(character.isdigit() for character in line)
    if "#" not in line or not _ROWS.fullmatch(line) or (in_runs and " " in line.strip()):
        return []
    for pattern in (_RUN, _GROUP):
        while (longer := pattern.sub(lambda m: int(m[1]) * m[2], line)) != line:
            if len(longer) > _LONGEST:
                return []
            line = longer
    if re.search(r"[\d()]", line):
        return []
    return [row.translate(_SYMBOLS).rstrip() for row in line.removesuffix("|").split("|")]


def _parse(block: list[str], rows: int, columns: int, where: str) -> SokobanLevel:
    """A level on a grid of the file's maximum size; walls outside the player's room."""
    symbols = {(r, c): symbol for r, line in enumerate(block) for c, symbol in enumerate(line)}
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
    if boxes - floor != targets - floor:
        raise LevelError(f"{where}: a box or target is outside the player's room")
    boxes, targets = boxes & floor, targets & floor  # solved boxes outside are decoration

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
    except SearchLimitReached as spent:
        raise LevelError(
            f"{where}: no solution found in {budget} states; raise search_budget or leave it out"
        ) from spent
    if not solution:
        raise LevelError(f"{where}: this level cannot be solved")
    return level
