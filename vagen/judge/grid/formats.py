"""Structured (dict) and symbolic (grid) statements: positions of objects."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from vagen.judge.grid.lexicon import BOX, HOLE, OBJECT_CLASSES, OTHER, PLAYER, TARGET
from vagen.judge.grid.statement import Claim, Form, Statement

SYMBOLS: dict[str, Mapping[str, tuple[str, ...]]] = {
    "FrozenLake": {
        "P": (PLAYER,),
        "_": (),
        "O": (HOLE,),
        "G": (TARGET,),
        "X": (PLAYER, HOLE),
        "√": (PLAYER, TARGET),
    },
    "Sokoban": {
        "P": (PLAYER,),
        "_": (),
        "#": (),
        "O": (TARGET,),
        "X": (BOX,),
        "√": (BOX, TARGET),
        "S": (PLAYER, TARGET),
    },
}
"""By environment: what stands on a cell drawn with a symbol."""

_FENCE = re.compile(r"\A```[a-z]*\s*|\s*```\Z")
_BETWEEN_CELLS = str.maketrans("", "", " \t\r,|'\"[]")
_LINE_BREAK = re.compile(r"\n|\\n")
_TRAILING_COMMA = re.compile(r",\s*([\]}])")
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")
_BRACKETS = str.maketrans("()'", '[]"')


def read_symbolic(text: str, env_name: str) -> Statement | None:
    """Reads a grid of the environment's symbols; None if the text is no such grid."""
    symbols = SYMBOLS[env_name]
    body = _FENCE.sub("", text.strip()).replace("✓", "√").replace("✔", "√")
    rows = [line.translate(_BETWEEN_CELLS) for line in _LINE_BREAK.split(body)]
    rows = [row for row in rows if row]
    if sum(map(len, rows)) < 2 or not all(cell in symbols for row in rows for cell in row):
        return None
    found: dict[str, list[Claim]] = {}
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            for object_class in symbols[cell]:
                found.setdefault(object_class, []).append(Claim(row=r, column=c))
    return _statement(Form.SYMBOLIC, found, frozenset(found))


def read_structured(text: str, base: int) -> Statement | str | None:
    """Reads a dict of objects, as Python or JSON writes it.

    Nothing is evaluated: brackets and quotes are turned into JSON's and read as JSON.

    Args:
        text: A dict from object to position such as `{'player': (1, 2), 'holes': [(0, 1)]}`, or
            from object to relation such as `{'target': 'above, left'}`, or a list of
            `{"object": "hole", "vertical": "above", "horizontal": "left"}`.
        base: What rows and columns count from.

    Returns:
        Positions as a statement, relations as sentences that say the same, None if the text is not
        in brackets; what is malformed there claims nothing.
    """
    body = _FENCE.sub("", text.strip())
    if not (body[:1] + body[-1:] in ("{}", "[]") and _HAS_KEY.search(body)):
        return None
    body = _BARE_KEY.sub(r'\1"\2":', _TRAILING_COMMA.sub(r"\1", body.translate(_BRACKETS)))
    try:
        content = json.loads(body, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return Statement(Form.STRUCTURED, understood=False)
    sentences = _sentences(content)
    if sentences is not None:
        return sentences
    if not isinstance(content, _Pairs):
        return Statement(Form.STRUCTURED, understood=False)
    return _read_positions(content, base)


def _read_positions(pairs: "_Pairs", base: int) -> Statement:
    found: dict[str, list[Claim]] = {}
    named: set[str] = set()
    understood = True
    for key, value in pairs:
        object_class = _class_of_key(key)
        places = _positions(value, base)
        understood &= object_class is not None and places is not None
        if object_class is None or object_class == OTHER:
            continue
        named.add(object_class)
        found.setdefault(object_class, []).extend(places or [])
    statement = _statement(Form.STRUCTURED, found, frozenset(named))
    return replace(statement, understood=understood)


class _Pairs(list[tuple[str, object]]):
    """A JSON object as its pairs, so that a key written twice is not lost."""


def _sentences(content: object) -> str | None:
    """Relations as sentences; None if the content is not made of relations throughout."""
    lines: list[str] = []
    if isinstance(content, _Pairs):
        for key, value in content:
            values = value if isinstance(value, list) and not isinstance(value, _Pairs) else [value]
            relations = [_relation(item) for item in values]
            if not relations or None in relations:
                return None
            lines += [f"{key} is {relation}" for relation in relations]
    elif isinstance(content, list):
        for item in content:
            if not isinstance(item, _Pairs) or not item or item[0][0].lower() not in _OBJECT_KEYS:
                return None
            relation = _relation(_Pairs(item[1:]))
            name = item[0][1]
            if relation is None or not isinstance(name, str):
                return None
            lines.append(f"{name} is {relation}")
    return "\n".join(lines) or None


def _relation(value: object) -> str | None:
    """`"above, left"` or `{"vertical": "above", "horizontal": "left"}` in words."""
    if isinstance(value, str):
        return value
    if not isinstance(value, _Pairs) or not value:
        return None
    words = []
    for key, word in value:
        axis = _AXES.get(key.lower())
        if axis is None or not isinstance(word, str):
            return None
        words.append(f"same {axis}" if word.lower() == "same" else word)
    return " and ".join(words)


_OBJECT_KEYS = ("object", "name", "type")
_AXES = {
    "vertical": "row",
    "vertical_relation": "row",
    "row": "row",
    "horizontal": "column",
    "horizontal_relation": "column",
    "column": "column",
}
_HAS_KEY = re.compile(r"[\w'\"]\s*:")


def _class_of_key(key: str) -> str | None:
    """The class that a key names; None if it names none, or says more than a name."""
    words = re.findall(r"[a-z]+|[^a-z\s_]", key.lower())
    classes = [OBJECT_CLASSES[word] for word in words if word in OBJECT_CLASSES]
    others = [word for word in words if word not in OBJECT_CLASSES and word not in _KEY_WORDS]
    return None if others or len(set(classes)) != 1 else classes[0]


_KEY_WORDS = frozenset(
    ("position", "positions", "pos", "location", "locations", "loc", "coordinate", "coordinates",
     "cell", "cells", "list", "at", "the", "my", "s", "-", ".")
)  # fmt: skip


def _positions(value: object, base: int) -> list[Claim] | None:
    """`[r, c]`, `[[r, c], ...]` or `{"row": r, "column": c}`; None if it is nothing of these."""
    if isinstance(value, _Pairs):
        cell = {str(key).lower(): number for key, number in value}
        row, column = (
            cell.get("row", cell.get("y")),
            cell.get("column", cell.get("col", cell.get("x"))),
        )
        value = [row, column]
    if not isinstance(value, list):
        return None
    cell = _cell(value, base)
    if cell is not None:
        return [cell]
    cells = [_cell(item, base) for item in value]
    return None if None in cells else [cell for cell in cells if cell is not None]


def _cell(value: object, base: int) -> Claim | None:
    match value:
        case [int(row), int(column)] if not isinstance(row, bool) and not isinstance(column, bool):
            return Claim(row=row - base, column=column - base)
    return None


def _statement(form: Form, found: dict[str, list[Claim]], named: frozenset[str]) -> Statement:
    """A statement of positions; without the player's they say nothing about where it stands."""
    players = found.pop(PLAYER, [])
    return Statement(
        form=form,
        claims={name: tuple(claims) for name, claims in found.items() if claims} if players else {},
        named=named,
        player=players[0] if players else None,
        contradiction=len(set(players)) > 1,
    )
