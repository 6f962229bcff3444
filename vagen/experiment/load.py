"""From files and overrides to a checked configuration.

Later wins: schema defaults, then the preset, then the file, then the overrides.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from vagen.config.base import ConfigError
from vagen.config.errors import unknown_name, validate
from vagen.config.infra import InfraConfig
from vagen.config.layers import Layers, from_one_place, parse_override
from vagen.config.presets import PRESETS, preset_values
from vagen.config.schema import ExperimentConfig
from vagen.config.yaml_io import Document, read_yaml
from vagen.experiment.checks import check_experiment, resolve_environments

S = TypeVar("S", bound=BaseModel)
_SUFFIXES = (".yaml", ".yml")


def load_experiment(
    source: str | Path | Document, overrides: Sequence[str] = (), *, check: bool = True
) -> ExperimentConfig:
    """Loads an experiment, lays the overrides over it and checks that it can run.

    Args:
        source: A YAML file, the name of a file under `experiments/` of the current folder or of
            the repository, or what `parse_yaml` made of a text.
        overrides: Dotted assignments with YAML values, e.g. `algorithm.lam=0.95` or
            `envs.lake.env_config.size=8`.
        check: Whether a model can be trained so is looked at too, for which torch is loaded;
            otherwise whether its episodes can be played.

    Returns:
        The experiment with every option filled in, those of the environments included.

    Raises:
        ConfigError: With one line per mistake: the key, the file and line or the override that set
            it, and what would be right.
    """
    layers = Layers(_defaults(ExperimentConfig))
    documents = [_document(source, "experiments")]
    documents += [parse_override(text) for text in overrides]
    preset = _preset_layer(documents)
    for document in [preset, *documents] if preset else documents:
        layers.lay(document)
    file = None if isinstance(source, Document) else str(source)
    config = validate(ExperimentConfig, layers.tree, lambda key: layers.place_of(key) or file)
    config = resolve_environments(config, layers.place_of)
    check_experiment(config, layers.place_of, trains=check)
    return config


def load_infra(
    source: str | Path | Document | None = None, overrides: Sequence[str] = ()
) -> InfraConfig:
    """Loads where a run takes place.

    Args:
        source: A YAML file, the name of a file under `experiments/infra/`, what `parse_yaml` made
            of a text, or None for the schema's defaults (one machine).
        overrides: Dotted assignments, e.g. `device=cpu`.

    Raises:
        ConfigError: See `load_experiment`.
    """
    layers = Layers(_defaults(InfraConfig))
    if source is not None:
        layers.lay(_document(source, "experiments/infra"))
    for text in overrides:
        layers.lay(parse_override(text))
    return validate(InfraConfig, layers.tree, layers.place_of)


def load_section(model: type[S], name: str, overrides: Sequence[str] = ()) -> S:
    """One section with its defaults and overrides, for what needs no whole experiment.

    Args:
        model: The section's class.
        name: Its key, which the overrides begin with, e.g. `judge` of `judge.type=llm`.
        overrides: Dotted assignments.

    Raises:
        ConfigError: See `load_experiment`, or for an override of another section.
    """
    layers = Layers(_defaults(model))
    for text in overrides:
        key, dot, rest = text.partition(".")
        if key != name or not dot:
            raise ConfigError(f"{text}: only {name}.<key>=<value> can be given here")
        layers.lay(parse_override(rest))
    return validate(model, layers.tree, layers.place_of)


def find_file(path_or_name: str | Path, folder: str) -> Path:
    """The file of that path, or of that name under `folder`.

    Raises:
        ConfigError: If there is none; names the nearest.
    """
    path = Path(path_or_name)
    if path.is_file():
        return path
    if path.suffix in _SUFFIXES or len(path.parts) != 1:
        raise ConfigError(f"there is no file {path_or_name}")
    known = named_files(folder)
    if str(path_or_name) not in known:
        kind = Path(folder).name.rstrip("s")  # experiment, infra, sweep
        raise ConfigError(f"{unknown_name(kind, str(path_or_name), known)} (in `{folder}/`)")
    return known[str(path_or_name)]


def named_files(folder: str) -> dict[str, Path]:
    """Files that a name stands for: those under `folder` here, then those of the package."""
    known: dict[str, Path] = {}
    for root in (Path(), Path(__file__).resolve().parents[1]):
        for found in sorted((root / folder).glob("*")):
            if found.suffix in _SUFFIXES:
                known.setdefault(found.stem, found)
    return known


def _document(source: str | Path | Document, folder: str) -> Document:
    return source if isinstance(source, Document) else read_yaml(find_file(source, folder))


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The schema's defaults as a tree, so that a section given in part keeps the others."""
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if not field.is_required():
            value = field.get_default(call_default_factory=True)
            tree[name] = value.model_dump() if isinstance(value, BaseModel) else value
    return tree


def _preset_layer(documents: Sequence[Document]) -> Document | None:
    """The values of the preset that the documents name, for the environments they name."""
    named = [document.tree["preset"] for document in documents if "preset" in document.tree]
    preset = named[-1] if named else None
    if preset is None:
        return None
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(unknown_name("preset", str(preset), PRESETS))
    env_names: dict[str, str] = {}
    for document in documents:
        envs = document.tree.get("envs")
        for env_id, spec in envs.items() if isinstance(envs, dict) else ():
            known = env_names.get(env_id, "")
            env_names[env_id] = (
                str(spec.get("env_name", known)) if isinstance(spec, dict) else known
            )
    return from_one_place(preset_values(preset, env_names), f"preset `{preset}`")
