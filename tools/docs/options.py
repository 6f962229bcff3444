"""All options as Markdown: `python -m tools.docs.options docs/configuration.md`."""

import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vagen.config.errors import ANY_KEY, section_of
from vagen.config.infra import InfraConfig
from vagen.config.presets import PRESETS
from vagen.config.schema import ExperimentConfig
from vagen.envs.adapters.foreign import ForeignConfig
from vagen.envs.config import EnvConfig
from vagen.envs.registry import ADAPTERS, ENVIRONMENTS

HEADER = """\
# Options

Every option of an experiment and of its infra. Set one in a file or on the command line:

    vagen run frozenlake-tiny algorithm.lam=0.95 envs.frozenlake.env_config.size=8 infra.device=cpu

An experiment is a YAML file under `experiments/`; `infra` says where it runs. Values come from the
defaults below, the preset, the file and the command line; the last one that sets an option wins. An
unknown key, a wrong type or an impossible combination is an error. Its message names the key, the
place that set it and a valid value. An optional value is `null` by default.

`make docs` generates this page from the code.
"""


def render() -> str:
    """The whole reference."""
    options = ("envs", ANY_KEY, "env_config")
    shown: dict[type[BaseModel], str] = {}
    parts = [HEADER, "## Experiment", *_sections(ExperimentConfig, (), shown)]
    parts += ["## Infra", *_sections(InfraConfig, (), shown)]
    parts += ["## Options of every environment"]
    parts += _sections(EnvConfig, options, shown, title=False)
    classes = {name: entry.config_class for name, entry in (ENVIRONMENTS | ADAPTERS).items()}
    adapters = [name for name, own in classes.items() if issubclass(own, ForeignConfig)]
    for name, own in {_names(adapters): ForeignConfig, **classes}.items():
        common = (ForeignConfig if name in adapters else EnvConfig).model_fields
        changed = {
            key: field
            for key, field in own.model_fields.items()
            if key not in common
            or field.default != common[key].default
            or (name in adapters and field.description != common[key].description)
        }
        title = f"`{name}`" if name in classes else name
        parts += [f"## Options of {title}", _entries(changed, options, None, typed=common)]
    parts += ["## Presets", _presets()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _sections(
    model: type[BaseModel],
    prefix: tuple[str, ...],
    shown: dict[type[BaseModel], str],
    values: BaseModel | None = None,
    *,
    title: bool = True,
) -> Iterator[str]:
    """Entries of a section and of those inside it.

    Args:
        model: The section.
        prefix: Key of the section.
        shown: Where each section has its entries; this call adds to it.
        values: Its defaults at this key, if they differ from its own.
        title: Whether it gets a heading.
    """
    place = ".".join(prefix)
    leaves = {
        name: field
        for name, field in model.model_fields.items()
        if section_of(field.annotation)[0] is None
    }
    if title and prefix:
        yield f"### `{place}`"
    known = next((base for base in model.__mro__ if base in shown), None)
    if known is None and title:
        yield " ".join((model.__doc__ or "").split())
    elif known:
        names = [name for name in leaves if name in known.model_fields]
        leaves = {
            name: field
            for name, field in leaves.items()
            if name not in names or (values and getattr(values, name) != field.get_default())
        }
        there = next(section for section, where in shown.items() if where == shown[known])
        same = "The options" if there is known else _names(names)
        but = ", except:" if leaves.keys() & {*names} else ", and:" if leaves else "."
        yield f"{same} of `{shown[known]}`{but}"
    for base in model.__mro__:
        if issubclass(base, BaseModel) and base.model_fields:
            shown.setdefault(base, place)
    if leaves:
        yield _entries(leaves, prefix, values)
    for name, field in model.model_fields.items():
        section, is_mapping = section_of(field.annotation)
        if section is not None:
            key = (*prefix, name, ANY_KEY) if is_mapping else (*prefix, name)
            default = getattr(values, name) if values else field.get_default()
            yield from _sections(
                section, key, shown, default if isinstance(default, section) else None
            )


def _names(names: list[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}"


def _entries(
    fields: dict[str, FieldInfo],
    prefix: tuple[str, ...],
    values: BaseModel | None,
    *,
    typed: Mapping[str, FieldInfo] | None = None,
) -> str:
    """A line for each field; without its type if `typed` has a field of that name and type."""
    lines = []
    for name, field in fields.items():
        key = ".".join((*prefix, name))
        meaning = " ".join((field.description or "").split())
        about = _type(field) + _default(name, field, values)
        if typed and name in typed and typed[name].annotation == field.annotation:
            about = _default(name, field, values).removeprefix("; ")
        lines.append(f"- `{key}` ({about}): {meaning}")
    return "\n".join(lines)


def _type(field: FieldInfo) -> str:
    low, high = "", ""
    for item in field.metadata:
        for attribute, name in (("ge", "≥"), ("gt", ">")):
            if (bound := getattr(item, attribute, None)) is not None:
                low = f"{name} {bound:.7g}"
        for attribute, name in (("le", "]"), ("lt", ")")):
            if (bound := getattr(item, attribute, None)) is not None:
                high = f"{bound:.7g}{name}"
    text, *null = _annotation(field.annotation).rsplit(" or null", 1)
    if high:
        sign, bound = low.split()
        text = f"{text} in {'[' if sign == '≥' else '('}{bound}, {high}"
    elif low == "> 0":
        text = f"positive {text}"
    elif low:
        text = f"{text} {low}"
    if not null:
        return text
    return f"{text}, optional" if field.default is None else f"{text} or null"


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
        one = _annotation(arguments[0])
        return f"list of {one}" if one.startswith("`") else f"list of {one}s"
    if origin is tuple:
        return f"list of {len(arguments)} {_annotation(arguments[0])}s"
    if origin in (dict, Mapping):
        return "mapping"
    if annotation is types.NoneType:
        return "null"
    return {str: "string", int: "integer", float: "number", bool: "boolean"}[annotation]


def _choices(annotation: Any) -> list[Any]:
    """What the members of a list may be, in order; none if there is no list of it."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _choices(typing.get_args(annotation)[0])
    return [each for part in typing.get_args(annotation) for each in typing.get_args(part)]


def _default(name: str, field: FieldInfo, values: BaseModel | None) -> str:
    if field.is_required():
        return "; required"
    value = getattr(values, name) if values else field.get_default(call_default_factory=True)
    if isinstance(value, tuple) and value and [*value] == _choices(field.annotation):
        return "; default all"
    return "" if value is None and field.default is None else f"; default `{json.dumps(value)}`"


def _presets() -> str:
    where = "[Algorithms](algorithms.md#presets) has the values of each preset."
    entries = (f"- `{name}`: {preset.summary}" for name, preset in PRESETS.items())
    return "\n".join((where, "", *entries))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
