"""The table in MuJoCo: a scripted controller drives the gripper in simulated physics.

Pictures are drawn by one graphics context per thread, size and task.
"""

import atexit
import copy
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs.primitive_skill.level import COLOURS, SkillLevel
from vagen.envs.primitive_skill.primitives import (
    APPLE,
    CABINET_TOP,
    CUBE,
    DRAWER_CLOSED,
    HOME,
    LIFT,
    OPENING,
    TRAY_REST,
    Point,
    Primitive,
)
from vagen.envs.primitive_skill.scene import CAMERA, load_model, load_mujoco
from vagen.envs.primitive_skill.tasks import Task

CARRY_SPEED, PUSH_SPEED = 0.5, 0.2
"""Maximum speed in metres per second."""
CONTROL_STEPS = 3
"""Physics steps between two set points of the controller."""
STALLED = 0.006
"""Distance in metres behind its set point at which the gripper counts as blocked."""
CLOSING_STEPS, OPENING_STEPS = 45, 30
SETTLE_STEPS, MAX_SETTLE_STEPS = 12, 250
AT_REST = 0.004
"""Speed in metres per second (or tens of radians per second) below which an object is at rest."""


class Table:
    """One table: loads levels, executes primitives, reports positions."""

    def __init__(self, task: Task, size: int) -> None:
        """Prepares the table of a task, for images of `size` pixels."""
        self._mujoco = load_mujoco()
        self._task: Task = task
        self._size = size
        self.model = copy.copy(load_model(task, size))
        self.data = self._mujoco.MjData(self.model)
        joints = ("x", "y", "z", "left", "right")
        self._address = [self.model.joint(name).qposadr[0] for name in joints]
        self._speeds = [self.model.joint(name).dofadr[0] for name in joints]
        self._fingers = {self.model.body(name).id for name in ("left", "right")}
        self.names: tuple[str, ...] = ()
        self._held: str | None = None

    def load(self, level: SkillLevel) -> None:
        """Sets up `level`, at rest."""
        mujoco, model, data = self._mujoco, self.model, self.data
        mujoco.mj_resetData(model, data)
        self.names = tuple(thing.name for thing in level.things)
        self._held = None
        for index, thing in enumerate(level.things):
            body = model.body(f"thing{index}")
            start = model.joint(body.jntadr[0]).qposadr[0]
            half = (APPLE if thing.name == "apple" else CUBE) / 2000
            yaw = math.radians(thing.yaw) / 2
            data.qpos[start : start + 7] = (
                thing.x / 1000, thing.y / 1000, half, math.cos(yaw), 0, 0, math.sin(yaw)
            )  # fmt: skip
            colour = COLOURS.get(thing.name.removesuffix(" cube"))
            if colour is not None:
                model.geom(f"thing{index}").rgba[:3] = colour
        if level.drawer is not None:
            x, y = level.drawer
            model.body("cabinet").pos[1] = y / 1000
            data.qpos[model.joint("drawer").qposadr[0]] = (x - DRAWER_CLOSED) / 1000
        self._jump(HOME)
        mujoco.mj_forward(model, data)

    def execute(self, action: Primitive) -> None:
        """Executes a primitive and waits until everything is at rest."""
        if action.kind == "pick":
            self._pick(action.start)
        elif action.kind == "place":
            self._place(action.start)
        else:
            assert action.end is not None
            self._push(action.start, action.end)
        self._settle()

    @property
    def held(self) -> str | None:
        """The object in the gripper."""
        return self._held

    @property
    def gripper(self) -> list[int]:
        """Midpoint between the finger tips, in mm."""
        return [round(1000 * self.data.qpos[address]) for address in self._address[:3]]

    def positions(self) -> dict[str, list[int]]:
        """Centres of all objects in mm, by role, and of the drawer if there is one."""
        places = {
            name: [round(1000 * value) for value in self.data.body(f"thing{index}").xpos]
            for index, name in enumerate(self.names)
        }
        if self.names == ("apple",):
            x, y, _ = self.data.body("drawer").xpos
            places["drawer"] = [round(1000 * x), round(1000 * y), TRAY_REST]
        return places

    def picture(self) -> NDArray[np.uint8]:
        """The current table, uint8 [size, size, 3]."""
        return _camera(self._task, self._size).picture(self.model, self.data)

    def close(self) -> None:
        """Does nothing: the graphics context belongs to the thread."""

    # Primitives.

    def _pick(self, point: Point) -> None:
        if self._held is not None:
            self._open()
        self._jump(self._above(point), width=OPENING)
        self._move(point)
        self._grip(0.0)
        self._steps(CLOSING_STEPS)
        self._held = self._between_fingers()
        if self._held is not None:
            self._rise(LIFT)
            self._held = self._between_fingers()
        self._retreat()

    def _place(self, point: Point) -> None:
        if self._held is None:
            return
        self._move((point[0], point[1], LIFT))
        self._move(point)
        self._open()
        self._held = None
        self._retreat()

    def _push(self, start: Point, end: Point) -> None:
        if self._held is not None:
            self._move((start[0], start[1], LIFT))
        else:
            self._jump(self._above(start))
        self._move(start)
        self._move(end, speed=PUSH_SPEED)
        if self._held is not None:
            self._rise(LIFT)
            self._held = self._between_fingers()
        self._retreat()

    def _retreat(self) -> None:
        """Returns to the rest position if nothing is held."""
        if self._held is None:
            self._rise(self._above(self.gripper)[2])
            self._jump(HOME)

    def _above(self, point: Sequence[int]) -> Point:
        """The nearest position above `point` where the open gripper touches nothing."""
        x, y, z = point
        height = 0.0 if self.names != ("apple",) else CABINET_TOP
        for index in range(len(self.names)):
            there = 1000 * self.data.body(f"thing{index}").xpos
            if abs(there[0] - x) < 60 and abs(there[1] - y) < 100:
                height = max(height, there[2] + CUBE)
        return x, y, round(min(max(height + 10, z), LIFT))

    # The controller.

    def _jump(self, point: Point, width: int = 0) -> None:
        """Moves the empty gripper above the objects instantly, as its way there is free."""
        self._grip(width / 1000)
        for index, value in enumerate(point):
            self.data.ctrl[index] = value / 1000
        for address, speed, value in zip(self._address, self._speeds, self.data.ctrl, strict=True):
            self.data.qpos[address], self.data.qvel[speed] = value, 0.0
        self._mujoco.mj_forward(self.model, self.data)

    def _open(self) -> None:
        self._grip(OPENING / 1000)
        self._steps(OPENING_STEPS)

    def _grip(self, width: float) -> None:
        self.data.ctrl[3:5] = width

    def _rise(self, height: int) -> None:
        x, y, _ = self.data.ctrl[:3]
        self._move((1000 * x, 1000 * y, height))

    def _move(self, point: tuple[float, float, float], speed: float = CARRY_SPEED) -> None:
        """Moves in a straight line, starting and ending at rest; stops at obstacles.

        The set point then stays where the gripper stopped.
        """
        data = self.data
        start = data.ctrl[:3].copy()
        way = np.array(point) / 1000 - start
        seconds = 1.5 * float(np.linalg.norm(way)) / speed
        count = max(math.ceil(seconds / (CONTROL_STEPS * self.model.opt.timestep)), 1)
        for index in range(1, count + 1):
            share = index / count
            data.ctrl[:3] = start + way * (share * share * (3 - 2 * share))
            self._steps(CONTROL_STEPS)
            if self._lag() > 4 * STALLED:
                break
        for _ in range(8):
            self._steps(CONTROL_STEPS)
            if self._lag() < STALLED / 8:
                return
        if self._lag() > STALLED:
            data.ctrl[:3] = [data.qpos[address] for address in self._address[:3]]

    def _lag(self) -> float:
        here = [self.data.qpos[address] for address in self._address[:3]]
        return float(np.abs(self.data.ctrl[:3] - here).max())

    def _steps(self, count: int) -> None:
        self._mujoco.mj_step(self.model, self.data, count)

    def _settle(self) -> None:
        """Runs physics until nothing moves."""
        for _ in range(0, MAX_SETTLE_STEPS, SETTLE_STEPS):
            self._steps(SETTLE_STEPS)
            if np.abs(self.data.qvel).max() < AT_REST:
                return

    def _between_fingers(self) -> str | None:
        """The object that both fingers touch."""
        touched: dict[int, set[int]] = {}
        geoms, bodies = self.data.contact.geom, self.model.geom_bodyid
        for one, other in geoms:
            pair = bodies[one], bodies[other]
            for finger, thing in (pair, pair[::-1]):
                if finger in self._fingers:
                    touched.setdefault(int(thing), set()).add(int(finger))
        for index, name in enumerate(self.names):
            if touched.get(self.model.body(f"thing{index}").id) == self._fingers:
                return name
        return None


