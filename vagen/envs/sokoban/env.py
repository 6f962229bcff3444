"""Sokoban as an environment, and its claims."""

import functools
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.envs.grid import DIRECTIONS, Cell, Cells, GridEnv, Place, Player, Spot, positions_of
from vagen.envs.images import Canvas, TileSet
from vagen.envs.levels import Split
from vagen.envs.sokoban.game import ACTIONS, Room, Sokoban, SokobanConfig, SokobanLevel
from vagen.envs.sokoban.generator import generate
from vagen.envs.sokoban.level_file import GREEDY_WEIGHT, open_level_file
from vagen.envs.sokoban.solver import SearchLimitReached, solve


class Box(Place):
    """Position of a box relative to the player."""

    phrase = "box is {vertical} and {horizontal}"
    subject, several = None, True


class Target(Place):
    """Position of a target relative to the player."""

    phrase = "target is {vertical} and {horizontal}"
    subject, several = None, True


class BoxAt(Spot):
    """Row and column of a box."""

    phrase = "box is at row {row} and column {column}"
    subject, several = None, True


class TargetAt(Spot):
    """Row and column of a target."""

    phrase = "target is at row {row} and column {column}"
    subject, several = None, True


DRAWN: dict[str, tuple[type[Spot], ...]] = {
    "_": (),
    "#": (),
    "O": (TargetAt,),
    "X": (BoxAt,),
    "√": (BoxAt, TargetAt),
    "P": (Player,),
    "S": (Player, TargetAt),
}
"""Claims of each symbol, in the order of the tile codes."""
FLOOR, WALL, TARGET, BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET = range(7)
EFFECTS = {name: index for index, name in enumerate(ACTIONS)}


