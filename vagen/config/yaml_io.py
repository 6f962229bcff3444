"""YAML in and out: line numbers for messages, duplicate keys refused, `1e-6` is a number."""

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from vagen.config.base import ConfigError

MAX_VALUES = 100_000
"""Values of a configuration, those that aliases repeat counted each time."""

_FLOAT = re.compile(
    r"^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9][0-9_]*|[0-9][0-9_]*\.?)(?:[eE][-+]?[0-9]+)?$"
    r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` with YAML 1.2 floats: version 1.1 reads `1e-6` as a string."""


# Resolvers are tried in order, so integers (registered first) stay integers.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping and where each of its keys stands."""

    tree: dict[str, Any]
    places: dict[tuple[str, ...], str]
    """Key path to `file:line`."""


def parse_value(text: str) -> Any:
    """Reads the value of an override: `0.95`, `null`, `[1, 2]`, `text`.

    Raises:
        ConfigError: If the text is not YAML, or its aliases make it very large.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, text[:40])
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is not a YAML value ({_problem(error)})") from None
    finally:
        loader.dispose()


def read_yaml(path: Path) -> Document:
    """Reads a file; see `parse_yaml`.

    Raises:
        ConfigError: If the file cannot be read, and as for `parse_yaml`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Document:
    """Reads a text whose top level is a mapping.

    Args:
        text: YAML.
        name: What messages call it.

    Raises:
        ConfigError: If it is not YAML, holds no mapping, has a key that is not text, has a key
            twice, or if its aliases make it very large.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        places: dict[tuple[str, ...], str] = {}
        if node is None:
            return Document(tree={}, places=places)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{name} must hold `key: value` lines, not a list or a single value")
        _check_size(node, name)
        _locate(node, (), name, places)
        tree = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {_problem(error)}") from None
    finally:
        loader.dispose()
    return Document(tree=tree, places=places)


def dump_yaml(config: BaseModel) -> str:
    """Writes a configuration as YAML with every value, in the schema's order."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _check_size(node: yaml.Node, name: str) -> None:
    """Rejects YAML whose aliases expand a short text to an enormous tree.

    Raises:
        ConfigError: It has more than `MAX_VALUES` values when all aliases are written out.
    """
    sizes: dict[int, float] = {}

    def size(node: yaml.Node) -> float:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = float("inf")  # what holds itself has no end
            inner = chain.from_iterable(
                item if isinstance(item, tuple) else (item,) for item in node.value
            )
            sizes[id(node)] = 1 + sum(size(item) for item in inner)
        return sizes[id(node)]

    if size(node) > MAX_VALUES:
        raise ConfigError(
            f"{name} holds more than {MAX_VALUES:,} values once its aliases (`*name`) are "
            "written out: use fewer of them"
        )


def _locate(
    node: yaml.Node, prefix: tuple[str, ...], name: str, places: dict[tuple[str, ...], str]
) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        place = f"{name}:{key.start_mark.line + 1}"
        if key.tag == "tag:yaml.org,2002:merge":
            raise ConfigError(f"{place}: merge keys (`<<`) are not supported")
        if key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{place}: the key `{getattr(key, 'value', '?')}` is not text")
        here = (*prefix, key.value)
        if here in places:
            raise ConfigError(f"{place}: `{'.'.join(here)}` stands twice (first at {places[here]})")
        places[here] = place
        _locate(value, here, name, places)


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error)
