"""Scores of a statement's claims against the true state.

Relations are judged as (vertical, horizontal) pairs, positions as (row, column) pairs; a position
only counts on an axis on which the player's stated place, if any, is right too - else the object's
place relative to the player would be wrong.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vagen.judge.grid.lexicon import BOX, HOLE, TARGET
from vagen.judge.grid.statement import Claim, Form, Statement

FROZENLAKE_WEIGHTS = {TARGET: 0.7, HOLE: 0.3}
SOKOBAN_WEIGHTS = {TARGET: 0.5, BOX: 0.5}


class Truth(NamedTuple):
    """The true places of what a judge looks at, as full claims."""

    player: tuple[int, int]
    objects: dict[str, tuple[Claim, ...]]


def make_truth(player: Sequence[int], places: Mapping[str, Sequence[Sequence[int]]]) -> Truth:
    """The places that a state description should claim.

    Args:
        player: Row and column.
        places: Rows and columns of the objects, by class.
    """
    player_row, player_column = player
    objects = {
        name: tuple(
            Claim(
                (row > player_row) - (row < player_row),
                (column > player_column) - (column < player_column),
                row,
                column,
                abs(row - player_row),
                abs(column - player_column),
            )
            for row, column in cells
        )
        for name, cells in places.items()
    }
    return Truth((player_row, player_column), objects)


def merge_unique(statement: Statement, truth: Truth) -> dict[str, tuple[Claim, ...]] | None:
    """Claims by class, those about the only object of its class made one.

    Returns:
        None if claims about one object contradict each other.
    """
    merged = dict(statement.claims)
    for name, claims in statement.claims.items():
        if len(claims) > 1 and len(truth.objects.get(name, ())) == 1:
            whole: Claim | None = claims[0]
            for claim in claims[1:]:
                whole = whole.merged(claim)
                if whole is None:
                    return None
            merged[name] = (whole,)
    return merged


def score_frozenlake(
    statement: Statement,
    claims: dict[str, tuple[Claim, ...]],
    truth: Truth,
    *,
    require_holes: bool,
) -> float:
    """Weighted soft F1 over target (.7) and holes (.3), half credit per axis.

    Claims are matched one to one with true objects so that the sum of credits is largest. A class
    in neither the statement nor the truth drops out and the weights are renormalised. Holes that
    need not be described (`require_holes` False, in sentences) count for precision only if they
    are, and not at all if they are not: naming only the target, rightly, scores 1. A grid shows
    every hole and a dict with holes lists them all, so there missing ones always count.

    Returns:
        Score in [0, 1].
    """
    holes = claims.get(HOLE, ())
    exhaustive = (
        require_holes
        or statement.form is Form.SYMBOLIC
        or (statement.form is Form.STRUCTURED and HOLE in statement.named)
    )
    score = total = 0.0
    for name, weight in FROZENLAKE_WEIGHTS.items():
        stated, true = claims.get(name, ()), truth.objects[name]
        if name == HOLE and not holes and (not exhaustive or not true):
            continue
        credit = _best_credit(_credits(statement, stated, truth, name))
        expected = len(true) if name == TARGET or exhaustive else len(stated)
        score += weight * 2 * credit / (len(stated) + expected)
        total += weight
    return score / total


def score_sokoban(
    statement: Statement, claims: dict[str, tuple[Claim, ...]], truth: Truth
) -> float:
    """Half the F1 over targets plus half the F1 over boxes; a claim is right on both axes or wrong.

    Returns:
        Score in [0, 1].
    """
    score = 0.0
    for name, weight in SOKOBAN_WEIGHTS.items():
        stated, true = claims.get(name, ()), truth.objects[name]
        credits = _credits(statement, stated, truth, name)
        exact = [[float(credit == 1.0) for credit in row] for row in credits]
        size = len(stated) + len(true)
        score += weight * 2 * _best_credit(exact) / size if size else weight
    return score


def _credits(
    statement: Statement, stated: Sequence[Claim], truth: Truth, name: str
) -> list[list[float]]:
    """Credit in {0, .5, 1} of each claim (row) for each true object (column)."""
    player = statement.player
    row_known = player is None or player.row is None or player.row == truth.player[0]
    column_known = player is None or player.column is None or player.column == truth.player[1]
    return [
        [
            0.5 * (row_known and _axis_is_right(claim, object_, 0))
            + 0.5 * (column_known and _axis_is_right(claim, object_, 1))
            for object_ in truth.objects[name]
        ]
        for claim in stated
    ]


def _axis_is_right(claim: Claim, object_: Claim, axis: int) -> bool:
    """Whether something is claimed of an axis, and nothing that is claimed of it is wrong."""
    direction, place, distance = claim[axis::2]
    if direction is None and place is None:
        return False
    return (
        (direction is None or direction == object_[axis])
        and (place is None or place == object_[axis + 2])
        and (distance is None or distance == object_[axis + 4])
    )


def _best_credit(credits: list[list[float]]) -> float:
    """Largest sum of credits of a one-to-one matching of rows to columns."""
    if not credits or not credits[0]:
        return 0.0
    if len(credits) == 1:
        return max(credits[0])
    if len(credits[0]) == 1:
        return max(row[0] for row in credits)
    matrix = np.array(credits)
    from scipy.optimize import linear_sum_assignment  # slow to load, for every step

    return float(matrix[linear_sum_assignment(matrix, maximize=True)].sum())
