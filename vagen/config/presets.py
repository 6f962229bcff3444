"""Reads the algorithm presets of `presets.yaml`."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

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
        return _laid_over(values(entries[name]["like"]), own) if "like" in entries[name] else own

    return {
        name: Preset(entry["summary"], values(name))
        for name, entry in entries.items()
        if "summary" in entry
    }


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A tree with the values of both; those of `above` go before."""
    both = copy.deepcopy(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = _laid_over(both[key], value) if nested else copy.deepcopy(value)
    return both


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
