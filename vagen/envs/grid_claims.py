"""What state texts of grid games claim: places from the player, or rows and columns."""

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
        """As many as there are; of several one more, which may be a miscount."""
        return count + (count > 1)


class Place(_OnGrid):
    """Where a thing is as seen from the player; a game's own phrases name the thing."""

    hint = (
        "where it is as seen from the player, so that the box is right where the player is left of "
        "it; unstated where the text says nothing of up and down, or of left and right"
    )

    vertical: Literal["above", "same row", "below", "unstated"]
    horizontal: Literal["left", "same column", "right", "unstated"]

    def agreement(self, true: "Place") -> float:
        """The part of the two axes that is right."""
        return ((self.vertical == true.vertical) + (self.horizontal == true.horizontal)) / 2

    @classmethod
    def seen(cls, player: Position, thing: Position) -> "Place":
        """The claim that is true of a thing there."""
        rows, columns = thing[0] - player[0], thing[1] - player[1]
        return _place(cls, (rows > 0) - (rows < 0), (columns > 0) - (columns < 0))


class Spot(_OnGrid):
    """Row and column of a thing."""

    hint = "rows count downwards and columns rightwards, both from 0"

    row: int
    column: int

    def agreement(self, true: "Spot") -> float:
        """The part of the two axes that is right."""
        return ((self.row == true.row) + (self.column == true.column)) / 2


class Player(Spot):
    """Row and column of the player, without which those of other things say nothing."""

    phrase = "player is at row {row} and column {column}"


def spots_at(positions: Mapping[str, Any], kinds: Mapping[str, type[Spot]]) -> list[Claim]:
    """The claims of a structured text.

    Args:
        positions: A position, or a list of them where there may be several, by key.
        kinds: What a key's positions are, in order; keys that `positions` lacks are left out.

    Raises:
        TypeError, ValueError: A value is not of this form.
    """
    return [
        _spot(kind, *position)
        for key, kind in kinds.items()
        if key in positions
        for position in (positions[key] if kind.several else [positions[key]])
    ]


def read_positions(text: str, kinds: Mapping[str, type[Spot]]) -> list[Claim] | None:
    """The claims of a JSON object with exactly the keys of `kinds`; None if the text is none."""
    try:
        given = load_json(text)
        return spots_at(given, kinds) if given.keys() == kinds.keys() else None
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def read_drawing(text: str, kinds: Mapping[str, Sequence[type[Spot]]]) -> list[Claim] | None:
    """The claims of a grid of symbols, a row per line; None if the text is none.

    Args:
        text: Any text.
        kinds: What stands on a cell, by its symbol.
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
    """Mean F1 of the things, by weight of their claims; what neither text nor truth has drops out.

    Args:
        said: Without contradictions.
        true: Places, or rows and columns with the player's.
        required: Things that a text has to place to be worth anything.
        halves: Whether one right axis of two counts half; else it is wrong.
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
    """The claims, off the grid on each axis on which the player is said to be elsewhere.

    Else a thing would be right that is not where it was seen from the player.
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
