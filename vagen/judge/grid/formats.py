"""Structured (dict) and symbolic (grid) statements: positions of objects."""

import json
import re
from collections.abc import Mapping

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


def read_structured(text: str, base: int) -> Statement | None:
    """Reads a dict from object names to grid positions, as Python or JSON writes it.

    Nothing is evaluated: brackets and quotes are turned into JSON's and read as JSON.

    Args:
        text: A dict text such as `{'player': (1, 2), 'target': (3, 0), 'holes': [(0, 1)]}`.
        base: What rows and columns count from.

    Returns:
        None if the text is not in braces; what is malformed there claims nothing.
    """
    body = _FENCE.sub("", text.strip())
    if not (body.startswith("{") and body.endswith("}")):
        return None
    body = _BARE_KEY.sub(r'\1"\2":', _TRAILING_COMMA.sub(r"\1", body.translate(_BRACKETS)))
    try:
        pairs = json.loads(body, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return Statement(Form.STRUCTURED)
    found: dict[str, list[Claim]] = {}
    named: set[str] = set()
    for key, value in pairs:
        object_class = _class_of_key(key)
        if object_class is None:
            continue
        named.add(object_class)
        found.setdefault(object_class, []).extend(_positions(value, base))
    return _statement(Form.STRUCTURED, found, frozenset(named))


class _Pairs(list[tuple[str, object]]):
    """A JSON object as its pairs, so that a key written twice is not lost."""


def _class_of_key(key: str) -> str | None:
    for word in re.findall(r"[a-z]+", key.lower()):
        object_class = OBJECT_CLASSES.get(word)
        if object_class is not None and object_class != OTHER:
            return object_class
    return None


def _positions(value: object, base: int) -> list[Claim]:
    """`[r, c]`, `[[r, c], ...]` or `{"row": r, "column": c}`; anything else claims nothing."""
    if isinstance(value, _Pairs):
        cell = {str(key).lower(): number for key, number in value}
        row, column = (
            cell.get("row", cell.get("y")),
            cell.get("column", cell.get("col", cell.get("x"))),
        )
        value = [row, column]
    if not isinstance(value, list):
        return []
    cell = _cell(value, base)
    if cell is not None:
        return [cell]
    return [cell for item in value if (cell := _cell(item, base)) is not None]


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
        claims={name: tuple(claims) for name, claims in found.items()} if players else {},
        named=named,
        player=players[0] if players else None,
        contradiction=len(set(players)) > 1,
    )
