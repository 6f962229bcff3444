"""Claims about grid games: positions relative to the player, or rows and columns."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from vagen.envs.claims import Claim, best_matching, load_json

Position = list[int]
"""Row and column: rows count downwards and columns rightwards, both from 0."""

VERTICAL = {-1: "above", 0: "same row", 1: "below"}
HORIZONTAL = {-1: "left", 0: "same column", 1: "right"}
_CACHED = 4096


class _OnGrid(Claim):
    @classmethod
    def most(cls, count: int) -> int:
        """Number of objects, plus one for a miscount if there are several."""
        return count + (count > 1)


class Place(_OnGrid):
    """Position of an object relative to the player; phrases of a game name the object."""

    hint = (
        "where it is as seen from the player, so that the box is right where the player is left of "
        "it; unstated where the text says nothing of up and down, or of left and right"
    )

    vertical: Literal["above", "same row", "below", "unstated"]
    horizontal: Literal["left", "same column", "right", "unstated"]

    def agreement(self, true: "Place") -> float:
        """Share of the two axes that is correct."""
        return ((self.vertical == true.vertical) + (self.horizontal == true.horizontal)) / 2

    @classmethod
    def seen(cls, player: Position, thing: Position) -> "Place":
        """The true claim about an object there."""
        rows, columns = thing[0] - player[0], thing[1] - player[1]
        return _place(cls, (rows > 0) - (rows < 0), (columns > 0) - (columns < 0))


class Spot(_OnGrid):
    """Row and column of an object."""

    hint = "rows count downwards and columns rightwards, both from 0"

    row: int
    column: int

    def agreement(self, true: "Spot") -> float:
        """Share of the two axes that is correct."""
        return ((self.row == true.row) + (self.column == true.column)) / 2


class Player(Spot):
    """Row and column of the player, required in structured texts."""

    phrase = "player is at row {row} and column {column}"


def spots_at(positions: Mapping[str, Any], kinds: Mapping[str, type[Spot]]) -> list[Claim]:
    """Claims of a structured text.

    Args:
        positions: A position, or a list of them for several objects, by key.
        kinds: Claim classes by key, in order; missing keys are skipped.

    Raises:
        TypeError, ValueError: A value has another format.
    """
    return [
        _spot(kind, *position)
        for key, kind in kinds.items()
        if key in positions
        for position in (positions[key] if kind.several else [positions[key]])
    ]


def read_positions(text: str, kinds: Mapping[str, type[Spot]]) -> list[Claim] | None:
    """Parses a JSON object with exactly the keys of `kinds`; None for other texts."""
    try:
        given = load_json(text)
        return spots_at(given, kinds) if given.keys() == kinds.keys() else None
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def read_drawing(text: str, kinds: Mapping[str, Sequence[type[Spot]]]) -> list[Claim] | None:
    """Parses a grid of symbols, a row per line; None for other texts.

    Args:
        text: Any text.
        kinds: Claim classes by symbol.
    """
    rows = [line.replace(" ", "") for line in text.strip().split("\n")]
    if len(set(map(len, rows))) > 1 or not set().union(*rows) <= kinds.keys():
        return None
    return [
        _spot(kind, row, column)
        for row, line in enumerate(rows)
        for column, symbol in enumerate(line)
        for kind in kinds[symbol]
    ]


def score_places(
    said: Sequence[Claim],
    true: Sequence[Claim],
    required: Sequence[type[Claim]],
    *,
    halves: bool = True,
) -> float:
    """Mean F1 over kinds of objects, weighted by claims; skips kinds that are absent in both.

    Args:
        said: Claims without contradictions.
        true: Relative positions, or rows and columns with the player's.
        required: Kinds that a text must locate for a score above 0.
        halves: Whether one correct axis of two counts half instead of 0.
    """
    if isinstance(true[0], Player):
        said = _from_player(said, true[0])
    things: dict[type[Claim], tuple[list[Claim], list[Claim]]] = {}
    for side, claims in enumerate((said, true)):
        for claim in claims:
            things.setdefault(type(claim), ([], []))[side].append(claim)
    things.pop(Player, None)
    score = total = 0.0
    for kind, (stated, facts) in things.items():
        if kind in required and not stated:
            return 0.0
        credits = [[claim.agreement(fact) for fact in facts] for claim in stated]
        if not halves:
            credits = [[credit // 1 for credit in row] for row in credits]
        score += kind.weight * 2 * best_matching(credits) / (len(stated) + len(facts))
        total += kind.weight
    return score / total


def _from_player(said: Sequence[Claim], player: Player) -> list[Claim]:
    """Claims relative to the player, made wrong on axes where the player's own position is wrong.

    Otherwise an object at a wrong relative position could count as correct.
    """
    stated = next((claim for claim in said if type(claim) is Player), None)
    wrong = {
        axis: -1
        for axis in ("row", "column")
        if getattr(stated, axis, None) != getattr(player, axis)
    }
    return [claim.model_copy(update=wrong) for claim in said] if wrong else list(said)


@lru_cache(_CACHED)
def _place(kind: type[Place], rows: int, columns: int) -> Place:
    # pyrefly: ignore[bad-argument-type]
    return kind(vertical=VERTICAL[rows], horizontal=HORIZONTAL[columns])


@lru_cache(_CACHED)
def _spot(kind: type[Spot], row: int, column: int) -> Spot:
    return kind(row=row, column=column)
