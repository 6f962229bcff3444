"""AI2-THOR as a simulator: episodes from a JSON file in its scenes, with its physics and images.

The file has `{"episodes": [...]}`. Positions are the simulator's: metres, y upwards.
"""

import functools
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from vagen.config.base import Section
from vagen.envs.levels import SPLITS, LevelError, Split, content_hash, split_of
from vagen.envs.navigation.config import NavigationConfig, TaskStyle
from vagen.envs.navigation.planner import Planner
from vagen.envs.navigation.truth import Sighting, planar
from vagen.envs.navigation.world import BEARINGS, QUARTER, TILT, TILTS, TURNS, Pose

GRID = 0.1
"""Grid size of AI2-THOR's reachable positions in metres."""

_COMMANDS = {
    "moveahead": "MoveAhead",
    "moveback": "MoveBack",
    "moveright": "MoveRight",
    "moveleft": "MoveLeft",
    "rotateright": "RotateRight",
    "rotateleft": "RotateLeft",
    "lookup": "LookUp",
    "lookdown": "LookDown",
}
_NOT_THINGS = {"Floor", "Wall", "Ceiling"}
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Place(Section):
    """A point of a scene."""

    x: float
    """Metres to the east."""
    y: float
    """Metres upwards."""
    z: float
    """Metres to the north."""


class StartPose(Section):
    """Start of an episode."""

    position: Place
    """The agent's centre, as in the simulator."""
    rotation: Literal[0, 90, 180, 270]
    """Degrees clockwise from north."""
    horizon: Literal[-30, 0, 30, 60] = 0
    """Degrees of the camera below the horizon."""


class Target(Section):
    """The target of an episode."""

    type: str = Field(min_length=1)
    """The simulator's object type, such as `CoffeeMachine`."""
    position: Place
    """Its position: of the objects of its type the nearest to this point is meant."""


class Episode(Section):
    """One episode of the file."""

    scene: str = Field(min_length=1)
    """The simulator's name of a scene, such as `FloorPlan10`."""
    instruction: str = Field(min_length=1)
    """Instruction for the agent."""
    target: Target
    """The object to approach."""
    start: StartPose
    """Pose at the start."""
    task: TaskStyle = "base"
    """Style of the instruction."""
    split: Split | None = None
    """Its split; null lets the hash of its content decide."""


class EpisodeFile(Section):
    """Content of a file of episodes."""

    episodes: tuple[Episode, ...]
    """All episodes, of all styles and splits."""


@dataclass(frozen=True, slots=True)
class ThorLevel:
    """An episode with its hash."""

    episode: Episode
    level_hash: str

    @property
    def instruction(self) -> str:
        """Instruction for the agent."""
        return self.episode.instruction


