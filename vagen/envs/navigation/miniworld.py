"""Renders plans with MiniWorld, without a display (EGL).

MiniWorld has textures, meshes and an OpenGL context in module globals, so a process has one
renderer per image size, which gets each plan. MiniWorld's x and z are east and south; its angles
are counter-clockwise from east.
"""

import contextlib
import functools
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.envs.navigation.furniture import rgb
from vagen.envs.navigation.rooms import (
    AGENT_RADIUS,
    CAMERA_HEIGHT,
    DOOR_HEIGHT,
    DOOR_WIDTH,
    WALL_HEIGHT,
    Plan,
    Thing,
)
from vagen.envs.navigation.world import Pose, boxes_of


class MiniWorldMissingError(RuntimeError):
    """MiniWorld, or its graphics libraries, cannot be loaded."""


class Renderer:
    """Renders plans."""

    def __init__(self, side: int, field_of_view: float) -> None:
        """Opens an OpenGL context and a frame buffer of `side` pixels.

        Raises:
            MiniWorldMissingError: The message says what to install.
        """
        world_class = _world_class()
        # MiniWorld prints the number of samples per pixel.
        with contextlib.redirect_stdout(io.StringIO()), _explained():
            self._world = world_class(side, field_of_view)

    def first_person(self, plan: Plan, pose: Pose) -> NDArray[np.uint8]:
        """The agent's view, uint8 [side, side, 3]."""
        self._world.show(plan)
        self._world.put_agent(pose)
        return self._world.render_obs()


@functools.cache
def renderer(side: int, field_of_view: float) -> Renderer:
    """This process's renderer for an image size.

    Raises:
        MiniWorldMissingError: The message says what to install.
    """
    return Renderer(side, field_of_view)


def _missing(error: Exception) -> MiniWorldMissingError:
    return MiniWorldMissingError(
        f"Navigation's pictures need MiniWorld and EGL ({type(error).__name__}: {error}): "
        f"pip install 'vagen[envs]', and on Debian apt-get install libegl1 libgl1-mesa-dri "
        f"libglu1-mesa; "
        f"render_mode text needs neither"
    )


@contextlib.contextmanager
def _explained():
    """Converts errors of a missing driver to one that says what to install."""
    import pyglet.gl
    import pyglet.window

    try:
        yield
    except (OSError, pyglet.window.WindowException, pyglet.gl.ContextException) as error:
        raise _missing(error) from error


def _load_texture(tex_path: str) -> Any:
    """A replacement of MiniWorld's texture loader, two hundred times as fast.

    MiniWorld makes pyglet convert RGB to RGBA with a regular expression, which takes up to five
    seconds per texture. Here the image is RGBA from the start.
    """
    import pyglet
    from pyglet import gl

    with Image.open(tex_path) as file:
        picture = file.convert("RGBA").transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    width, height = picture.size
    pixels = picture.tobytes()
    texture = pyglet.image.ImageData(width, height, "RGBA", pixels).get_texture()
    gl.glEnable(texture.target)
    gl.glBindTexture(texture.target, texture.id)
    gl.glTexImage2D(
        gl.GL_TEXTURE_2D, 0, gl.GL_RGB, width, height, 0, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, pixels
    )
    gl.glHint(gl.GL_GENERATE_MIPMAP_HINT, gl.GL_NICEST)
    gl.glGenerateMipmap(gl.GL_TEXTURE_2D)
    gl.glTexParameteri(gl.GL_TEXTURE_2D, gl.GL_TEXTURE_MAG_FILTER, gl.GL_LINEAR)
    gl.glTexParameteri(gl.GL_TEXTURE_2D, gl.GL_TEXTURE_MIN_FILTER, gl.GL_LINEAR_MIPMAP_LINEAR)
    gl.glBindTexture(gl.GL_TEXTURE_2D, 0)
    return texture


