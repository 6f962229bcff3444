"""Renders the table with MuJoCo: one graphics context per thread, size and task."""

import atexit
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs.primitive_skill.scene import CAMERA, load_model, load_mujoco
from vagen.envs.primitive_skill.tasks import Task

_local = threading.local()


class Camera:
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


def camera(task: Task, size: int) -> Camera:
    """The calling thread's camera for a task and a size."""
    cameras: dict[tuple[Task, int], Camera] = _local.__dict__.setdefault("cameras", {})
    if (task, size) not in cameras:
        cameras[task, size] = Camera(task, size)
    return cameras[task, size]
