"""Nested mappings laid over each other, remembering which one set each key."""

from typing import Any

from vagen.config.base import ConfigError
from vagen.config.errors import KeyPath
from vagen.config.yaml_io import Document, parse_value


class Layers:
    """A tree of values; what is laid later wins."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.tree = defaults
        self._places: dict[KeyPath, str] = {}

    def lay(self, layer: Document) -> None:
        """Lays a document on top; a section left empty in YAML changes nothing."""
        self._places.update(layer.places)
        self._merge(self.tree, layer.tree, (), layer.places)

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


def parse_override(text: str) -> Document:
    """`a.b=1` as a tree of one leaf.

    Raises:
        ConfigError: If it is not `dotted.key=value`.
    """
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if (sign := key.strip()[:1]) in ("+", "~"):
        raise ConfigError(
            f"`{text}` begins with Hydra's {sign}: write `{key.strip().lstrip('+~')}=value`, for "
            "options of this package as they are; what verl alone knows goes below "
            "`infra.verl.extra`, as `infra.verl.extra.KEY=value`"
        )
    if not equals or not all(path):
        raise ConfigError(f"`{text}` is not an override; write `dotted.key=value`")
    try:
        tree: Any = parse_value(value)
    except ConfigError as error:
        raise ConfigError(f"override `{text}`: {error}") from None
    for part in reversed(path):
        tree = {part: tree}
    return Document(tree=tree, places=dict.fromkeys([path, *_leaves(tree)], f"override `{text}`"))


def from_one_place(tree: dict[str, Any], place: str) -> Document:
    """A document all of whose values were set in `place`."""
    return Document(tree=tree, places=dict.fromkeys(_leaves(tree), place))


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _leaves(tree: dict[str, Any], prefix: KeyPath = ()) -> list[KeyPath]:
    paths: list[KeyPath] = []
    for key, value in tree.items():
        here = (*prefix, key)
        paths += _leaves(value, here) if isinstance(value, dict) and value else [here]
    return paths
