"""Sentences, dicts and grids are read as what they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.judge.grid.language import read_statement
from vagen.judge.grid.lexicon import LEXICON
from vagen.judge.grid.statement import Claim, Form

A, B, L, R = -1, 1, -1, 1
"""Above, below, left, right."""

SENTENCES = {
    "target is below and right . hole is above and same column": {
        "target": [(B, R)],
        "hole": [(A, 0)],
    },
    "hole is same row and left": {"hole": [(0, L)]},
    "target is same row and same column": {"target": [(0, 0)]},
    "The GOAL is to the Right, South.": {"target": [(B, R)]},
    "Target: below, right; holes: above left, below right": {
        "target": [(B, R)],
        "hole": [(A, L), (B, R)],
    },
    "target right up hole left": {"target": [(A, R)], "hole": [(None, L)]},
    "target is below and right hole is above and left": {"target": [(B, R)], "hole": [(A, L)]},
    "The target lies north-east of me": {"target": [(A, R)]},
    "the flag is to the southwest": {"target": [(B, L)]},
    "The goal is to the right of you and the hole is directly above you.": {
        "target": [(None, R)],
        "hole": [(A, 0)],
    },
    "the target is right below the player": {"target": [(B, 0)]},
    "I am left of the box and above the target": {"box": [(None, R)], "target": [(B, None)]},
    "you are to the left of the target and below it": {"target": [(A, R)]},
    "the box is left of me and above the target": {"box": [(None, L)]},
    "the box is left of the target": {},
    "to the left there is a hole and below is the target": {
        "hole": [(None, L)],
        "target": [(B, None)],
    },
    "To my left is the target, above me a hole.": {"target": [(None, L)], "hole": [(A, None)]},
    "below and left of you is the target": {"target": [(B, L)]},
    "the target is above the player hole is left": {"target": [(A, None)], "hole": [(None, L)]},
    "there is a hole to the left and a target below": {
        "hole": [(None, L)],
        "target": [(B, None)],
    },
    "a tree is left and the target is below": {"target": [(B, None)]},
    "the target and the hole are both above": {"target": [(A, None)], "hole": [(A, None)]},
    "one hole is above and one below": {"hole": [(A, None), (B, None)]},
    "There are two holes: one above, one below and left": {"hole": [(A, None), (B, L)]},
    "two boxes are above; the targets are left and right": {
        "box": [(A, None), (A, None)],
        "target": [(None, L), (None, R)],
    },
    "The target is below the player. It is also on the right.": {"target": [(B, R)]},
    "the target is not left but right": {"target": [(None, R)]},
    "the target isn't left, not right": {"target": [(None, 0)]},
    "target is neither above nor below and is left": {"target": [(0, L)]},
    "the target is no longer left, the hole is above": {"hole": [(A, None)]},
    "target does not lie above": {},
    "there are no holes left. target is here": {"target": [(0, 0)]},
    "I move right, then the target is below and left": {"target": [(B, L)]},
    "after pushing the box right, the box is above": {"box": [(A, None)]},
    "the target is two tiles below and 3 columns to the right": {"target": [(B, R)]},
    "the target is in the same row as the player, to the left": {"target": [(0, L)]},
    "The target is horizontally aligned with the player, on the right": {"target": [(0, R)]},
    "The target is to your left and above you.": {"target": [(A, L)]},
    "To the player's left is the box": {"box": [(None, L)]},
    "player is on the target": {"target": [(0, 0)]},
    "the box is on the target. target is below and left": {"box": [(B, L)], "target": [(B, L)]},
    "I see the target in the bottom right corner": {},
    "nothing of interest": {},
}


@pytest.mark.parametrize("text", SENTENCES)
def test_sentence_is_read_as_relations(text: str) -> None:
    statement = read_statement(text, "Sokoban")
    assert statement.form is Form.LANGUAGE
    assert not statement.contradiction
    found = {name: [claim[:2] for claim in claims] for name, claims in statement.claims.items()}
    assert found == SENTENCES[text]


UNDERSTOOD = """target is 2 rows below and 1 column to the right
the goal is 2 rows down, 1 column right
1. target is below and right
**target is below and right**
There is a hole to the north and a hole to the west. The goal is south and east of me.
To the right and below, there is a target
the target is not left but right, and below
The target lies to the south, neither east nor west
I'm at (1,1) and the goal is at (3,2).
My position: row 1, column 1. Target: row 3, column 2.
The red ring is to the right of the player, on the same row
{"target": "below and right"}
[{"object": "target", "vertical": "below", "horizontal": "right"}]""".splitlines()
NOT_UNDERSTOOD = """target is below and right, and it is not
it is false that target is below and right
target is not above and left
target is not north-west
not not below. target is right
is the target below and right
does the target lie below and right
the target was below and right
target is far from below and right
target is more below than right
target is below and right other than left
the hole, not the target, is below and right
the target is a hole. target is below and right
target is below and right (50%)
target is below and right, 2 cells away
target is at rows 2 and 3
the target is at -1, 3
every target is below and right
t4rget is below and right
"target is below and right"
below is not the target
{"target": "below", "score": 1}
{"player": [1, 1], "not_target": [3, 2]}
{"player": [1, 1], "target": [3, 2, 1]}""".splitlines()


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_every_word_of_a_description_is_used(text: str) -> None:
    statement = read_statement(text, "FrozenLake")
    assert statement.understood and not statement.contradiction
    assert statement.claims["target"]


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
def test_what_could_take_a_claim_back_is_not_understood(text: str) -> None:
    assert not read_statement(text, "FrozenLake").understood


@pytest.mark.parametrize(
    "text",
    [
        "target is below. target is not below",
        "there are no targets. target is below",
        "{'player': (0, 0), 'player': (1, 1), 'target': (3, 2)}",
        "the target is left and right",
        "target is above and below",
        "target is same row and above",
        "The target is above. It is below.",
        "target is left and not left",
        "the player is at (0, 1). the player is at (1, 1)",
    ],
)
def test_contradiction_about_one_object_is_seen(text: str) -> None:
    assert read_statement(text, "FrozenLake").contradiction


@pytest.mark.parametrize(
    ("text", "base", "place"),
    [
        ("the target is at row 2, column 3", 0, (2, 3)),
        ("the target is at row 2, column 3", 1, (1, 2)),
        ("target at (2, 3)", 0, (2, 3)),
        ("Target: [2,3]", 1, (1, 2)),
        ("target at row 2 column 3", 0, (2, 3)),
        ("the target is in the third row and the 2nd column", 0, (2, 1)),
        ("the target is in column 3", 0, (None, 3)),
        ("the target is at column index three, row number two", 0, (2, 3)),
    ],
)
def test_coordinates_in_sentences(text: str, base: int, place: tuple) -> None:
    statement = read_statement(text, "FrozenLake", coordinate_base=base)
    assert statement.claims == {"target": (Claim(row=place[0], column=place[1]),)}


def test_position_of_the_player_in_a_sentence() -> None:
    statement = read_statement("I am at row 1, column 0. target is at (2, 3)", "FrozenLake")
    assert statement.player == Claim(row=1, column=0)
    assert statement.claims["target"] == (Claim(row=2, column=3),)


@pytest.mark.parametrize(
    "text",
    [
        "{'player': (1, 2), 'target': (3, 0), 'holes': [(0, 1), (1, 1)]}",
        '{"player": [1, 2], "target": [3, 0], "holes": [[0, 1], [1, 1]]}',
        "{player: (1,2), target: (3,0), holes: [(0,1),(1,1),],}",
        '```json\n{"player": {"row": 1, "col": 2}, "goal": [[3, 0]], "hole": [[0,1],[1,1]]}\n```',
        "{'player_position': (1,2), 'target_position': (3,0), 'hole_positions': ((0,1),(1,1))}",
    ],
)
def test_dicts_of_any_spelling(text: str) -> None:
    statement = read_statement(text, "FrozenLake")
    assert statement.form is Form.STRUCTURED
    assert statement.player == Claim(row=1, column=2)
    assert statement.claims == {
        "target": (Claim(row=3, column=0),),
        "hole": (Claim(row=0, column=1), Claim(row=1, column=1)),
    }


def test_dict_counted_from_one() -> None:
    statement = read_statement(
        "{'player': (1, 1), 'target': (2, 3)}", "FrozenLake", coordinate_base=1
    )
    assert statement.player == Claim(row=0, column=0)
    assert statement.claims["target"] == (Claim(row=1, column=2),)


def test_repeated_key_is_not_lost() -> None:
    statement = read_statement("{'player':(0,0),'target':(1,1),'target':(2,2)}", "FrozenLake")
    assert statement.claims["target"] == (Claim(row=1, column=1), Claim(row=2, column=2))


def test_dict_without_player_places_nothing() -> None:
    assert read_statement("{'target': (1, 1)}", "FrozenLake").claims == {}


@pytest.mark.parametrize(
    "text",
    [
        "{'target': __import__('os').system('true')}",
        "{'player': 1, 'target': [1, 2, 3]}",
        "{" * 4000 + "}" * 4000,
        "{'player': (" + "9" * 5000 + ", 1), 'target': (0, 0)}",
        "{'player': (true, false), 'target': (1.5, NaN)}",
        "{}",
    ],
)
def test_malformed_dict_places_nothing(text: str) -> None:
    assert read_statement(text, "FrozenLake").claims == {}


def test_grids() -> None:
    lake = read_statement("P _ O\n_ _ G", "FrozenLake")
    assert lake.form is Form.SYMBOLIC
    assert lake.player == Claim(row=0, column=0)
    assert lake.claims == {"hole": (Claim(row=0, column=2),), "target": (Claim(row=1, column=2),)}
    room = read_statement("```\n##√\n#SX\n```", "Sokoban")
    assert room.player == Claim(row=1, column=1)
    assert room.claims == {
        "box": (Claim(row=0, column=2), Claim(row=1, column=2)),
        "target": (Claim(row=0, column=2), Claim(row=1, column=1)),
    }


def test_player_in_hole_and_on_target() -> None:
    assert read_statement("_X", "FrozenLake").claims == {"hole": (Claim(row=0, column=1),)}
    assert read_statement("_√", "FrozenLake").claims == {"target": (Claim(row=0, column=1),)}


def test_grid_with_two_players_is_a_contradiction() -> None:
    assert read_statement("P _\nG P", "FrozenLake").contradiction


VOCABULARY = [*LEXICON, "7", "999", "(", ")", "tree", "'s", "n't"]


@given(st.lists(st.sampled_from(VOCABULARY), max_size=60).map(" ".join))
def test_word_salad_is_read_without_error(text: str) -> None:
    statement = read_statement(text, "FrozenLake")
    for claims in statement.claims.values():
        assert all(not claim.is_empty for claim in claims)
        assert all(direction in (None, -1, 0, 1) for claim in claims for direction in claim[:2])


@given(st.text())
def test_any_text_is_read_without_error(text: str) -> None:
    read_statement(text, "FrozenLake")
    read_statement("{'player': " + text + "}", "Sokoban")
