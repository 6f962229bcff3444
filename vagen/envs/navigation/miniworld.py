"""Rooms generated from seeds as a simulator, rendered by MiniWorld without a display (EGL).

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

from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.furniture import rgb
from vagen.envs.navigation.levels import NavigationLevel
from vagen.envs.navigation.planner import Planner
from vagen.envs.navigation.rooms import (
    AGENT_RADIUS,
    CAMERA_HEIGHT,
    DOOR_HEIGHT,
    DOOR_WIDTH,
    WALL_HEIGHT,
    Plan,
    Thing,
)
from vagen.envs.navigation.truth import Sighting, planar
from vagen.envs.navigation.world import Pose, World, boxes_of


class GeneratedRooms:
    """Rooms generated from seeds, rendered by MiniWorld.

    `World` computes moves, collisions and visibility. MiniWorld is loaded with the first image
    only.
    """

    def __init__(self, config: NavigationConfig) -> None:
        self._config = config
        self._level: NavigationLevel
        self._world: World
        self._planner: Planner
        self._pose: Pose

    def load(self, level: NavigationLevel) -> None:
        """Puts the agent at the start of `level`."""
        target = level.plan.things[level.target]
        self._level = level
        self._world = World(level.plan, self._config.field_of_view)
        self._planner = Planner(
            self._world,
            (target.x, target.z),
            step=self._config.move_metres,
            reach=self._config.goal_metres,
        )
        self._pose = level.start

    def act(self, action: str) -> None:
        """Executes an action of `ACTIONS`; blocked moves change nothing."""
        self._pose = self._world.after(self._pose, action, self._config.move_metres)

    def view(self) -> tuple[Pose, list[Sighting]]:
        """The pose, and all objects as seen from it."""
        return self._view_at(self._pose)

    def target_distance(self) -> float:
        """Metres from the agent to the target on the floor plan."""
        target = self._level.plan.things[self._level.target]
        return planar(self._pose, target.x, target.z)

    def view_after(self, actions: list[str]) -> tuple[Pose, list[Sighting]]:
        """The view after `actions`, without moving the agent."""
        pose = self._pose
        for action in actions:
            pose = self._world.after(pose, action, self._config.move_metres)
        return self._view_at(pose)

    def plan(self, count: int) -> list[str]:
        """Up to `count` optimal actions from here; empty without a path."""
        return self._planner.plan(self._pose, count)

    def frame(self) -> NDArray[np.uint8]:
        """The agent's view, rendered by MiniWorld."""
        show = renderer(self._config.picture_size, self._config.field_of_view)
        return show.first_person(self._level.plan, self._pose)

    def close(self) -> None:
        """Does nothing: the renderer belongs to the process."""

    def _view_at(self, pose: Pose) -> tuple[Pose, list[Sighting]]:
        seen, target = self._world.in_view(pose), self._level.target
        return pose, [
            Sighting(each.kind, each.colour, each.x, each.z, index in seen, index == target)
            for index, each in enumerate(self._level.plan.things)
        ]


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


def _rgba_image(path: str) -> Any:
    """An image file for pyglet, RGBA from the start.

    MiniWorld would have pyglet convert RGB to RGBA with a regular expression, which takes up to
    five seconds per texture, two hundred times as long.
    """
    import pyglet

    with Image.open(path) as file:
        picture = file.convert("RGBA").transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return pyglet.image.ImageData(*picture.size, "RGBA", picture.tobytes())


@functools.cache
def _world_class() -> Any:
    """The class of worlds for plans; the only place that imports MiniWorld."""
    try:
        import pyglet

        pyglet.options["headless"] = True
        pyglet.options["shadow_window"] = False  # otherwise the import would open it and may fail
        from miniworld.entity import Entity, MeshEnt
        from miniworld.miniworld import MiniWorldEnv
        from miniworld.opengl import drawBox
        from miniworld.params import DEFAULT_PARAMS
        from pyglet.gl import GL_TEXTURE_2D, glColor3f, glDisable
    except (ImportError, OSError) as error:
        raise _missing(error) from error

    pyglet.image.load = _rgba_image  # pyrefly: ignore[bad-assignment]

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
                obs_width=side, obs_height=side, window_width=1, window_height=1, params=params
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
                    entity, pos=np.array([thing.x, 0.0, -thing.z]), dir=math.radians(-thing.angle)
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
