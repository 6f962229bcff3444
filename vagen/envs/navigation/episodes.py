"""Episodes of AI2-THOR from a JSON file.

The file has `{"episodes": [...]}`. Positions are the simulator's: metres, y upwards.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from vagen.config.base import Section
from vagen.envs.levels import SPLITS, LevelError, Split, content_hash, split_of
from vagen.envs.navigation.config import NavigationConfig, TaskStyle


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