_local = threading.local()


class _Camera:
    """Renders tables of one task; a graphics context belongs to its thread."""

    def __init__(self, task: Task, size: int) -> None:
        """Opens a graphics context.

        Raises:
            RuntimeError: There is none; the message says what is missing.
        """
        self._mujoco = load_mujoco()
        try:
            self._renderer: Any = self._mujoco.Renderer(load_model(task, size), size, size)
        except (self._mujoco.FatalError, RuntimeError, ImportError, AttributeError) as error:
            raise RuntimeError(
                f"MuJoCo cannot draw here without a graphics library: install EGL (Debian: "
                f"libegl1 libgl1-mesa-dri), or set MUJOCO_GL=osmesa with libosmesa6 ({error})"
            ) from error
        self._options = self._mujoco.MjvOption()
        self._camera = self._mujoco.MjvCamera()
        self._camera.type = self._mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = load_model(task, size).camera(CAMERA).id
        self._perturbation = self._mujoco.MjvPerturb()
        self._renderer.scene.flags[self._mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._renderer.scene.flags[self._mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        atexit.register(self._renderer.close)

    def picture(self, model: Any, data: Any) -> NDArray[np.uint8]:
        """Renders MuJoCo's `MjModel` and `MjData`, uint8 [size, size, 3]."""
        self._mujoco.mjv_updateScene(
            model, data, self._options, self._perturbation, self._camera,
            self._mujoco.mjtCatBit.mjCAT_ALL, self._renderer.scene,
        )  # fmt: skip
        return self._renderer.render().copy()


def _camera(task: Task, size: int) -> _Camera:
    """The calling thread's camera for a task and a size."""
    cameras: dict[tuple[Task, int], _Camera] = _local.__dict__.setdefault("cameras", {})
    if (task, size) not in cameras:
        cameras[task, size] = _Camera(task, size)
    return cameras[task, size]
