"""Options of FrozenLake."""

from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from vagen.envs.base import State
from vagen.envs.config import GridConfig
from vagen.envs.grid import Position


class FrozenLakeConfig(GridConfig):
    """Options of FrozenLake."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "success": 10.0, "hole": 0.0, "step": 0.0},
        "vagen-new": {"format": 0.02, "success": 1.0, "hole": 0.0, "step": 0.0},
    }

    size: int = Field(4, ge=2, le=16)
    """Rows and columns of the lake."""
    p_frozen: float = Field(0.8, gt=0.0, le=1.0)
    """Probability of a cell to be ice instead of a hole."""
    is_slippery: bool = False
    """Whether moves may slip sideways."""
    success_rate: float = Field(1 / 3, ge=0.0, le=1.0)
    """Probability of the intended move on slippery ice; otherwise to either side equally."""
    min_distance: PositiveInt = 1
    """Minimum length of the shortest safe path, in moves."""
    max_distance: PositiveInt | None = None
    """Maximum length of the shortest safe path, in moves; null for no limit."""
    state_objects: Literal["target", "near", "all"] | None = None
    """Objects in state texts: the target, also the holes next to the player (`near`), or every hole
    (`all`); null is `target` in brief prompts and `all` in full ones. A grid of symbols always
    shows every hole."""

    @model_validator(mode="after")
    def _distances_in_order(self) -> "FrozenLakeConfig":
        if self.max_distance is not None and self.max_distance < self.min_distance:
            raise ValueError(
                f"max_distance ({self.max_distance}) is below min_distance ({self.min_distance})"
            )
        return self

    @property
    def picture_side(self) -> int:
        """Side of the image in pixels."""
        return self.size * self.tile_size

    @property
    def described(self) -> Literal["target", "near", "all"]:
        """Objects in state texts."""
        if self.layout.notation == "symbolic":
            return "all"
        return self.state_objects or ("all" if self.prompt_detail == "full" else "target")

    def positions(self, state: State) -> dict[str, Any]:
        """Player, target and the described holes."""
        places = {"player": state["player"], "target": state["target"]}
        if self.described != "target":
            near = self.described == "near"
            places["holes"] = holes_beside(state) if near else state["holes"]
        return places


def holes_beside(state: State) -> list[Position]:
    """Holes one move away from the player."""
    row, column = state["player"]
    return [[r, c] for r, c in state["holes"] if abs(r - row) + abs(c - column) == 1]