@functools.cache
def _world_class() -> Any:
    """The class of worlds for plans; the only place that imports MiniWorld."""
    try:
        import pyglet

        pyglet.options["headless"] = True
        pyglet.options["shadow_window"] = False  # otherwise the import would open it and may fail
        from miniworld.entity import Entity, MeshEnt
        from miniworld.miniworld import MiniWorldEnv
        from miniworld.opengl import Texture, drawBox
        from miniworld.params import DEFAULT_PARAMS
        from pyglet.gl import GL_TEXTURE_2D, glColor3f, glDisable
    except (ImportError, OSError) as error:
        raise _missing(error) from error

    Texture.load = staticmethod(_load_texture)

    class Boxes(Entity):
        """An object of boxes at its position."""

        def __init__(self, thing: Thing) -> None:
            super().__init__()
            self.radius, self.height = thing.spec.radius, thing.spec.height
            self._boxes = [
                (low[0], high[0], low[1], high[1], -high[2], -low[2], rgb(colour, thing.colour))
                for low, high, colour in boxes_of(thing)
            ]

        @property
        def is_static(self) -> bool:
            return True

        def render(self) -> None:
            glDisable(GL_TEXTURE_2D)
            for *box, colour in self._boxes:
                glColor3f(*colour)
                drawBox(*box)

    class Rooms(MiniWorldEnv):
        """A world that shows any plan."""

        def __init__(self, side: int, field_of_view: float) -> None:
            self._plan = Plan((), None, ())
            params = DEFAULT_PARAMS.no_random()
            params.set("cam_fov_y", field_of_view)
            params.set("cam_height", CAMERA_HEIGHT)
            params.set("sky_color", [1.0, 1.0, 1.0])
            super().__init__(
                obs_width=side,
                obs_height=side,
                window_width=1,
                window_height=1,
                params=params,
            )

        def show(self, plan: Plan) -> None:
            """Builds the plan unless it is the current one."""
            if plan is not self._plan:
                self._plan = plan
                self.reset(seed=0)

        def put_agent(self, pose: Pose) -> None:
            agent: Any = self.agent
            agent.pos = np.array([pose.x, 0.0, -pose.z])
            agent.dir = math.radians(90 - pose.rotation)
            agent.cam_pitch = -pose.horizon
            agent.radius = AGENT_RADIUS

        def _gen_world(self) -> None:
            self._add_rooms()
            for thing in self._plan.things:
                entity = _entity(thing)
                self.place_entity(
                    entity,
                    pos=np.array([thing.x, 0.0, -thing.z]),
                    dir=math.radians(-thing.angle),
                )
            self.place_entity(self.agent, pos=np.zeros(3), dir=0.0)

        def _add_rooms(self) -> None:
            if not self._plan.rooms:  # MiniWorld builds a world in its constructor
                self.add_rect_room(min_x=0, max_x=1, min_z=0, max_z=1)
            rooms = [
                self.add_rect_room(
                    min_x=room.west,
                    max_x=room.east,
                    min_z=-room.north,
                    max_z=-room.south,
                    wall_height=WALL_HEIGHT,
                    floor_tex=room.floor,
                    wall_tex=room.wall,
                    ceil_tex="ceiling_tile_noborder",
                )
                for room in self._plan.rooms
            ]
            door, half = self._plan.door, DOOR_WIDTH / 2
            if door is not None and door.along_x:
                self.connect_rooms(
                    *rooms, min_x=door.x - half, max_x=door.x + half, max_y=DOOR_HEIGHT
                )
            elif door is not None:
                self.connect_rooms(
                    *rooms, min_z=-door.z - half, max_z=-door.z + half, max_y=DOOR_HEIGHT
                )

    def _entity(thing: Thing) -> Any:
        mesh = thing.spec.mesh
        if mesh is None:
            return Boxes(thing)
        entity = MeshEnt(mesh.name.format(colour=thing.colour), mesh.height)
        # pyrefly: ignore[bad-assignment]
        entity.radius = thing.spec.radius
        return entity

    return Rooms
