"""From files and overrides to a checked configuration.

Later wins: schema defaults, then the preset, then the file, then the overrides.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from vagen.config.base import ConfigError
from vagen.config.checks import check_experiment
from vagen.config.errors import KeyPath, unknown_name, validate
from vagen.config.presets import PRESETS, preset_values
from vagen.config.schema import ExperimentConfig, InfraConfig
from vagen.config.yaml_io import parse_value, read_yaml

SUFFIXES = (".yaml", ".yml")

Model = TypeVar("Model", bound=BaseModel)


class _Layers:
    """Nested mappings laid over each other, remembering which layer set each key."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.tree = defaults
        self._places: dict[KeyPath, str] = {}

    def lay(self, values: dict[str, Any], places: dict[KeyPath, str]) -> None:
        """Lays `values` on top; a section left empty in YAML changes nothing."""
        self._places.update(places)
        self._merge(self.tree, values, (), places)

    def place_of(self, path: KeyPath) -> str | None:
        """Where a key, or the section it is missing from, was set last."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._places:
                return self._places[path[:length]]
        return None

    def _merge(
        self,
        below: dict[str, Any],
        above: dict[str, Any],
        prefix: KeyPath,
        places: dict[KeyPath, str],
    ) -> None:
        for key, value in above.items():
            path = (*prefix, key)
            if isinstance(below.get(key), dict) and isinstance(value, dict | None):
                self._merge(below[key], value or {}, path, places)
                continue
            below[key] = _copied(value)
            if path not in places:
                inside = (place for leaf, place in places.items() if leaf[: len(path)] == path)
                self._places[path] = next(inside)


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def load_experiment(path_or_name: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Loads an experiment, lays the overrides over it and checks that it can run.

    Args:
        path_or_name: A YAML file, or the name of a file under `experiments/` of the current folder
            or of the repository.
        overrides: Dotted assignments with YAML values, e.g. `algorithm.lam=0.95` or
            `envs.lake.env_config.size=8`.

    Raises:
        ConfigError: With one line per mistake: the key, the file and line or the override that set
            it, and what would be right.
    """
    path = find_file(path_or_name, "experiments")
    document = read_yaml(path)
    changes = [_parse_override(text) for text in overrides]

    layers = _Layers(_defaults(ExperimentConfig))
    preset = _last(("preset",), document.tree, changes)
    if preset is not None:
        layers.lay(*_preset_layer(preset, path, document.tree, changes))
    layers.lay(document.tree, document.places)
    for override in changes:
        layers.lay(*override)

    config = validate(ExperimentConfig, layers.tree, layers.place_of)
    check_experiment(config, layers.place_of)
    return config


def load_infra(
    path_or_name: str | Path | None = None, overrides: Sequence[str] = ()
) -> InfraConfig:
    """Loads where a run takes place.

    Args:
        path_or_name: A YAML file, the name of a file under `experiments/infra/`, or None for the
            schema's defaults (one machine).
        overrides: Dotted assignments, e.g. `device=cpu`.

    Raises:
        ConfigError: As for `load_experiment`.
    """
    layers = _Layers(_defaults(InfraConfig))
    if path_or_name is not None:
        document = read_yaml(find_file(path_or_name, "experiments/infra"))
        layers.lay(document.tree, document.places)
    for text in overrides:
        layers.lay(*_parse_override(text))
    return validate(InfraConfig, layers.tree, layers.place_of)


def find_file(path_or_name: str | Path, folder: str) -> Path:
    """The file of that path, or of that name under `folder`.

    Raises:
        ConfigError: If there is none; names the nearest.
    """
    path = Path(path_or_name)
    if path.is_file():
        return path
    if path.suffix in SUFFIXES or len(path.parts) != 1:
        raise ConfigError(f"there is no file {path_or_name}")
    known: dict[str, Path] = {}
    for root in (Path(), _repository()):
        for found in sorted((root / folder).glob("*.y*ml")):
            known.setdefault(found.stem, found)
    if str(path_or_name) not in known:
        kind = "infra" if folder.endswith("infra") else "experiment"
        raise ConfigError(f"{unknown_name(kind, str(path_or_name), known)} (in `{folder}/`)")
    return known[str(path_or_name)]


def list_experiments() -> list[str]:
    """Names that `load_experiment` finds."""
    folders = (Path("experiments"), _repository() / "experiments")
    return sorted({file.stem for folder in folders for file in folder.glob("*.y*ml")})


def config_digest(config: BaseModel) -> str:
    """SHA-256 of a configuration's values, independent of key order; 64 hex digits."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _repository() -> Path:
    return Path(__file__).resolve().parents[2]


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The schema's defaults as a tree, so that a section given in part keeps the others."""
    return {
        name: field.get_default(call_default_factory=True).model_dump()
        if isinstance(field.default, BaseModel)
        else field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
        if not field.is_required()
    }


def _parse_override(text: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """`a.b=1` as a tree and the places of its keys.

    Raises:
        ConfigError: If it is not `dotted.key=value`.
    """
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"`{text}` is not an override; write `dotted.key=value`")
    try:
        tree: Any = parse_value(value)
    except ConfigError as error:
        raise ConfigError(f"override `{text}`: {error}") from None
    for part in reversed(path):
        tree = {part: tree}
    return tree, {path: f"override `{text}`"}


def _last(
    path: KeyPath, tree: dict[str, Any], changes: list[tuple[dict[str, Any], dict[KeyPath, str]]]
) -> Any:
    """The value of a top-level key after the overrides."""
    (key,) = path
    value = tree.get(key)
    for change, _ in changes:
        value = change.get(key, value)
    return value


def _preset_layer(
    preset: Any,
    path: Path,
    tree: dict[str, Any],
    changes: list[tuple[dict[str, Any], dict[KeyPath, str]]],
) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(unknown_name("preset", str(preset), PRESETS))
    env_ids: list[str] = []
    for layer in (tree, *(change for change, _ in changes)):
        envs = layer.get("envs")
        env_ids += [env_id for env_id in envs or {} if env_id not in env_ids]
    values = preset_values(preset, env_ids)
    return values, dict.fromkeys(_leaves(values), f"preset `{preset}`")


def _leaves(tree: dict[str, Any], prefix: KeyPath = ()) -> list[KeyPath]:
    paths: list[KeyPath] = []
    for key, value in tree.items():
        here = (*prefix, key)
        paths += _leaves(value, here) if isinstance(value, dict) else [here]
    return paths
