"""Scores against worked examples and against exhaustive matching."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.judge.grid.language import read_statement
from vagen.judge.grid.matching import (
    _best_credit,
    merge_unique,
    score_frozenlake,
    score_sokoban,
)
from vagen.judge.rules.frozenlake import FrozenLakeRules
from vagen.judge.rules.sokoban import SokobanRules

LAKE = {
    "env_name": "FrozenLake",
    "size": [4, 4],
    "player": [1, 1],
    "target": [3, 2],
    "holes": [[0, 1], [1, 0]],
}
ROOM = {
    "env_name": "Sokoban",
    "size": [6, 6],
    "player": [2, 2],
    "boxes": [[3, 2], [1, 1]],
    "targets": [[2, 4], [4, 4]],
    "walls": [[0, 0]],
}


def lake_score(text: str, *, require_holes: bool = False) -> float:
    statement, truth = read_statement(text, "FrozenLake"), FrozenLakeRules().truth(LAKE)
    claims = merge_unique(statement, truth)
    assert claims is not None
    return score_frozenlake(statement, claims, truth, require_holes=require_holes)


def room_score(text: str) -> float:
    statement, truth = read_statement(text, "Sokoban"), SokobanRules().truth(ROOM)
    claims = merge_unique(statement, truth)
    assert claims is not None
    return score_sokoban(statement, claims, truth)


@pytest.mark.parametrize(
    ("text", "optional", "required"),
    [
        ("target is below and right", 1, 0.7),
        ("target is below", 0.5, 0.35),
        ("target is below and left", 0.5, 0.35),
        ("target is above and left", 0, 0),
        # One hole of two: half the recall if holes must be there, precision alone if not.
        (
            "target is below and right . hole is above and same column",
            1,
            0.7 + 0.3 * 2 / 3,
        ),
        (
            "target is below and right . hole is above and same column . hole is same row and left",
            1,
            1,
        ),
        # The second claim fits the other hole on one axis only (not left, but same row).
        (
            "target is below and right . hole is above and same column . hole is same row and "
            "right",
            0.7 + 0.3 * 3 / 4,
            0.7 + 0.3 * 3 / 4,
        ),
        # A hole said twice is said once too often.
        (
            "target is below and right . hole is above and same column . hole is above and same "
            "column . hole is same row and left",
            0.7 + 0.3 * 2 / 3,
            0.7 + 0.3 * 4 / 5,
        ),
    ],
)
def test_frozenlake_worked_examples(text: str, optional: float, required: float) -> None:
    assert lake_score(text) == pytest.approx(optional)
    assert lake_score(text, require_holes=True) == pytest.approx(required)


def test_claiming_every_place_does_not_pay() -> None:
    everywhere = " . ".join(
        f"hole is {row} and {column}"
        for row in ("above", "same row", "below")
        for column in ("left", "same column", "right")
    )
    honest = lake_score("target is below and right")
    assert lake_score(f"target is below and right . {everywhere}") < 0.8 < honest


def test_grid_that_leaves_out_a_hole_loses_recall() -> None:
    assert lake_score("_O__\nOP__\n____\n__G_") == 1
    assert lake_score("_O__\n_P__\n____\n__G_") == pytest.approx(0.7 + 0.3 * 2 / 3)


def test_dict_may_leave_holes_out_but_not_list_some() -> None:
    assert lake_score("{'player': (1, 1), 'target': (3, 2)}") == 1
    some = "{'player': (1, 1), 'target': (3, 2), 'holes': [(0, 1)]}"
    assert lake_score(some) == pytest.approx(0.7 + 0.3 * 2 / 3)


def test_wrong_player_makes_positions_wrong_on_its_axis() -> None:
    assert lake_score("{'player': (1, 0), 'target': (3, 2)}") == 0.5
    assert lake_score("{'player': (0, 0), 'target': (3, 2)}") == 0


def test_position_and_relation_must_both_hold() -> None:
    assert lake_score("target is below and right at (3, 2)") == 1
    assert lake_score("target is below and right at (2, 3)") == 0
    assert lake_score("target is above and right at (3, 2)") == 0.5


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (
            "box is below and same column . box is above and left . "
            "target is same row and right . target is below and right",
            1,
        ),
        # One box of two: F1 2/3; no half credit for a pair that is half right.
        ("box is below and same column . targets are same row and right", 0.5 * 2 / 3 + 0.5 / 2),
        ("box is below and left . target is same row and left", 0),
    ],
)
def test_sokoban_worked_examples(text: str, score: float) -> None:
    assert room_score(text) == pytest.approx(score)


def test_a_distance_that_is_wrong_makes_its_axis_wrong() -> None:
    assert lake_score("target is 2 rows below and 1 column right") == 1
    assert lake_score("target is 2 rows below and 3 columns right") == 0.5
    assert lake_score("target is 9 rows below and 3 columns right") == 0


def test_a_player_that_is_elsewhere_makes_relations_wrong_too() -> None:
    assert lake_score("I am at (1, 1). target is below and right") == 1
    assert lake_score("I am at (0, 1). target is below and right") == 0.5


def test_two_half_claims_about_the_only_target_are_one_claim() -> None:
    assert lake_score("target is below . target is right") == 1


def test_two_places_of_the_only_target_contradict() -> None:
    statement = read_statement("target is below . target is above", "FrozenLake")
    assert merge_unique(statement, FrozenLakeRules().truth(LAKE)) is None
    two = "{'player': (1, 1), 'target': [(3, 2), (0, 0)]}"
    assert merge_unique(read_statement(two, "FrozenLake"), FrozenLakeRules().truth(LAKE)) is None


@given(
    st.integers(0, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=columns, max_size=columns),
            max_size=4,
        )
    )
)
def test_matching_is_the_best_of_all(credits: list[list[float]]) -> None:
    columns = len(credits[0]) if credits else 0
    if len(credits) <= columns:
        choices = permutations(range(columns), len(credits))
        best = max(sum(credits[r][c] for r, c in enumerate(choice)) for choice in choices)
    else:
        choices = permutations(range(len(credits)), columns)
        best = max(sum(credits[r][c] for c, r in enumerate(choice)) for choice in choices)
    assert _best_credit(credits) == best
