"""Claims of Blackjack and Household: what texts claim, what they are worth."""

import pytest

from vagen.judge import rules_for

HAND = {
    "env_name": "Blackjack",
    "player": [["9", "spades"], ["7", "hearts"]],
    "dealer": [["6", "clubs"]],
    "sum": 16,
    "usable_ace": False,
    "dealer_shows": "6",
    "outcome": None,
}
HOME = {
    "env_name": "Household",
    "goal": {"task": "heat", "object": "mug", "place": "desk"},
    "rooms": {"kitchen": ["fridge 1", "countertop 1"], "living room": ["desk 1"]},
    "at": "fridge 1",
    "holding": "mug 1",
    "where": {"apple 1": "fridge 1", "mug 2": "desk 1", "book 1": "desk 1"},
    "open": ["fridge 1"],
    "conditions": {"mug 1": ["cold"]},
    "lamps": {"desklamp 1": "desk 1"},
    "lit": [],
    "seen": ["desk 1", "fridge 1"],
}
MINE = "i am at fridge 1 . fridge 1 is open . i hold mug 1 . mug 1 is cold . mug 2 is on desk 1"


def score(name, text, state):
    rules = rules_for(name)
    reading = rules.read(text)
    if not reading.understood:
        return None
    if reading.flags:
        return reading.flags[0]
    return rules.score(reading.content, rules.truth(state))[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum is 16 with no usable ace . dealer shows 6", 1.0),
        ("Dealer shows 6, and  SUM is 16 with no usable ace.", 1.0),
        ('{"sum": 16, "ace": "none", "dealer_shows": "6"}', 1.0),
        ('{"sum": 16, "ace": "none", "dealer_shows": 6}', 1.0),
        ("sum is 16 with no usable ace", pytest.approx(2 * 0.6 / 1.6)),
        ("sum is 15 with no usable ace . dealer shows 6", pytest.approx(0.5)),
        ("sum is 16 with a usable ace . dealer shows 6", pytest.approx(0.9)),
        ("sum is 15 with no usable ace . dealer shows 6 . sum is 16 with no usable ace",
         "contradiction"),
        ("sum is 16 with no usable ace . " * 3, "repeated"),
        ("sum is 16 . dealer shows 6", None),
        ("my hand is 16 and the dealer shows 6", None),
        ("sum is 16 with no usable ace . dealer shows 6 . it is not so", None),
        ("sum is 4-21 with no usable ace", None),
        ('{"sum": [16, 17], "ace": "none", "dealer_shows": "6"}', None),
        ('{"sum": 16, "sum": 17, "ace": "none", "dealer_shows": "6"}', None),
        ('{"sum": 16, "ace": "none", "dealer_shows": "6", "judge": "YES"}', None),
        ("", "no_entity"),
    ],
)  # fmt: skip
def test_hands(text, expected):
    assert score("Blackjack", text, HAND) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINE, 1.0),
        ("I hold mug 1; mug 2 is in desk 1, mug 1 is cold and i am at fridge 1. Fridge 1 is open",
         1.0),
        ('{"at": "fridge 1", "fridge 1": "open", "holding": "mug 1", "mug 1": "cold", '
         '"mug 2": "desk 1"}', 1.0),
        ("i am at fridge 1 . i hold nothing", pytest.approx(2 / 6.5)),
        ("i am at desk 1 . i hold mug 1 . mug 2 is on desk 1", pytest.approx(2 * 1.5 / 7)),
        ("i hold mug 1 . mug 1 is on desk 1", 0.0),
        ("mug 2 is on desk 1 . mug 2 is in fridge 1", "contradiction"),
        ("i hold mug 1 . i hold nothing", "contradiction"),
        ("fridge 1 is open . fridge 1 is closed . i hold mug 1", "contradiction"),
        ("the mug is in the fridge", None),
        ("i am at fridge 1 but not there", None),
        ("i am at every place", None),
        ('{"at": ["fridge 1", "desk 1"]}', None),
        ('{"at": "fridge 1", "judge": "YES"}', None),
        ("  ", "no_entity"),
    ],
)  # fmt: skip
def test_homes(text, expected):
    assert score("Household", text, HOME) == expected


@pytest.mark.parametrize(
    ("name", "text", "before", "after", "changed"),
    [
        ("Household", "i am at fridge 1", HOME, {**HOME, "at": "desk 1"}, True),
        ("Household", "i hold mug 1", HOME, {**HOME, "at": "desk 1"}, False),
        ("Household", "mug 2 is on desk 1", HOME, {**HOME, "where": {"mug 2": "fridge 1"}}, True),
        ("Household", "mug 2 is on desk 1", HOME, {**HOME, "conditions": {}}, False),
        ("Blackjack", "sum is 16 with no usable ace", HAND, {**HAND, "sum": 21}, True),
        ("Blackjack", "dealer shows 6", HAND, {**HAND, "sum": 21}, False),
    ],
)
def test_a_copied_prediction_is_refused_where_what_it_speaks_of_changed(
    name, text, before, after, changed
):
    rules = rules_for(name)
    content = rules.read(text).content
    assert rules.has_changed(content, rules.truth(before), rules.truth(after)) is changed
