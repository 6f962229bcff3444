"""The MuJoCo scene as XML: table, gripper, and the objects of a task. Lengths are metres.

The gripper is a gantry on three slides (x, y, z) with position servos of limited force; its two
fingers close along y. The drawer slides along x in a cabinet. The gripper holds objects by friction
only.
"""

import ctypes
import functools
import os
import sys
from contextlib import suppress
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

TIMESTEP = 0.004
"""Seconds of a physics step."""
CAMERA = "front"

_HEAD = f"""
<option timestep="{TIMESTEP}" integrator="implicitfast" cone="elliptic" impratio="10"
        noslip_iterations="3"/>
<visual>
  <global offwidth="{{size}}" offheight="{{size}}"/>
  <quality offsamples="4" shadowsize="0"/>
  <headlight ambient=".42 .42 .42" diffuse=".35 .35 .35" specular="0 0 0"/>
</visual>
<asset>
  <texture name="sky" type="skybox" builtin="flat" rgb1=".6 .66 .72" width="8" height="48"/>
  <texture name="squares" type="2d" builtin="checker" rgb1=".84 .82 .78" rgb2=".77 .75 .71"
           width="64" height="64"/>
  <material name="table" texture="squares" texrepeat="8 8" specular="0" shininess="0"/>
</asset>
<default>
  <geom condim="4" friction="1 .02 .001" solref=".01 1"/>
  <default class="look"><geom contype="0" conaffinity="0" group="1"/></default>
  <default class="pad"><geom friction="1.6 .05 .001" solimp=".95 .99 .001"/></default>
</default>
"""

_TABLE = f"""
<light pos=".3 -.5 1.2" dir="-.2 .4 -1" diffuse=".5 .5 .5" specular="0 0 0" castshadow="false"/>
<camera name="{CAMERA}" pos=".66 0 .58" xyaxes="0 1 0 -.6115 0 .791" fovy="37"/>
<geom name="table" type="plane" size=".4 .4 .02" material="table"/>
"""
_FENCE = "".join(
    f'<geom type="plane" pos="{-0.34 * x} {-0.34 * y} 0" zaxis="{x} {y} 0" size=".4 .4 .02" '
    f'rgba="0 0 0 0" friction=".1 .01 .001"/>'
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1))
)
"""Invisible walls that keep objects on the table."""

_GRIPPER = f"""
<body name="gripper" pos="0 0 0" gravcomp="1">
  <joint name="x" type="slide" axis="1 0 0" damping="5"/>
  <joint name="y" type="slide" axis="0 1 0" damping="5"/>
  <joint name="z" type="slide" axis="0 0 1" damping="5"/>
  <geom name="palm" type="box" pos="0 0 .062" size=".016 .052 .012" mass=".6"
        rgba=".25 .27 .3 1"/>
  <geom class="look" type="cylinder" pos="0 0 .11" size=".012 .036" rgba=".45 .47 .5 1"/>
  <body name="left" gravcomp="1">
    <joint name="left" type="slide" axis="0 -1 0" range="0 {OPENING / 1000}" limited="true"
           damping="4"/>
    <geom class="pad" type="box" pos="0 -.005 .021" size="{FINGER / 1000} .005 .029" mass=".1"
          rgba=".55 .58 .62 1"/>
  </body>
  <body name="right" gravcomp="1">
    <joint name="right" type="slide" axis="0 1 0" range="0 {OPENING / 1000}" limited="true"
           damping="4"/>
    <geom class="pad" type="box" pos="0 .005 .021" size="{FINGER / 1000} .005 .029" mass=".1"
          rgba=".55 .58 .62 1"/>
  </body>
</body>
"""

_ACTUATORS = """
<actuator>
  <position name="x" joint="x" kp="4000" kv="120" forcerange="-15 15"/>
  <position name="y" joint="y" kp="4000" kv="120" forcerange="-15 15"/>
  <position name="z" joint="z" kp="4000" kv="120" forcerange="-12 12"/>
  <position name="left" joint="left" kp="600" kv="8" forcerange="-6 6"/>
  <position name="right" joint="right" kp="600" kv="8" forcerange="-6 6"/>
</actuator>
<equality><joint joint1="left" joint2="right" solref=".004 1"/></equality>
"""


