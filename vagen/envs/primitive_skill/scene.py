"""The MuJoCo scene: `scene.xml` with the objects of a task. Lengths are metres."""

import ctypes
import functools
import os
import sys
from contextlib import suppress
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

from vagen.envs.primitive_skill.level import CUBES
from vagen.envs.primitive_skill.primitives import (
    APPLE,
    CUBE,
    DRAWER_CLOSED,
    DRAWER_TRAVEL,
    FINGER,
    OPENING,
)
from vagen.envs.primitive_skill.tasks import TARGET_RADIUS, TARGETS, Task

CAMERA = "front"
_DRAWER_CONTACT = (
    '<contact><exclude body1="cabinet" body2="drawer"/><exclude body1="world" body2="drawer"/>'
    "</contact>"
)


def scene_xml(task: Task, size: int) -> str:
    """The scene of a task, as MJCF.

    Args:
        task: Determines the objects: bodies `thing0`, `thing1`, ... by role, and `drawer`.
        size: Side of the image in pixels.
    """
    half = CUBE / 2000
    things = "".join(
        f'<body name="thing{index}"><freejoint/>'
        f'<geom name="thing{index}" type="box" size="{half} {half} {half}" mass=".05"/></body>'
        for index in range(CUBES[task])
    )
    marks = ""
    if task == "PutAppleInDrawer":
        half = APPLE / 2000
        things = _template("drawer.xml").substitute(
            half=half,
            wide=half + 0.003,
            stalk=half + 0.004,
            leaf=half + 0.006,
            closed=DRAWER_CLOSED / 1000,
            travel=DRAWER_TRAVEL / 1000,
        )
    elif task == "AlignTwoCube":
        marks = (
            '<geom class="look" type="box" pos="0 0 .0004" size=".003 .22 .0004" '
            'rgba=".15 .15 .15 1"/>'
        )
    elif task == "PlaceTwoCube":
        marks = "".join(
            f'<geom class="look" type="cylinder" pos="{x / 1000} {y / 1000} .0004" '
            f'size="{TARGET_RADIUS / 1000} .0004" rgba="{colour} 1"/>'
            for (x, y), colour in zip(TARGETS, (".55 .62 .7", ".7 .62 .55"), strict=True)
        )
    return _template("scene.xml").substitute(
        size=size,
        marks=marks,
        things=things,
        opening=OPENING / 1000,
        finger=FINGER / 1000,
        contact=_DRAWER_CONTACT if task == "PutAppleInDrawer" else "",
    )


def _template(name: str) -> Template:
    return Template(Path(__file__).with_name(name).read_text())


def load_mujoco() -> ModuleType:
    """Imports MuJoCo, set up to render without a display.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to install it.
    """
    if sys.platform == "linux" and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = _graphics()
    try:
        import mujoco
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "PrimitiveSkill runs on MuJoCo, which is not installed: pip install 'vagen[envs]'"
        ) from error
    return mujoco


def _graphics() -> str:
    """MuJoCo's available graphics backend; empty if there is none, as text mode needs none."""
    for name, library in (("egl", "libEGL.so.1"), ("osmesa", "libOSMesa.so.8")):
        with suppress(OSError):
            ctypes.CDLL(library)
            return name
    return "disable"


@functools.lru_cache(maxsize=16)
def load_model(task: Task, size: int) -> Any:
    """The compiled scene of a task, for images of `size` pixels; copy it before changes."""
    return load_mujoco().MjModel.from_xml_string(scene_xml(task, size))
