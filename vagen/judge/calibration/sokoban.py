"""Statements about Sokoban."""

from typing import Any, ClassVar

from vagen.envs.base import State
from vagen.judge.calibration.grid import GridWriter, Place


class SokobanWriter(GridWriter):
    """Every box and every target."""

    env_name: ClassVar[str] = "Sokoban"
    env_configs: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"dim_room": [7, 7], "num_boxes": 2},
    )
    thing: ClassVar[str] = "box"
    symbols: ClassVar[dict[str, str]] = {"target": "O", "box": "X"}
    templates: ClassVar[tuple[str, ...]] = (
        "box is below and right . target is above and left",
        "box is same row and right . target is same row and right",
        "box is above and same column . target is above and same column",
        "{'player': (1, 1), 'boxes': [(2, 2)], 'targets': [(3, 3)]}",
        "######\n#P___#\n#_X__#\n#__O_#\n#____#\n######",
        "the box is to the left of the player and the target is below",
    )

    def described(self, state: State) -> list[Place]:
        """Boxes, then targets."""
        boxes = [("box", position) for position in state["boxes"]]
        return boxes + [("target", position) for position in state["targets"]]

    def positions(self, state: State) -> dict[str, Any]:
        """Player, boxes and targets."""
        return {key: state[key] for key in ("player", "boxes", "targets")}

    def drawing(self, state: State) -> list[list[str]]:
        """Walls, targets, boxes, then the player over them."""
        rows, columns = state["size"]
        grid = [["_"] * columns for _ in range(rows)]
        for row, column in state["walls"]:
            grid[row][column] = "#"
        for row, column in state["targets"]:
            grid[row][column] = "O"
        for row, column in state["boxes"]:
            grid[row][column] = "√" if grid[row][column] == "O" else "X"
        row, column = state["player"]
        grid[row][column] = "S" if grid[row][column] == "O" else "P"
        return grid
