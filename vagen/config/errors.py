"""Validation errors as sentences: which key, where it was set, and what would be right."""

import difflib
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vagen.config.base import ConfigError, Section, redact
from vagen.config.foreign import native

KeyPath = tuple[str, ...]
ANY_KEY = "<id>"
"""Stands for the free keys of a mapping in a dotted path, as in `envs.<id>.env_name`."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, or None if none is."""
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown_name(kind: str, name: str, candidates: Iterable[str]) -> str:
    """A sentence that refuses `name` and offers the nearest candidate, or all of them."""
    known = sorted(candidates)
    match = nearest(name, known)
    if match:
        return f"unknown {kind} `{name}`; did you mean `{match}`?"
    return f"unknown {kind} `{name}`; there is: {', '.join(known) or 'none'}"


def key_paths(model: type[BaseModel]) -> Iterator[KeyPath]:
    """All leaf keys of a schema; free keys of a mapping appear as `ANY_KEY`."""
    for name, field in model.model_fields.items():
        inner, is_mapping = section_of(field.annotation)
        if inner is None:
            yield (name,)
        else:
            prefix = (name, ANY_KEY) if is_mapping else (name,)
            for rest in key_paths(inner):
                yield (*prefix, *rest)


def validate(
    model: type[BaseModel],
    tree: Any,
    place_of: Callable[[KeyPath], str | None] = lambda _: None,
    prefix: KeyPath = (),
) -> Any:
    """Builds `model` from `tree`, or says in one line per mistake what is wrong.

    Args:
        model: The section to build.
        tree: Nested mappings.
        place_of: Gives the file and line, preset or override that set a key.
        prefix: Where the section stands in the whole configuration.

    Raises:
        ConfigError: With one line per mistake.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(model, tree, detail, place_of, prefix) for detail in error.errors()]
    raise ConfigError(redact("\n".join(dict.fromkeys(lines))))


def _explain(
    model: type[BaseModel],
    tree: Any,
    detail: ErrorDetails,
    place_of: Callable[[KeyPath], str | None],
    prefix: KeyPath,
) -> str:
    # Pydantic marks a key that is itself wrong by a last part `[key]`.
    local = tuple(str(part) for part in detail["loc"] if part != "[key]")
    path = (*prefix, *local)
    dotted = ".".join(path)
    place = place_of(path)
    where = f" ({place})" if place else ""
    kind = detail["type"]
    if kind == "extra_forbidden":
        section = _descend(model, local[:-1])
        if section and issubclass(section, Section) and local[-1] in section.retired:
            fixed, advice = json.dumps(section.retired[local[-1]]), native(path) or "leave it out"
            return f"`{dotted}`{where} is no option any more, it is always {fixed}; {advice}"
        meant = [
            f"{'.'.join(leaf)} here: {meaning}".lstrip()
            for leaf in _leaves_of(detail["input"])
            if (meaning := native((*path, *leaf)))
        ]
        advice = "; ".join(meant) or _suggest(model, local, prefix)
        return f"unknown key `{dotted}`{where}; {advice}"
    if kind == "missing":
        return f"`{dotted}` is missing{where}{_other_ids(tree, local)}"
    value = detail["input"]
    if kind == "literal_error":
        expected = detail.get("ctx", {}).get("expected", "")
        return f"`{dotted}` is {value!r}{where}; it must be {expected}"
    if kind in ("model_type", "dict_type"):
        return f"`{dotted}` is {value!r}{where}; it must be a section of `key: value` lines"
    message = detail["msg"].removeprefix("Value error, ").split(", unable to parse")[0]
    if isinstance(value, dict) and kind == "value_error":
        return f"`{dotted}`{where}: {message}"
    message = message.replace("Input should", "it should")
    return f"`{dotted}` is {value!r}{where}; {message[0].lower()}{message[1:]}"


def _suggest(model: type[BaseModel], local: KeyPath, prefix: KeyPath) -> str:
    """Nearest sibling, else the nearest key of the same name elsewhere, else all siblings."""
    section = _descend(model, local[:-1])
    siblings = list(section.model_fields) if section else []
    sibling = nearest(local[-1], siblings)
    if sibling:
        return f"did you mean `{'.'.join((*prefix, *local[:-1], sibling))}`?"
    by_leaf: dict[str, list[str]] = {}
    for path in key_paths(model):
        by_leaf.setdefault(path[-1], []).append(".".join((*prefix, *path)))
    leaf = nearest(local[-1], by_leaf)
    if leaf:
        return f"did you mean {' or '.join(f'`{path}`' for path in by_leaf[leaf])}?"
    here = f"`{'.'.join((*prefix, *local[:-1]))}`" if (*prefix, *local[:-1]) else "the top level"
    return f"{here} has: {', '.join(siblings)}"


def _leaves_of(value: Any) -> list[KeyPath]:
    """Paths of what a tree holds below itself; an empty one of what is no tree."""
    if not isinstance(value, dict) or not value:
        return [()]
    return [(str(key), *rest) for key, inner in value.items() for rest in _leaves_of(inner)]


def _other_ids(tree: Any, local: KeyPath) -> str:
    """A hint if the section lacking a key looks like a misspelt neighbour."""
    if len(local) < 2:
        return ""
    for part in local[:-2]:
        tree = tree[part]
    match = nearest(local[-2], [key for key in tree if key != local[-2]])
    return f"; did you mean the id `{match}`?" if match else ""


def _descend(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    section: type[BaseModel] | None = model
    keys = iter(path)
    for key in keys:
        if section is None or key not in section.model_fields:
            return None
        section, is_mapping = section_of(section.model_fields[key].annotation)
        if is_mapping:
            next(keys, None)
    return section


def section_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section an annotation holds, and whether it is a mapping of such sections."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        for choice in typing.get_args(annotation):
            found = section_of(choice)
            if found[0] is not None:
                return found
    if origin is dict:
        return section_of(typing.get_args(annotation)[1])[0], True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    return None, False
