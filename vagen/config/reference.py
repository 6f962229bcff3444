"""All options as Markdown: `python -m vagen.config.reference docs/configuration.md`."""

import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vagen.config.errors import ANY_KEY, section_of
from vagen.config.infra import InfraConfig
from vagen.config.presets import PRESETS
from vagen.config.schema import ExperimentConfig
from vagen.envs.config import EnvConfig
from vagen.envs.registry import ADAPTERS, ENVIRONMENTS

HEADER = """\
# Configuration

Generated from the schema by `python -m vagen.config.reference docs/configuration.md`: do not edit.

An experiment is a YAML file under `experiments/`; `infra` says where it runs. Later wins: the
defaults below, then the preset, then the file, then overrides on the command line:

    vagen run frozenlake-tiny algorithm.lam=0.95 envs.frozenlake.env_config.size=8 infra.device=cpu

An unknown key, a wrong type or a combination that cannot work ends with a message that names the
key, the file and line or the override that set it, and what would be right.
"""


def render() -> str:
    """The whole reference."""
    options = ("envs", ANY_KEY, "env_config")
    parts = [HEADER, "## Experiment", *_sections(ExperimentConfig, ())]
    parts += ["## Infra", *_sections(InfraConfig, ())]
    parts += ["## Options of every environment", *_sections(EnvConfig, options, title=False)]
    common = EnvConfig.model_fields
    for name, entry in (ENVIRONMENTS | ADAPTERS).items():
        own = entry.config_class
        changed = {
            key: field
            for key, field in own.model_fields.items()
            if key not in common or field.default != common[key].default
        }
        parts += [f"## Options of `{name}`", _table(changed, options, None)]
    parts += ["## Presets", _presets()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _sections(
    model: type[BaseModel],
    prefix: tuple[str, ...],
    values: BaseModel | None = None,
    *,
    title: bool = True,
) -> Iterator[str]:
    """Tables of a section and of those inside it.

    Args:
        model: The section.
        prefix: Where it stands.
        values: Its defaults where it stands, if they differ from its own.
        title: Whether it gets a heading.
    """
    if title and prefix:
        yield f"### `{'.'.join(prefix)}`"
    yield " ".join((model.__doc__ or "").split())
    leaves = {
        name: field
        for name, field in model.model_fields.items()
        if section_of(field.annotation)[0] is None
    }
    if leaves:
        yield _table(leaves, prefix, values)
    for name, field in model.model_fields.items():
        section, is_mapping = section_of(field.annotation)
        if section is not None:
            key = (*prefix, name, ANY_KEY) if is_mapping else (*prefix, name)
            default = getattr(values, name) if values else field.get_default()
            yield from _sections(section, key, default if isinstance(default, section) else None)


def _table(fields: dict[str, FieldInfo], prefix: tuple[str, ...], values: BaseModel | None) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        key = f"`{'.'.join((*prefix, name))}`"
        meaning = " ".join((field.description or "").split())
        cells = (key, _type(field), _default(name, field, values), meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _type(field: FieldInfo) -> str:
    limits = []
    for item in field.metadata:
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            bound = getattr(item, attribute, None)
            if bound is not None:
                limits.append(f"{sign} {bound:g}")
    text = _annotation(field.annotation)
    return f"{text}, {', '.join(limits)}" if limits else text


def _annotation(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotation(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_annotation(choice) for choice in arguments)
    if origin is list and typing.get_origin(arguments[0]) is typing.Literal:
        return f"list of {_annotation(arguments[0])}"
    if origin is tuple and arguments[1:] == (...,):
        return f"list of {_annotation(arguments[0])}s"
    if origin is tuple:
        return f"list of {len(arguments)} {_annotation(arguments[0])}s"
    if origin is dict:
        return "mapping"
    if annotation is types.NoneType:
        return "null"
    return {str: "text", int: "integer", float: "number", bool: "switch"}[annotation]


def _default(name: str, field: FieldInfo, values: BaseModel | None) -> str:
    if field.is_required():
        return "required"
    value = getattr(values, name) if values else field.get_default(call_default_factory=True)
    return f"`{json.dumps(value)}`"


def _presets() -> str:
    lines = [
        "| preset | estimator | what it is | loss mask | advantage mask | turn rewards "
        "| state reward | levels x trajectories |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, preset in PRESETS.items():
        manager = preset.values["rollout_manager"]
        cells = (
            f"`{name}`",
            f"`{preset.estimator}`",
            preset.summary,
            _mark(manager["use_loss_mask"]),
            _mark(manager["use_gae_mask"]),
            _mark(manager["use_multi_turn_reward"]),
            _mark(preset.values["judge"]["use_state_reward"]),
            f"{preset.values['data']['train_batch_size']} x {manager['n_trajectory']}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mark(switch: bool) -> str:
    return "yes" if switch else "no"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