def sample_episode(config: NavigationConfig, seed: int, split: Split) -> ThorLevel:
    """The episode of a seed, in the order of the file, modulo their number.

    Raises:
        LevelError: The file is missing or invalid, or has no episode for the split and the tasks.
    """
    assert config.episodes is not None
    path = Path(config.episodes)
    levels = [
        level for level in _read(path, _changed(path))[split] if level.episode.task in config.tasks
    ]
    if not levels:
        raise LevelError(
            f"{path}: no episode of {', '.join(config.tasks)} is in split {split!r}; give episodes "
            f"a `split`, or choose other `tasks`"
        )
    return levels[seed % len(levels)]


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise LevelError(f"{path}: episodes cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> dict[Split, list[ThorLevel]]:
    """The file's episodes by split; `changed` is its modification time."""
    try:
        file = EpisodeFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise LevelError(f"{path}: {where}: {first['msg']}") from error
    levels: dict[Split, list[ThorLevel]] = {split: [] for split in SPLITS}
    for episode in file.episodes:
        content = json.dumps(episode.model_dump(mode="json", exclude={"split"}), sort_keys=True)
        digest = content_hash(f"Navigation ai2thor {content}")
        levels[episode.split or split_of(digest)].append(ThorLevel(episode, digest))
    return levels


class ThorError(RuntimeError):
    """AI2-THOR cannot be started, or rejects an episode."""


def start_controller(config: NavigationConfig) -> Any:
    """Starts AI2-THOR without a display.

    Raises:
        ThorError: The message says what is missing.
    """
    try:
        from ai2thor.controller import Controller
        from ai2thor.platform import CloudRendering
    except ImportError as error:
        raise ThorError(
            f"Navigation's backend ai2thor needs the package ai2thor ({error}): "
            f"pip install 'ai2thor>=5,<6', or use backend miniworld"
        ) from error
    try:
        return Controller(
            agentMode="default",
            gridSize=GRID,
            visibilityDistance=10,
            width=config.picture_size,
            height=config.picture_size,
            fieldOfView=config.field_of_view,
            platform=CloudRendering,
            gpu_device=config.gpu,
            server_timeout=config.server_timeout,
        )
    except (ValueError, RuntimeError, AssertionError, OSError) as error:
        raise ThorError(
            f"AI2-THOR could not be started ({type(error).__name__}: {error}): it needs its Unity "
            f"build, which it downloads once (~/.ai2thor), and a Vulkan driver; or use backend "
            f"miniworld"
        ) from error


class ThorRooms:
    """Episodes in AI2-THOR's scenes; the program starts with the first of them."""

    def __init__(self, config: NavigationConfig) -> None:
        self._config = config
        self._controller: Any = None
        self._event: Any = None
        self._episode: Episode
        self._target_id = ""
        self._planner: Planner | None = None

    def load(self, level: ThorLevel) -> None:
        """Puts the agent at the start of an episode.

        Raises:
            ThorError: The simulator, the scene, the target or the start is missing.
        """
        if self._controller is None:
            self._controller = start_controller(self._config)
        self._episode = level.episode
        self._planner = None
        self._event = self._controller.reset(scene=self._episode.scene)
        start = self._episode.start
        self._teleport(start.position.model_dump(), start.rotation, start.horizon)
        self._target_id = self._find_target()

    def act(self, action: str) -> None:
        """Executes an action; the simulator decides on collisions."""
        self._event = self._step(action)

    def view(self) -> tuple[Pose, list[Sighting]]:
        """The current view from the simulator's metadata."""
        sightings = [
            Sighting(
                words_of(thing["objectType"]),
                None,
                thing["position"]["x"],
                thing["position"]["z"],
                visible=thing["visible"],
                is_target=thing["objectId"] == self._target_id,
            )
            for thing in self._things()
        ]
        return self._pose(), sightings

    def target_distance(self) -> float:
        """Metres from the agent to the target on the floor plan."""
        target = next(t for t in self._things() if t["objectId"] == self._target_id)
        return planar(self._pose(), target["position"]["x"], target["position"]["z"])

    def view_after(self, actions: list[str]) -> tuple[Pose, list[Sighting]]:
        """The view after `actions`, which are executed and then undone."""
        before = self._event
        agent = before.metadata["agent"]
        for action in actions:
            self.act(action)
        view = self.view()
        pose = _pose(agent)
        self._teleport(agent["position"], pose.rotation, pose.horizon)
        self._event = before
        return view

    def plan(self, count: int) -> list[str]:
        """Up to `count` optimal actions over the simulator's reachable positions."""
        if self._planner is None:
            answer = self._controller.step(action="GetReachablePositions")
            self._check(answer, "GetReachablePositions")
            target = next(t for t in self._things() if t["objectId"] == self._target_id)
            self._planner = Planner(
                ReachableGrid(answer.metadata["actionReturn"], self._pose()),
                (target["position"]["x"], target["position"]["z"]),
                step=self._config.move_metres,
                reach=self._config.goal_metres,
            )
        return self._planner.plan(self._pose(), count)

    def frame(self) -> NDArray[np.uint8]:
        """The agent's view."""
        return np.array(self._event.frame, np.uint8)

    def close(self) -> None:
        """Stops the simulator."""
        if self._controller is not None:
            self._controller.stop()
            self._controller = None

    def _step(self, action: str) -> Any:
        command = _COMMANDS[action]
        if action in BEARINGS:
            return self._controller.step(action=command, moveMagnitude=self._config.move_metres)
        degrees = QUARTER if action in TURNS else TILT
        return self._controller.step(action=command, degrees=degrees)

    def _teleport(self, position: dict[str, float], rotation: int, horizon: int) -> None:
        self._event = self._controller.step(
            action="Teleport",
            position=position,
            rotation={"x": 0, "y": rotation, "z": 0},
            horizon=horizon,
            standing=True,
        )
        self._check(self._event, f"Teleport to {position}")

    def _check(self, event: Any, what: str) -> None:
        if not event.metadata["lastActionSuccess"]:
            raise ThorError(
                f"AI2-THOR, scene {self._episode.scene}: {what} failed: "
                f"{event.metadata['errorMessage']}"
            )

    def _find_target(self) -> str:
        """Id of the object of the target's type nearest to its position."""
        wanted = self._episode.target
        found = [t for t in self._things() if t["objectType"] == wanted.type]
        if not found:
            raise ThorError(
                f"AI2-THOR, scene {self._episode.scene}: it has no object of type {wanted.type!r}, "
                f"the target of an episode"
            )
        return min(found, key=lambda t: _apart(t["position"], wanted.position))["objectId"]

    def _things(self) -> list[dict[str, Any]]:
        things = self._event.metadata["objects"]
        return [thing for thing in things if thing["objectType"] not in _NOT_THINGS]

    def _pose(self) -> Pose:
        return _pose(self._event.metadata["agent"])


class ReachableGrid:
    """Space as AI2-THOR's list of reachable positions."""

    def __init__(self, positions: list[dict[str, float]], origin: Pose) -> None:
        """Prepares the list; moves start from `origin`."""
        self._origin = origin
        self._cells = {self._cell(place["x"], place["z"]) for place in positions}

    def after(self, pose: Pose, action: str, step: float) -> Pose:
        """The pose after an action, unchanged if a position on its way is not reachable."""
        if action in TURNS:
            return replace(pose, rotation=(pose.rotation + TURNS[action]) % 360)
        if action in TILTS:
            return pose
        angle = math.radians(pose.rotation + BEARINGS[action])
        east, north = round(math.sin(angle)), round(math.cos(angle))
        pieces = max(1, round(step / GRID))
        for piece in range(1, pieces + 1):
            way = step * piece / pieces
            if self._cell(pose.x + way * east, pose.z + way * north) not in self._cells:
                return pose
        return replace(pose, x=round(pose.x + step * east, 4), z=round(pose.z + step * north, 4))

    def _cell(self, x: float, z: float) -> tuple[int, int]:
        return round((x - self._origin.x) / GRID), round((z - self._origin.z) / GRID)


def words_of(object_type: str) -> str:
    """An object type as words: `CoffeeMachine` is `coffee machine`."""
    return _WORD_START.sub(" ", object_type).lower()


def _pose(agent: dict[str, Any]) -> Pose:
    """The pose in an event's metadata, with positions in tenths of millimetres, as in states."""
    position = agent["position"]
    return Pose(
        round(position["x"], 4),
        round(position["z"], 4),
        round(agent["rotation"]["y"] / QUARTER) * QUARTER % 360,
        round(agent["cameraHorizon"] / TILT) * TILT,
    )


def _apart(position: dict[str, float], place: Place) -> float:
    return math.dist((position["x"], position["y"], position["z"]), (place.x, place.y, place.z))
