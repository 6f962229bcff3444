"""PrimitiveSkill as an environment, its options, and its claims: positions, the held object."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from vagen.config.base import DIGEST_EXEMPT
from vagen.envs.base import IMAGE_PLACEHOLDER, State
from vagen.envs.claims import Claim, score_claims, write_claims
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split
from vagen.envs.parsing import ActionReader
from vagen.envs.primitive_skill import tasks
from vagen.envs.primitive_skill.level import SkillLevel, listed, sample_level
from vagen.envs.primitive_skill.maniskill import ManiSkillTable
from vagen.envs.primitive_skill.primitives import (
    APPLE,
    CUBE,
    DRAWER_FRONT,
    HOME,
    WORKSPACE,
    nominal,
    read_primitive,
)
from vagen.envs.primitive_skill.simulator import Table
from vagen.envs.primitive_skill.tasks import Task
from vagen.envs.turns import TurnEnv

Thing = Literal[
    "red cube", "green cube", "blue cube", "yellow cube", "purple cube", "apple", "drawer"
]
NOTHING = "nothing"
WITHIN, WITHIN_HEIGHT = 7, 10
"""Tolerance of x and y, and of z, in millimetres."""


class At(Claim):
    """Centre of an object in millimetres."""

    phrase = "{thing} at ({x}, {y}, {z})"
    subject = ("thing",)
    thing: Thing
    x: int
    y: int
    z: int

    def agreement(self, true: Claim) -> float:
        """Whether it is within the tolerance."""
        assert isinstance(true, At)
        aside = max(abs(self.x - true.x), abs(self.y - true.y))
        is_near = aside <= WITHIN and abs(self.z - true.z) <= WITHIN_HEIGHT
        return float(self.thing == true.thing and is_near)

    def is_still(self, later: Claim) -> bool:
        """Whether it has not moved beyond the tolerance."""
        return self.agreement(later) == 1.0


class Held(Claim):
    """The object in the gripper."""

    phrase = "{thing} held"
    thing: Thing


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
    """Empty positions among those of objects in observations with an image; only the image tells
    which are which."""
    image_size: int = Field(300, ge=64, le=1024)
    """Side of the image in pixels."""
    max_actions_per_step: PositiveInt = 2
    """Maximum primitives in one response."""
    action_sep: str = "|"
    """Separator of the primitives in an answer."""
    max_steps: PositiveInt = 10
    """Primitives until truncation."""

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


class PrimitiveSkillEnv(TurnEnv):
    """Arrange things on a table with a two-finger gripper, by primitives in millimetres."""

    env_name: ClassVar[str] = "PrimitiveSkill"
    config_class: ClassVar[type[PrimitiveSkillConfig]] = PrimitiveSkillConfig
    calibration_options = tuple({"task": task} for task in tasks.TASKS[1:])
    needs_process: ClassVar[bool] = True
    claims: ClassVar[tuple[type[Claim], ...]] = (At, Held)
    example_state: ClassVar[State] = {
        "env_name": "PrimitiveSkill",
        "task": "AlignTwoCube",
        "goal": ["red cube", "green cube"],
        "objects": {"green cube": [60, 110, 20], "red cube": [-70, -40, 20]},
        "held": None,
        "gripper": list(HOME),
    }
    example_actions: ClassVar[tuple[str, ...]] = ("pick(-70,-40,20)", "place(0,-40,20)")

    config: PrimitiveSkillConfig
    _table: Table | ManiSkillTable | None = None
    """The simulator, from the first reset on."""

    @classmethod
    def sample_level(cls, config: PrimitiveSkillConfig, seed: int, split: Split) -> SkillLevel:
        """The level of `reset(seed=seed)` in this split."""
        return sample_level(config.task, seed, split)

    @classmethod
    def truth(cls, state: State, config: PrimitiveSkillConfig) -> list[Claim]:
        """Positions of all objects, and the held one, if any."""
        claims: list[Claim] = [
            At.model_validate({"thing": name, "x": x, "y": y, "z": z})
            for name, (x, y, z) in state["objects"].items()
        ]
        return claims + ([Held(thing=state["held"])] if state["held"] else [])

    @classmethod
    def record(cls, state: State, config: PrimitiveSkillConfig) -> dict[str, Any]:
        """The claims, as `{"red cube": [-70, -40, 20], ..., "held": "nothing"}`."""
        return {**state["objects"], "held": state["held"] or NOTHING}

    @classmethod
    def clauses(cls, record: dict[str, Any]) -> str:
        """The sentences of `record`."""
        left = dict(record)
        held = left.pop("held", NOTHING)
        parts = [] if held in (NOTHING, None) else [f"{held} held"]
        for thing, place in left.items():
            point = ", ".join(map(str, place)) if isinstance(place, list) else place
            parts.append(f"{thing} at ({point})")
        return "\n".join(parts)

    @classmethod
    def score_claims(
        cls, said: Sequence[Claim], true: Sequence[Claim], config: PrimitiveSkillConfig
    ) -> float:
        """Precision and recall; 0 for more positions than objects."""
        count, things = (sum(isinstance(claim, At) for claim in claims) for claims in (said, true))
        return score_claims(said, true) if count <= things else 0.0

    def close(self) -> None:
        """Releases the simulator."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def _frame_size(self) -> tuple[int, int]:
        return self.config.image_size, self.config.image_size

    def _action_reader(self) -> ActionReader:
        def read(text: str) -> str | None:
            action = read_primitive(text)
            return None if action is None else str(action)

        return read

    # The game.

    def _load_level(self, level: SkillLevel, seed: int) -> None:
        if self._table is None:
            kind = ManiSkillTable if self.config.backend == "maniskill" else Table
            self._table = kind(self.config.task, self.config.image_size)
        self._level = level
        self._listed = listed(level, self.config.decoys)
        self._table.load(level)
        self._rewarded = self._total_reward(self._read_state())

    def _move(self, action: str) -> tuple[float, bool]:
        primitive = read_primitive(action)
        assert primitive is not None and self._table is not None
        self._table.execute(primitive)
        state = self._read_state()
        # A stage that is undone and repeated is not rewarded again.
        gain = max(self._total_reward(state) - self._rewarded, 0.0)
        self._rewarded += gain
        return self._rewards["step"] + gain, tasks.is_solved(state)

    def _total_reward(self, state: State) -> float:
        """Total reward of a state, independent of the path to it."""
        stage, success = self._rewards["stage"], self._rewards["success"]
        if not tasks.is_solved(state):
            return stage * tasks.stages(state)
        if self.config.success_includes_stages:
            return success
        return success + max(self._rewarded, 0.0)

    def _is_won(self) -> bool:
        return tasks.is_solved(self._state)

    def _read_state(self) -> State:
        assert self._table is not None
        places, level = self._table.positions(), self._level
        return {
            "env_name": self.env_name,
            "task": level.task,
            "goal": [thing.name for thing in level.things],
            "objects": {name: places[name] for name in level.order},
            "held": self._table.held,
            "gripper": self._table.gripper,
        }

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Minimum number of primitives to success."""
        return tasks.primitives_left(state)

    def _plan(self, count: int) -> list[str]:
        return [str(action) for action in tasks.plan(self._state, count)]

    def _after(self, state: State, actions: list[str]) -> State:
        for text in actions:
            action = read_primitive(text)
            assert action is not None
            state = nominal(state, action)
        return state

    def _reason(self, actions: list[str]) -> str:
        return " then ".join(actions)

    # Images and texts.

    def picture(self) -> NDArray[np.uint8]:
        """The table from the front, uint8 [size, size, 3]."""
        assert self._table is not None, "call reset first"
        return self._table.picture()

    def text_view(self) -> str:
        """All objects with their coordinates."""
        return write_claims(self.truth(self._state, self.config))

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        asked = f"Task: {tasks.instruction(self._state['task'], self._state['goal'])}"
        if self.config.render_mode == "text":
            return f"{asked}\n{self.text_view()}", ()
        lines = [asked, IMAGE_PLACEHOLDER]
        if not self.config.vision_only:
            objects = self._state["objects"]
            places = " ".join(
                "({}, {}, {})".format(*(objects[each] if isinstance(each, str) else each))
                for each in self._listed
            )
            where = "at some of these places" if self.config.decoys else "at"
            lines.append(f"Things are {where}, in no particular order: {places}")
        return "\n".join(lines), (self.picture(),)

    def _state_rule(self) -> str:
        example = self.state_text(self.example_state)
        if self.config.layout.notation == "structured":
            return (
                "Write a state as each thing's position [x, y, z] in millimetres, and what the "
                f"gripper holds, such as {example}."
            )
        return (
            "Describe a state by where the middle of each thing is, (x, y, z) in millimetres, and "
            f"by what the gripper holds, if anything (red cube held); such as: {example}"
        )

    def _rules(self) -> str:
        (x0, x1), (y0, y1), (z0, z1) = WORKSPACE
        things = f"A cube has a side of {CUBE} mm."
        if self.config.task == "PutAppleInDrawer":
            things = (
                f"The apple is {APPLE} mm high. A drawer's position is the middle of its tray, "
                f"where the apple goes; its front is {DRAWER_FRONT} mm nearer to the camera. Push "
                f"the front away from the camera to close it."
            )
        elif self.config.task == "AlignTwoCube":
            things += " The dark line on the table is x = 0; a cube is aligned within 10 mm of it."
        elif self.config.task == "PlaceTwoCube":
            things += " The two marks on the table are the targets."
        squares = " and its squares are 50 mm wide" if self.config.backend == "mujoco" else ""
        return (
            "You control a robot gripper with two fingers over a table, seen from the front.\n"
            "x grows towards the camera, y to the right of the picture, z upwards; the table is "
            f"z = 0{squares}. All numbers are whole millimetres; what is "
            f"outside x {x0} to {x1}, y {y0} to {y1}, z {z0} to {z1} is clipped.\n"
            f"{things}\n"
            "Actions: pick(x,y,z) grips the thing whose middle is there and lifts it; "
            "place(x,y,z) puts what is held there and lets go; push(x1,y1,z1,x2,y2,z2) moves the "
            "closed fingers from the first point straight to the second."
        )

    def _brief_rules(self) -> str:
        return "move things . actions : pick(x,y,z) , place(x,y,z) , push(x1,y1,z1,x2,y2,z2)"
