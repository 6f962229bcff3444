"""Options of PrimitiveSkill."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from vagen.config.base import DIGEST_EXEMPT
from vagen.envs.config import EnvConfig
from vagen.envs.primitive_skill.tasks import Task


class PrimitiveSkillConfig(EnvConfig):
    """Options of PrimitiveSkill."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "stage": 2.0, "success": 10.0, "step": -0.1},
        "vagen-new": {"format": 0.1, "stage": 2.0, "success": 10.0, "step": 0.0},
    }

    task: Task = "AlignTwoCube"
    """What is to be done."""
    backend: Literal["mujoco", "maniskill"] = "mujoco"
    """The simulator: MuJoCo with a gripper on a gantry, or ManiSkill 3 with a Panda arm (an extra;
    it has no drawer)."""
    vision_only: bool = False
    """Whether coordinates are left out of observations that hold a picture."""
    decoys: Annotated[int, Field(ge=0, le=16), DIGEST_EXEMPT] = 0
    """Places beside those of things in observations that hold a picture, where nothing is: which
    ones are of things, and of which, only the picture says. 0 is VAGEN's list."""
    image_size: int = Field(300, ge=64, le=1024)
    """Side of the picture in pixels."""
    max_actions_per_step: PositiveInt = 2
    """Most primitives in one response; a further one is invalid."""
    action_sep: str = "|"
    """Stands between two primitives of an answer."""
    max_steps: PositiveInt = 10
    """Primitives after which the episode is truncated."""

    @model_validator(mode="after")
    def _has_its_things(self) -> "PrimitiveSkillConfig":
        if self.backend == "maniskill" and self.task == "PutAppleInDrawer":
            raise ValueError(
                "backend maniskill has no PutAppleInDrawer, whose drawer ManiSkill would have to "
                "download: use backend mujoco"
            )
        return self

    @property
    def success_includes_stages(self) -> bool:
        """Whether a success brings what was paid up to its value, as the 2025 release scores it.

        Otherwise it is paid beside the stages.
        """
        return self.reward == "vagen-legacy"
