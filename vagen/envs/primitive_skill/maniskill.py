"""The table in ManiSkill 3: a Panda arm with SAPIEN's physics, rendered by Vulkan.

Has the same levels, frame, workspace and camera as MuJoCo, for the tasks with cubes, which
ManiSkill has without a download. `mani_skill` is an extra, and rendering needs a Vulkan driver (on
a CPU: Mesa's lavapipe, 24.3 or newer, named by `VK_ICD_FILENAMES`).
"""

import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs.primitive_skill.level import COLOURS, SkillLevel
from vagen.envs.primitive_skill.primitives import CUBE, LIFT, Point, Primitive
from vagen.envs.primitive_skill.tasks import TARGET_RADIUS, TARGETS, Task

BASE = 0.615
"""Distance of the arm's base from the table's centre in metres."""
REST: Point = (-100, 0, 220)
"""Rest position of the empty arm."""
CAMERA, LOOKS_AT, FIELD_OF_VIEW = (0.66, 0.0, 0.58), (0.0, 0.0, 0.0697), math.radians(37)
STRIDE = 20.0
"""Distance between set points in millimetres, at 20 Hz."""
NEAR = 3.0
"""Tolerance for reaching a set point in millimetres."""
OPEN, CLOSED = 1.0, -1.0
MAX_WAITING, GRIP_STEPS = 12, 8
PARKED = 2.0
"""Offset in metres where cubes that a level does not use are kept."""


class ManiSkillTable:
    """One table: loads levels, executes primitives, reports positions."""

    def __init__(self, task: Task, size: int) -> None:
        """Opens a scene for images of `size` pixels.

        Raises:
            ModuleNotFoundError: ManiSkill is not installed; the message says how to install it.
        """
        self._env: Any = _environment(task, size)
        self._level: SkillLevel | None = None
        self._grip, self._target = OPEN, np.array(REST, float)

    def load(self, level: SkillLevel) -> None:
        """Sets up `level`, at rest."""
        sapien: Any = importlib.import_module("sapien")
        self._level = level
        self._env.reset(seed=0)
        here = {thing.name: thing for thing in level.things}
        for index, (name, cube) in enumerate(self._env.unwrapped.cubes.items()):
            thing = here.get(name)
            if thing is None:
                pose = sapien.Pose(p=[0.0, PARKED + 0.1 * index, CUBE / 2000])
            else:
                yaw = math.radians(thing.yaw) / 2
                pose = sapien.Pose(
                    p=[thing.x / 1000, thing.y / 1000, CUBE / 2000],
                    q=[math.cos(yaw), 0, 0, math.sin(yaw)],
                )
            cube.set_pose(pose)
            cube.set_linear_velocity([0.0, 0.0, 0.0])
            cube.set_angular_velocity([0.0, 0.0, 0.0])
        self._grip = OPEN
        self._target = self._tip()
        self._move(REST)

    def execute(self, action: Primitive) -> None:
        """Executes a primitive and waits until everything is at rest."""
        x, y, _ = action.start
        held = self.held
        if action.kind == "pick" or (action.kind == "place" and held is not None):
            if action.kind == "pick" and held is not None:
                self._set_grip(OPEN)
            self._move((x, y, LIFT))
            self._move(action.start)
            self._set_grip(CLOSED if action.kind == "pick" else OPEN)
            self._move((x, y, LIFT))
        elif action.kind == "push":
            assert action.end is not None
            self._set_grip(CLOSED)
            self._move((x, y, LIFT))
            self._move(action.start)
            self._move(action.end)
            self._move((*action.end[:2], LIFT))
        if self.held is None:
            self._set_grip(OPEN)
            self._move(REST)

    @property
    def held(self) -> str | None:
        """The object in the gripper."""
        agent = self._env.unwrapped.agent
        for name in self._names():
            if bool(agent.is_grasping(self._env.unwrapped.cubes[name])[0]):
                return name
        return None

    @property
    def gripper(self) -> list[int]:
        """Midpoint between the finger tips, in mm."""
        return [round(value) for value in self._tip().tolist()]

    def positions(self) -> dict[str, list[int]]:
        """Centres of all objects in mm, by role."""
        cubes = self._env.unwrapped.cubes
        return {
            name: [round(1000 * value) for value in cubes[name].pose.p[0].tolist()]
            for name in self._names()
        }

    def picture(self) -> NDArray[np.uint8]:
        """The current table, uint8 [size, size, 3]."""
        return np.ascontiguousarray(self._env.render()[0].cpu().numpy()[..., :3])

    def close(self) -> None:
        """Closes the scene."""
        self._env.close()

    def _names(self) -> list[str]:
        return [] if self._level is None else [thing.name for thing in self._level.things]

    def _tip(self) -> NDArray[np.float64]:
        return 1000 * self._env.unwrapped.agent.tcp.pose.p[0].cpu().numpy().astype(float)

    def _set_grip(self, grip: float) -> None:
        if grip != self._grip:
            self._grip = grip
            for _ in range(GRIP_STEPS):
                self._step()

    def _move(self, point: tuple[float, float, float]) -> None:
        """Moves the hand in a straight line, fingers down, and waits for its arrival."""
        end = np.array(point, float)
        start, way = self._target, end - self._target
        count = max(math.ceil(float(np.linalg.norm(way)) / STRIDE), 1)
        for index in range(1, count + 1):
            self._target = start + way * (index / count)
            self._step()
        for _ in range(MAX_WAITING):
            if np.abs(self._tip() - end).max() < NEAR:
                break
            self._step()

    def _step(self) -> None:
        x, y, z = self._target / 1000
        self._env.step(np.array([x + BASE, y, z, math.pi, 0.0, 0.0, self._grip], np.float32))


