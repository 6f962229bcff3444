"""Options of Navigation."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from vagen.config.base import DIGEST_EXEMPT
from vagen.envs.config import EnvConfig, Served
from vagen.envs.navigation.furniture import KINDS

TaskStyle = Literal[
    "base", "common_sense", "complex_instruction", "visual_appearance", "long_horizon"
]

FEWEST_KINDS = 3
"""Minimum number of object types in a room."""
SCALES = {"vagen-legacy": (0.5, 1.5), "vagen-new": (0.3, 1.0)}
"""By reward preset: metres per move, and metres from the target that count as success."""


class NavigationConfig(EnvConfig):
    """Options of Navigation."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "success": 10.0, "step": 0.0},
        "vagen-new": {"format": 0.01, "success": 1.0, "step": 0.0},
    }

    backend: Literal["miniworld", "ai2thor"] = "miniworld"
    """The simulator: MiniWorld with generated rooms, or AI2-THOR."""
    tasks: tuple[TaskStyle, ...] = ("base",)
    """Task styles: `base` names the target, `common_sense` its use, `visual_appearance` its look,
    `complex_instruction` its place among similar objects; in `long_horizon` it is not visible at
    the start."""
    max_actions_per_step: PositiveInt = 5
    """Maximum actions in one response."""
    max_steps: PositiveInt = 30
    """Moves until truncation."""
    kinds: Annotated[tuple[str, ...] | None, DIGEST_EXEMPT] = None
    """Types of objects in the rooms, at least three; null for all."""
    starts: Annotated[Literal["facing", "anywhere"], DIGEST_EXEMPT] = "facing"
    """Start, except for `long_horizon`. `facing`: 2.51 to 3 m from the visible target, as in
    VAGEN; `anywhere`: 3.5 to 5 m from it in the same room, with a random rotation."""
    spare_moves: Annotated[NonNegativeInt | None, DIGEST_EXEMPT] = None
    """Moves beyond the shortest path until truncation; null: only `max_steps` counts."""
    step_size: float | None = Field(None, gt=0.05, le=1.0)
    """Metres per move; null: the reward preset's."""
    success_distance: float | None = Field(None, ge=0.5, le=2.5)
    """Distance on the floor plan that is success, in metres; null: the reward preset's."""
    field_of_view: float = Field(100.0, ge=30.0, le=140.0)
    """Field of view of the square image, in degrees."""
    picture_size: int = Field(255, ge=32, le=1024)
    """Side of the image in pixels."""
    state_objects: Literal["target", "all"] | None = None
    """Objects in state texts: the target, or also the nearest visible ones; null: `target` in
    brief prompts, else `all`."""
    episodes: Annotated[str | None, Served()] = None
    """AI2-THOR's episodes: path of a JSON file (see docs/environments.md)."""
    gpu: int | None = Field(None, ge=0)
    """GPU on which AI2-THOR renders; null lets it choose."""
    server_timeout: float = Field(300.0, gt=0)
    """Timeout of AI2-THOR's simulator in seconds."""

    @model_validator(mode="before")
    @classmethod
    def _one_style_is_a_list(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("tasks"), str):
            return {**data, "tasks": [data["tasks"]]}
        return data

    @model_validator(mode="after")
    def _back_end_has_what_it_needs(self) -> "NavigationConfig":
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError("tasks must name one or more task styles, each once")
        if self.backend == "ai2thor" and self.episodes is None:
            raise ValueError(
                "backend ai2thor needs `episodes`: the path of a JSON file of episodes"
            )
        made = self.starts, self.spare_moves, self.kinds
        if self.backend == "ai2thor" and made != ("facing", None, None):
            raise ValueError(
                "AI2-THOR's episodes say where they start and its scenes what stands there: leave "
                "out starts, spare_moves and kinds"
            )
        if self.kinds is not None:
            if unknown := sorted(set(self.kinds) - set(KINDS)):
                raise ValueError(
                    f"kinds has no {unknown[0]!r}: there are {', '.join(sorted(KINDS))}"
                )
            if len(set(self.kinds)) < max(FEWEST_KINDS, len(self.kinds)):
                raise ValueError(f"kinds must name at least {FEWEST_KINDS}, each once")
        if self.backend != "ai2thor" and self.episodes is not None:
            raise ValueError("`episodes` is for backend ai2thor; MiniWorld's are made from seeds")
        return self

    @property
    def describes_all(self) -> bool:
        """Whether state texts describe more than the target."""
        return (
            self.state_objects or ("all" if self.prompt_detail == "full" else "target")
        ) == "all"

    @property
    def move_metres(self) -> float:
        """Metres per move."""
        return self.step_size or SCALES[self.reward][0]

    @property
    def goal_metres(self) -> float:
        """Distance from the target in metres that counts as success."""
        return self.success_distance or SCALES[self.reward][1]
