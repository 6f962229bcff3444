"""FrozenLake as an environment, and its claims."""

import functools
from random import Random
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import State
from vagen.envs.claims import Claim
from vagen.envs.frozenlake.game import (
    ACTIONS,
    FrozenLake,
    FrozenLakeConfig,
    FrozenLakeLevel,
    neighbours,
    sample_level,
)
from vagen.envs.grid import GridEnv, Place, Player, Spot, positions_of
from vagen.envs.images import Canvas, TileSet
from vagen.envs.levels import Split


class Target(Place):
    """Position of the target relative to the player."""

    phrase = "target is {vertical} and {horizontal}"
    weight = 0.7


class _Hole(Claim):
    subject, several = None, True
    weight = 0.3

    @classmethod
    def most(cls, count: int) -> int:
        """Up to twice as many claims as holes, since holes are numerous and similar."""
        return max(2 * count, count + 2)


class Hole(_Hole, Place):
    """Position of a hole relative to the player."""

    phrase = "hole is {vertical} and {horizontal}"


class TargetAt(Spot):
    """Row and column of the target."""

    phrase = "target is at row {row} and column {column}"
    weight = 0.7


class HoleAt(_Hole, Spot):
    """Row and column of a hole."""

    phrase = "hole is at row {row} and column {column}"


DRAWN: dict[str, tuple[type[Spot], ...]] = {
    "_": (),
    "O": (HoleAt,),
    "G": (TargetAt,),
    "P": (Player,),
    "X": (Player, HoleAt),
    "√": (Player, TargetAt),
}
"""Claims of each symbol, in the order of the tile codes."""
FROZEN, HOLE, TARGET, PLAYER, PLAYER_IN_HOLE, PLAYER_ON_TARGET = range(6)
EFFECTS = {name: index for index, name in enumerate(ACTIONS)}