class SokobanEnv(GridEnv):
    """Push every box onto a target."""

    env_name: ClassVar[str] = "Sokoban"
    config_class: ClassVar[type[SokobanConfig]] = SokobanConfig
    calibration_options = ({"dim_room": [7, 7], "num_boxes": 2},)
    difficulty_name = "moves of a best solution"
    gallery_options: ClassVar[dict[str, Any]] = {"max_steps": 20}
    actions: ClassVar[tuple[str, ...]] = ACTIONS
    symbols, drawn = "".join(DRAWN), DRAWN
    places: ClassVar[dict[str, type[Place]]] = {"boxes": Box, "targets": Target}
    spots: ClassVar[dict[str, type[Spot]]] = {"player": Player, "boxes": BoxAt, "targets": TargetAt}
    claims = (*places.values(), *spots.values())
    required, half_credit = (Box, Target, BoxAt, TargetAt), False
    example_state: ClassVar[State] = {
        "env_name": "Sokoban",
        "size": [5, 5],
        "player": [2, 1],
        "boxes": [[3, 2]],
        "targets": [[3, 3]],
        "walls": [[r, c] for r in range(5) for c in range(5) if r in (0, 4) or c in (0, 4)],
    }
    example_actions: ClassVar[tuple[str, ...]] = ("Down", "Right")

    config: SokobanConfig
    _game: Sokoban

    @classmethod
    def sample_level(cls, config: SokobanConfig, seed: int, split: Split) -> SokobanLevel:
        """The level of `reset(seed=seed)` in this split."""
        if config.level_file is None:
            return generate(config, seed, split)
        levels = open_level_file(config.level_file)
        return levels.level(seed, split, budget=config.search_budget)

    @classmethod
    def difficulty(cls, level: SokobanLevel) -> tuple[float, ...]:
        """Moves of a shortest solution, and boxes; only boxes for levels of a file."""
        boxes = level.boxes.bit_count()
        return (boxes,) if level.optimal_length is None else (level.optimal_length, boxes)

    def _grid_size(self) -> tuple[int, int]:
        if self.config.level_file is None:
            return self.config.dim_room
        levels = open_level_file(self.config.level_file)
        return levels.rows, levels.columns

    def _load_level(self, level: SokobanLevel, seed: int) -> None:
        self._game = Sokoban(level)
        self._walls = positions_of(level.room.walls, level.room.columns)
        self._targets = positions_of(level.room.targets, level.room.columns)
        self._solutions: dict[tuple[Cells, Cell], list[int]] = {}

    def _move(self, action: str) -> tuple[float, bool]:
        game, before = self._game, self._game.boxes_on_target
        game.move(EFFECTS[action])
        reward = self._rewards["step"]
        reward += self._rewards["box"] * (game.boxes_on_target - before)
        return (reward + self._rewards["success"], True) if game.solved else (reward, False)

    def _is_won(self) -> bool:
        return self._game.solved

    def _read_state(self) -> State:
        game, room = self._game, self._game.room
        return {
            "env_name": self.env_name,
            "size": [room.rows, room.columns],
            "player": list(divmod(game.player, room.columns)),
            "boxes": positions_of(game.boxes, room.columns),
            "targets": self._targets,
            "walls": self._walls,
        }

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Moves of a shortest solution (of any solution if the search would be too long).

        None if there is none, or none was found.
        """
        rows, columns = state["size"]

        def cells(name: str) -> Cells:
            return sum(1 << row * columns + column for row, column in state[name])

        floor = (1 << rows * columns) - 1 & ~cells("walls")
        room = Room(rows, columns, floor, cells("targets"))
        player = state["player"][0] * columns + state["player"][1]
        return _solution_length(room, cells("boxes"), player)

    def _plan(self, count: int) -> list[str]:
        return [ACTIONS[action] for action in self._best_moves()[:count]]

    def _best_moves(self) -> list[int]:
        """A solution from here: a shortest one, or any one if the search budget is too small.

        If success is impossible, a possible walk. All states on a solution reuse it, so that
        following the expert terminates.
        """
        game = self._game
        here = (game.boxes, game.player)
        if here not in self._solutions:
            moves = self._solve() or self._possible_walk()
            for index, action in enumerate(moves):
                self._solutions.setdefault((game.boxes, game.player), moves[index:])
                game.move(action)
            game.boxes, game.player = here
        return self._solutions[here]

    def _solve(self) -> list[int]:
        game, budget = self._game, self.config.search_budget
        for weight in (1, GREEDY_WEIGHT):
            try:
                return solve(game.room, game.boxes, game.player, budget=budget, weight=weight)
            except SearchLimitReached:
                continue
        return []

    def _possible_walk(self) -> list[int]:
        game = self._game
        free = game.room.floor & ~game.boxes
        steps = enumerate(game.room.offsets)
        return [next((a for a, offset in steps if free >> game.player + offset & 1), 0)]

    def _after(self, state: State, actions: list[str]) -> State:
        player, boxes, walls = state["player"], state["boxes"], state["walls"]
        for action in actions:
            down, right = DIRECTIONS[action]
            ahead = [player[0] + down, player[1] + right]
            behind = [ahead[0] + down, ahead[1] + right]
            if ahead in walls or (ahead in boxes and behind in walls + boxes):
                continue
            boxes = sorted(behind if box == ahead else box for box in boxes)
            player = ahead
        return {**state, "player": player, "boxes": boxes}

    @staticmethod
    def codes_of(state: State) -> NDArray[np.uint8]:
        """Tile codes of a state, [rows, columns]."""
        rows, columns = state["size"]
        codes = bytearray(rows * columns)
        for row, column in state["walls"]:
            codes[row * columns + column] = WALL
        for row, column in state["targets"]:
            codes[row * columns + column] = TARGET
        for row, column in state["boxes"]:
            cell = row * columns + column
            codes[cell] = BOX_ON_TARGET if codes[cell] == TARGET else BOX
        row, column = state["player"]
        cell = row * columns + column
        codes[cell] = PLAYER_ON_TARGET if codes[cell] == TARGET else PLAYER
        return np.frombuffer(codes, np.uint8).reshape(rows, columns)

    @classmethod
    def symbol_legend(cls) -> str:
        """Meaning of each symbol."""
        return "P player, _ floor, # wall, O target, X box, √ box on a target, S player on a target"

    def _rules(self) -> str:
        if self.config.render_mode == "vision":
            look = (
                "The picture shows the room from above: floor is sand-coloured, walls are grey "
                "bricks, a target is a red ring, a box is a brown crate, a box on a target is a "
                "green crate and the player is a blue figure, on a pink cell with a red ring when "
                "on a target."
            )
        else:
            look = f"The room is shown from above by the symbols {self.symbol_legend()}."
        return (
            "You play Sokoban: push every box onto a target.\n"
            f"{look}\n"
            f"Actions: {', '.join(ACTIONS)}. Each moves the player one cell. Moving against a box "
            "pushes it one cell if the cell behind it is free; boxes cannot be pulled, and walls "
            "stop player and boxes."
        )

    def _brief_rules(self) -> str:
        return "push each box onto a target . actions : " + " , ".join(ACTIONS)

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def _draw_tiles(side: int) -> TileSet:
        sand, seam = (240, 226, 190), (222, 204, 160)
        mortar, brick = (66, 70, 80), (120, 126, 140)
        red, pink = (225, 30, 50), (255, 190, 205)
        blue, navy = (40, 96, 235), (10, 24, 84)

        def ground(colour: tuple[int, int, int] = sand) -> Canvas:
            canvas = Canvas(side, colour)
            return canvas.fill(~canvas.box(0.03, 0.03, 0.97, 0.97), seam)

        def wall() -> Canvas:
            canvas = Canvas(side, mortar)
            for row in range(3):
                top = row / 3 + 0.03
                for left in (-0.25, 0.25, 0.75) if row % 2 else (0.0, 0.5):
                    canvas.fill(canvas.box(left + 0.03, top, left + 0.47, top + 0.27), brick)
            return canvas

        def ring(canvas: Canvas, radius: float) -> Canvas:
            band = canvas.disc(0.5, 0.5, radius) & ~canvas.disc(0.5, 0.5, radius - 0.1)
            return canvas.fill(band, red)

        def crate(wood: tuple[int, int, int], frame: tuple[int, int, int]) -> Canvas:
            canvas = ground()
            canvas.fill(canvas.box(0.08, 0.08, 0.92, 0.92), frame)
            canvas.fill(canvas.box(0.19, 0.19, 0.81, 0.81), wood)
            canvas.fill(canvas.line((0.19, 0.19), (0.81, 0.81), 0.1), frame)
            return canvas.fill(canvas.line((0.19, 0.81), (0.81, 0.19), 0.1), frame)

        on_target = ring(ground(pink), 0.48).figure(blue, navy)
        return TileSet(
            [
                ground().pixels(),
                wall().pixels(),
                ring(ground(), 0.34).fill(ground().disc(0.5, 0.5, 0.1), red).pixels(),
                crate((190, 120, 50), (112, 62, 16)).pixels(),
                crate((70, 200, 90), (14, 104, 40)).pixels(),
                ground().figure(blue, navy).pixels(),
                on_target.pixels(),
            ]
        )


SEARCH_BUDGET = 10_000
"""Box arrangements examined for the distance of one state."""


@functools.lru_cache(maxsize=4096)
def _solution_length(room: Room, boxes: Cells, player: Cell) -> float | None:
    """Moves to success, cached, since states of an iteration are queried repeatedly."""
    if boxes == room.targets:
        return 0.0
    for weight in (1, GREEDY_WEIGHT):
        try:
            moves = solve(room, boxes, player, budget=SEARCH_BUDGET, weight=weight)
        except SearchLimitReached:
            continue
        return float(len(moves)) if moves else None
    return None
