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
    """The task."""
    backend: Literal["mujoco", "maniskill"] = "mujoco"
    """The simulator: MuJoCo with a gantry gripper, or ManiSkill 3 with a Panda arm (an extra,
    without drawer)."""
    vision_only: bool = False
    """Whether observations with an image omit coordinates."""
    decoys: Annotated[int, Field(ge=0, le=16), DIGEST_EXEMPT] = 0
    """Number of empty positions listed among those of objects in observations with an image; only
    the image shows which positions belong to which objects. 0 lists objects as in VAGEN."""
    image_size: int = Field(300, ge=64, le=1024)
    """Side of the image in pixels."""
    max_actions_per_step: PositiveInt = 2
    """Maximum primitives in one response; a further one is invalid."""
    action_sep: str = "|"
    """Separator of the primitives in an answer."""
    max_steps: PositiveInt = 10
    """Number of primitives after which the episode is truncated."""

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
        """Whether success raises the total reward to its value, as in the 2025 release.

        Otherwise it is added to the reward of stages.
        """
        return self.reward == "vagen-legacy"
