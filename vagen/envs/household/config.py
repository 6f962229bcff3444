"""Options of Household."""

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from vagen.envs.config import EnvConfig

TaskKind = Literal["put", "clean", "heat", "cool", "examine", "two"]


class HouseholdConfig(EnvConfig):
    """Options of Household."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "success": 10.0, "step": 0.0},
        "vagen-new": {"format": 0.02, "success": 1.0, "step": 0.0},
    }

    render_mode: Literal["text"] = "text"
    """Always `text`: there are no images of this home."""
    max_actions_per_step: PositiveInt = 1
    """Maximum actions in one response."""
    max_steps: PositiveInt = 50
    """Number of actions after which the episode is truncated."""
    rooms: int = Field(4, ge=1, le=4)
    """Number of rooms, including a kitchen."""
    objects: int = Field(20, ge=4, le=40)
    """Number of objects, including those of the task."""
    tasks: tuple[TaskKind, ...] = ("put", "clean", "heat", "cool", "examine", "two")
    """Kinds of tasks, drawn with equal probability."""
    show_commands: bool = False
    """Whether each observation lists the commands that have an effect."""

    @field_validator("tasks")
    @classmethod
    def _some_task(cls, tasks: tuple[TaskKind, ...]) -> tuple[TaskKind, ...]:
        if not tasks or len(set(tasks)) < len(tasks):
            raise ValueError("names each kind of task once, and at least one")
        return tasks
