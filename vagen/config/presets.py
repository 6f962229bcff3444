"""Reads the algorithm presets of `presets.yaml`."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vagen.config.layers import Layers, from_one_place

EVERY_ENV = "*"


@dataclass(frozen=True, slots=True)
class Preset:
    """Defaults of an experiment."""

    summary: str
    values: dict[str, Any]

    @property
    def estimator(self) -> str:
        """Name of its advantage estimator."""
        return self.values["algorithm"]["adv_estimator"]


def _read(path: Path) -> dict[str, Preset]:
    entries = yaml.safe_load(path.read_text())

    def values(name: str) -> dict[str, Any]:
        own = {key: value for key, value in entries[name].items() if key not in ("summary", "like")}
        layers = Layers(values(entries[name]["like"]) if "like" in entries[name] else {})
        layers.lay(from_one_place(own, path.name))
        return layers.tree

    return {
        name: Preset(entry["summary"], values(name))
        for name, entry in entries.items()
        if "summary" in entry
    }


PRESETS = _read(Path(__file__).with_suffix(".yaml"))


def preset_values(name: str, env_names: dict[str, str]) -> dict[str, Any]:
    """The values of a preset for an experiment's environments.

    Args:
        name: Name of the preset.
        env_names: Name of each environment (`Sokoban`) by its id in the experiment.
    """
    values = copy.deepcopy(PRESETS[name].values)
    given = values.pop("envs")
    every = given[EVERY_ENV]["env_config"]
    values["envs"] = {
        env_id: {"env_config": copy.deepcopy({**every, **own.get("env_config", {})})}
        for env_id, env_name in env_names.items()
        for own in [given.get(env_name, {})]
    }
    return values