def scene_xml(task: Task, size: int) -> str:
    """The scene of a task, as MJCF.

    Args:
        task: Determines the objects: bodies `thing0`, `thing1`, ... by role, and `drawer`.
        size: Side of the image in pixels.
    """
    things = "".join(_cube(index) for index in range(CUBES[task]))
    extra = ""
    if task == "PutAppleInDrawer":
        things, extra = _apple() + _drawer(), _DRAWER_EXTRA
    return (
        f"<mujoco>{_HEAD.format(size=size)}<worldbody>{_TABLE}{_FENCE}{_marks(task)}"
        f"{_GRIPPER}{things}</worldbody>{_ACTUATORS}{extra}</mujoco>"
    )


def _marks(task: Task) -> str:
    """Marks on the table: the line or the targets of the task."""
    if task == "AlignTwoCube":
        return (
            '<geom class="look" type="box" pos="0 0 .0004" size=".003 .22 .0004" '
            'rgba=".15 .15 .15 1"/>'
        )
    if task == "PlaceTwoCube":
        return "".join(
            f'<geom class="look" type="cylinder" pos="{x / 1000} {y / 1000} .0004" '
            f'size="{TARGET_RADIUS / 1000} .0004" rgba="{colour} 1"/>'
            for (x, y), colour in zip(TARGETS, (".55 .62 .7", ".7 .62 .55"), strict=True)
        )
    return ""


def _cube(index: int) -> str:
    half = CUBE / 2000
    return (
        f'<body name="thing{index}"><freejoint/>'
        f'<geom name="thing{index}" type="box" size="{half} {half} {half}" mass=".05"/></body>'
    )


def _apple() -> str:
    """An apple that looks round but has a flat bottom."""
    half = APPLE / 2000
    return f"""
<body name="thing0"><freejoint/>
  <geom name="thing0" type="cylinder" size="{half} {half}" mass=".06" group="3" rgba="1 0 0 0"/>
  <geom class="look" type="ellipsoid" size="{half + 0.003} {half + 0.003} {half}" mass="0"
        rgba=".85 .1 .1 1"/>
  <geom class="look" type="cylinder" pos="0 0 {half + 0.004}" size=".002 .007" mass="0"
        rgba=".35 .22 .1 1"/>
  <geom class="look" type="ellipsoid" pos=".008 .004 {half + 0.006}" size=".009 .004 .0015"
        mass="0" rgba=".2 .6 .15 1"/>
</body>"""


def _drawer() -> str:
    """A cabinet with a drawer: body `cabinet`, whose y depends on the level, and slide `drawer`."""
    middle = DRAWER_CLOSED / 1000
    panel, wood = 'rgba=".62 .45 .28 1"', 'rgba=".78 .6 .4 1"'
    return f"""
<body name="cabinet" pos="{middle} 0 0">
  <geom type="box" pos="-.006 -.083 .047" size=".058 .005 .047" {panel}/>
  <geom type="box" pos="-.006 .083 .047" size=".058 .005 .047" {panel}/>
  <geom type="box" pos="-.059 0 .047" size=".005 .078 .047" {panel}/>
  <geom type="box" pos="-.006 0 .099" size=".058 .088 .005" {panel}/>
  <body name="drawer" gravcomp="1">
    <joint name="drawer" type="slide" axis="1 0 0" range="0 {DRAWER_TRAVEL / 1000}" limited="true"
           damping="4" frictionloss=".6"/>
    <geom type="box" pos="0 0 .006" size=".05 .07 .004" mass=".2" {wood}/>
    <geom type="box" pos="0 -.072 .028" size=".05 .002 .026" mass=".02" {wood}/>
    <geom type="box" pos="0 .072 .028" size=".05 .002 .026" mass=".02" {wood}/>
    <geom type="box" pos="-.048 0 .028" size=".002 .07 .026" mass=".02" {wood}/>
    <geom name="front" type="box" pos=".056 0 .038" size=".006 .076 .036" mass=".05"
          rgba=".9 .78 .6 1"/>
    <geom class="look" type="box" pos=".0625 0 .058" size=".0008 .025 .004" mass="0"
          rgba=".2 .2 .2 1"/>
  </body>
</body>"""


_DRAWER_EXTRA = (
    '<contact><exclude body1="cabinet" body2="drawer"/><exclude body1="world" body2="drawer"/>'
    "</contact>"
)


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
