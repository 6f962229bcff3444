"""Statements about FrozenLake."""

from typing import Any, ClassVar

from vagen.envs.base import State
from vagen.envs.frozenlake.config import FrozenLakeConfig
from vagen.judge.calibration.grid import GridWriter, Place


class FrozenLakeWriter(GridWriter):
    """Target first, then the holes where they are to be described."""

    env_name: ClassVar[str] = "FrozenLake"
    env_configs: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"prompt_detail": "brief"},
        {"size": 6},
    )
    thing: ClassVar[str] = "target"
    symbols: ClassVar[dict[str, str]] = {"target": "G", "hole": "O"}
    templates: ClassVar[tuple[str, ...]] = (
        "target is below and right",
        "target is above and left . hole is below and right",
        "the goal is to the right of the player, in the same row",
        "{'player': (0, 0), 'target': (3, 3), 'holes': [(1, 1), (2, 3)]}",
        "P _ _ _\n_ O _ _\n_ _ O _\n_ _ _ G",
        "target is below . hole is above . hole is left . hole is right",
    )

    env_config: FrozenLakeConfig

    def described(self, state: State) -> list[Place]:
        """The target, and the holes if the environment's own texts describe them."""
        holes = state["holes"] if self.env_config.describes_holes else []
        return [("target", state["target"]), *(("hole", hole) for hole in holes)]

    def positions(self, state: State) -> dict[str, Any]:
        """Player and described objects."""
        keys = ["player", "target"] + ["holes"] * self.env_config.describes_holes
        return {key: state[key] for key in keys}

    def drawing(self, state: State) -> list[list[str]]:
        """Holes, then the target, then the player over them."""
        rows, columns = state["size"]
        grid = [["_"] * columns for _ in range(rows)]
        for row, column in state["holes"]:
            grid[row][column] = "O"
        row, column = state["target"]
        grid[row][column] = "G"
        row, column = state["player"]
        grid[row][column] = {"O": "X", "G": "√"}.get(grid[row][column], "P")
        return grid