def _environment(task: Task, size: int) -> Any:
    """A ManiSkill environment with a table, a Panda arm and a cube of every colour."""
    try:
        base: Any = importlib.import_module("mani_skill.envs.sapien_env").BaseEnv
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "backend maniskill needs ManiSkill 3, which is not installed here: "
            f'pip install "vagen[maniskill]" ({error})'
        ) from error
    actors: Any = importlib.import_module("mani_skill.utils.building.actors")
    builders: Any = importlib.import_module("mani_skill.utils.scene_builder.table")
    cameras: Any = importlib.import_module("mani_skill.sensors.camera")
    poses: Any = importlib.import_module("mani_skill.utils.sapien_utils")
    sapien: Any = importlib.import_module("sapien")
    torch: Any = importlib.import_module("torch")

    class TableEnv(base):
        """The scene; its observations and rewards are not used."""

        SUPPORTED_ROBOTS = ("panda",)

        @property
        def _default_sensor_configs(self) -> list[Any]:
            return []

        @property
        def _default_human_render_camera_configs(self) -> Any:
            pose = poses.look_at(CAMERA, LOOKS_AT)
            return cameras.CameraConfig("front", pose, size, size, FIELD_OF_VIEW, 0.01, 10)

        def _load_agent(self, options: Any) -> None:
            super()._load_agent(options, sapien.Pose(p=[-BASE, 0, 0]))

        def _load_scene(self, options: Any) -> None:
            self.table_scene = builders.TableSceneBuilder(env=self, robot_init_qpos_noise=0)
            self.table_scene.build()
            self.cubes = {
                f"{colour} cube": actors.build_cube(
                    self.scene,
                    half_size=CUBE / 2000,
                    color=[*rgb, 1],
                    name=colour,
                    initial_pose=sapien.Pose(p=[0, PARKED + 0.1 * index, CUBE / 2000]),
                )
                for index, (colour, rgb) in enumerate(COLOURS.items())
            }
            for name, pose, half in _marks(task):
                builder = self.scene.create_actor_builder()
                builder.add_box_visual(
                    half_size=half, material=sapien.render.RenderMaterial(base_color=[0, 0, 0, 1])
                )
                builder.initial_pose = sapien.Pose(p=pose)
                builder.build_static(name=name)

        def _initialize_episode(self, env_idx: Any, options: Any) -> None:
            self.table_scene.initialize(env_idx)

        def evaluate(self) -> dict[str, Any]:
            """Empty: the environment judges tasks by the true state."""
            return {}

        def _get_obs_extra(self, info: Any) -> dict[str, Any]:
            return {}

    return TableEnv(
        obs_mode="none",
        reward_mode="none",
        control_mode="pd_ee_pose",
        render_mode="rgb_array",
        robot_uids="panda",
        sim_backend="cpu",
        render_backend="gpu" if torch.cuda.is_available() else "cpu",
    )


def _marks(task: Task) -> list[tuple[str, list[float], list[float]]]:
    """Name, position and half sizes of marks on the table."""
    if task == "AlignTwoCube":
        return [("line", [0.0, 0.0, 0.0004], [0.003, 0.22, 0.0004])]
    if task == "PlaceTwoCube":
        side = TARGET_RADIUS / 1000 / math.sqrt(2)
        return [
            (f"target{index}", [x / 1000, y / 1000, 0.0004], [side, side, 0.0004])
            for index, (x, y) in enumerate(TARGETS)
        ]
    return []