class FrozenLakeEnv(GridEnv):
    """Walk over the ice to the target without falling into a hole."""

    env_name: ClassVar[str] = "FrozenLake"
    config_class: ClassVar[type[FrozenLakeConfig]] = FrozenLakeConfig
    calibration_options = ({"prompt_detail": "brief"}, {"state_objects": "near"}, {"size": 6})
    difficulty_name = "moves of the shortest safe path"
    gallery_options: ClassVar[dict[str, Any]] = {"max_steps": 10}
    actions: ClassVar[tuple[str, ...]] = ACTIONS
    symbols, drawn = "".join(DRAWN), DRAWN
    places: ClassVar[dict[str, type[Place]]] = {"target": Target, "holes": Hole}
    spots: ClassVar[dict[str, type[Spot]]] = {"player": Player, "target": TargetAt, "holes": HoleAt}
    claims = (*places.values(), *spots.values())
    required = (Target, TargetAt)
    example_state: ClassVar[State] = {
        "env_name": "FrozenLake",
        "size": [4, 4],
        "player": [0, 1],
        "target": [2, 2],
        "holes": [[1, 1], [3, 0]],
    }
    example_actions: ClassVar[tuple[str, ...]] = ("Right", "Down")

    config: FrozenLakeConfig
    _game: FrozenLake

    @classmethod
    def sample_level(cls, config: FrozenLakeConfig, seed: int, split: Split) -> FrozenLakeLevel:
        """The level of `reset(seed=seed)` in this split."""
        return sample_level(config, seed, split)

    @classmethod
    def difficulty(cls, level: FrozenLakeLevel) -> tuple[float, ...]:
        """Moves of the shortest safe path, and number of holes."""
        return level.distance, level.holes.bit_count()

    def _grid_size(self) -> tuple[int, int]:
        return self.config.size, self.config.size

    def _load_level(self, level: FrozenLakeLevel, seed: int) -> None:
        slip = Random(f"slip {seed}") if self.config.is_slippery else None
        self._game = FrozenLake(level, slip=slip, success_rate=self.config.success_rate)
        self._target = list(divmod(level.target, level.size))
        self._holes = positions_of(level.holes, level.size)

    def _move(self, action: str) -> tuple[float, bool]:
        self._game.move(EFFECTS[action])
        reward = self._rewards["step"]
        if self._game.at_target:
            return reward + self._rewards["success"], True
        if self._game.in_hole:
            return reward + self._rewards["hole"], True
        return reward, False

    def _is_won(self) -> bool:
        return self._game.at_target

    def _read_state(self) -> State:
        size = self._game.level.size
        return {
            "env_name": self.env_name,
            "size": [size, size],
            "player": list(divmod(self._game.player, size)),
            "target": self._target,
            "holes": self._holes,
        }

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Rows and columns to the target, ignoring holes; None in a hole."""
        player, target = state["player"], state["target"]
        if player in state["holes"]:
            return None
        return float(abs(player[0] - target[0]) + abs(player[1] - target[1]))

    def _plan(self, count: int) -> list[str]:
        # Only a finished episode has no path.
        return [ACTIONS[action] for action in self._game.best_path(count)] or [ACTIONS[0]]

    def _after(self, state: State, actions: list[str]) -> State:
        (size, _), (row, column) = state["size"], state["player"]
        cell = row * size + column
        for action in actions:
            cell = neighbours(size)[cell][EFFECTS[action]]
        return {**state, "player": list(divmod(cell, size))}

    @staticmethod
    def codes_of(state: State) -> NDArray[np.uint8]:
        """Tile codes of a state, [rows, columns]."""
        rows, columns = state["size"]
        codes = bytearray(rows * columns)
        for row, column in state["holes"]:
            codes[row * columns + column] = HOLE
        row, column = state["target"]
        codes[row * columns + column] = TARGET
        row, column = state["player"]
        under = codes[row * columns + column]
        codes[row * columns + column] = (PLAYER, PLAYER_IN_HOLE, PLAYER_ON_TARGET)[under]
        return np.frombuffer(codes, np.uint8).reshape(rows, columns)

    def _state_rule(self) -> str:
        near = " Of the holes speak of those beside the player only."
        return super()._state_rule() + near * (self.config.described == "near")

    @classmethod
    def symbol_legend(cls) -> str:
        """Meaning of each symbol."""
        return "P player, _ ice, O hole, G target, X player in a hole, √ player on the target"

    def _rules(self) -> str:
        if self.config.render_mode == "vision":
            look = (
                "The picture shows the lake from above: ice is pale blue, a hole is a black disc, "
                "the target is a green flag and the player is an orange figure."
            )
        else:
            look = f"The lake is shown from above by the symbols {self.symbol_legend()}."
        chance = ""
        if self.config.is_slippery:
            chance = (
                f" The ice is slippery: a move goes as intended with probability "
                f"{self.config.success_rate:.2f}, otherwise to one of its two sides."
            )
        return (
            "You play FrozenLake: lead the player over the ice to the target. "
            "Falling into a hole ends the game.\n"
            f"{look}\n"
            f"Actions: {', '.join(ACTIONS)}. Each moves the player one cell; the border of the "
            f"lake holds it back.{chance}"
        )

    def _brief_rules(self) -> str:
        return "reach the target . avoid holes . actions : " + " , ".join(ACTIONS)

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def _draw_tiles(side: int) -> TileSet:
        ice, crack = (205, 232, 250), (170, 208, 236)
        black, rim, green, pole = (18, 20, 34), (110, 150, 190), (26, 168, 60), (70, 60, 50)
        orange, outline = (255, 122, 0), (96, 36, 0)

        def ground() -> Canvas:
            canvas = Canvas(side, ice)
            canvas.fill(~canvas.box(0.035, 0.035, 0.965, 0.965), crack)
            canvas.fill(canvas.line((0.16, 0.8), (0.36, 0.62), 0.03), crack)
            return canvas.fill(canvas.line((0.66, 0.3), (0.82, 0.18), 0.03), crack)

        def hole(canvas: Canvas) -> Canvas:
            canvas.fill(canvas.disc(0.5, 0.5, 0.43), rim)
            return canvas.fill(canvas.disc(0.5, 0.5, 0.38), black)

        def flag(canvas: Canvas) -> Canvas:
            canvas.fill(canvas.line((0.26, 0.12), (0.26, 0.9), 0.08), pole)
            canvas.fill(canvas.line((0.14, 0.9), (0.38, 0.9), 0.08), pole)
            return canvas.fill(canvas.triangle((0.3, 0.1), (0.3, 0.62), (0.94, 0.36)), green)

        in_hole = hole(ground())
        in_hole.figure(orange, outline, sink=0.2, within=in_hole.disc(0.5, 0.5, 0.38))
        on_target = flag(Canvas(side, (168, 236, 176))).figure(orange, outline, sink=0.06)
        return TileSet(
            [
                ground().pixels(),
                hole(ground()).pixels(),
                flag(ground()).pixels(),
                ground().figure(orange, outline).pixels(),
                in_hole.pixels(),
                on_target.pixels(),
            ]
        )
