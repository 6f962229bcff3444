"""The interface of Navigation's simulators, and the one with generated rooms."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.levels import NavigationLevel
from vagen.envs.navigation.miniworld import renderer
from vagen.envs.navigation.planner import Planner
from vagen.envs.navigation.truth import Sighting, planar
from vagen.envs.navigation.world import Pose, World


@dataclass(frozen=True, slots=True)
class View:
    """The true view from a pose."""

    pose: Pose
    sightings: list[Sighting]
    """All objects, including the target."""


class Simulator(ABC):
    """A simulator: rooms, an agent, and its view."""

    @abstractmethod
    def load(self, level: Any) -> None:
        """Puts the agent at the start of a level."""

    @abstractmethod
    def act(self, action: str) -> None:
        """Executes an action of `ACTIONS`; blocked moves change nothing."""

    @abstractmethod
    def view(self) -> View:
        """The current view."""

    @abstractmethod
    def target_distance(self) -> float:
        """Metres from the agent to the target on the floor plan."""

    @abstractmethod
    def view_after(self, actions: list[str]) -> View:
        """The view after `actions`, without moving the agent."""

    @abstractmethod
    def plan(self, count: int) -> list[str]:
        """Up to `count` optimal actions from here; empty without a path."""

    @abstractmethod
    def frame(self) -> NDArray[np.uint8]:
        """The agent's view, uint8 [side, side, 3]; a new array each time."""

    def close(self) -> None:  # noqa: B027
        """Ends the simulator if it is a separate program."""


class GeneratedRooms(Simulator):
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
        """Executes an action."""
        self._pose = self._world.after(self._pose, action, self._config.move_metres)

    def view(self) -> View:
        """The current view."""
        return self._view_at(self._pose)

    def target_distance(self) -> float:
        """Metres from the agent to the target on the floor plan."""
        target = self._level.plan.things[self._level.target]
        return planar(self._pose, target.x, target.z)

    def view_after(self, actions: list[str]) -> View:
        """The view after `actions`."""
        pose = self._pose
        for action in actions:
            pose = self._world.after(pose, action, self._config.move_metres)
        return self._view_at(pose)

    def plan(self, count: int) -> list[str]:
        """Up to `count` optimal actions from here."""
        return self._planner.plan(self._pose, count)

    def frame(self) -> NDArray[np.uint8]:
        """The agent's view, rendered by MiniWorld."""
        show = renderer(self._config.picture_size, self._config.field_of_view)
        return show.first_person(self._level.plan, self._pose)

    def _view_at(self, pose: Pose) -> View:
        seen = self._world.in_view(pose)
        return View(
            pose,
            [
                Sighting(
                    thing.kind,
                    thing.colour,
                    thing.x,
                    thing.z,
                    visible=index in seen,
                    is_target=index == self._level.target,
                )
                for index, thing in enumerate(self._level.plan.things)
            ],
        )
