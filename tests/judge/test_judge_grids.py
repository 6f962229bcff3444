"""Grid games: what is read of each notation, worked examples of scores, lists that claim all."""

import json
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_samples import COLUMNS, LAKE, ROWS, grid_judge

from vagen.envs.claims import best_matching
from vagen.envs.frozenlake.env import Hole, HoleAt, Target, TargetAt
from vagen.envs.grid import Player
from vagen.envs.sokoban import env as sokoban

ROOM = {
    "env_name": "Sokoban",
    "size": [6, 6],
    "player": [2, 2],
    "boxes": [[3, 2], [1, 1]],
    "targets": [[2, 4], [4, 4]],
    "walls": [[0, 0]],
}
RIGHT = "target is below and right"
HOLES = "hole is above and same column . hole is same row and left"
DICT = {"player": [1, 1], "target": [3, 2], "holes": [[0, 1], [1, 0]]}
DRAWING = "_ O _ _\nO P _ _\n_ _ _ _\n_ _ G _"


def read(text, form="language", env_name="FrozenLake", **options):
    """Claims, or None for a text that is not understood."""
    reading = grid_judge(env_name, form, **options).rules.read(text)
    return list(reading.content) if reading.understood else None


def scored(text, form="language", state=LAKE, **options):
    """Its score, or None for a text that is not understood."""
    judge = grid_judge(state["env_name"], form, **options)
    scores = judge.scores(text, [judge.rules.truth(state)])
    return None if scores is None else scores[0]


@pytest.mark.parametrize(
    ("text", "target", "with_holes"),
    [
        (RIGHT, 1, 0.7),
        ("target is below and unstated", 0.5, 0.35),
        ("target is below and left", 0.5, 0.35),
        ("target is above and left", 0, 0),
        # One hole of two.
        (f"{RIGHT} . hole is above and same column", None, 0.7 + 0.3 * 2 / 3),
        (f"{RIGHT} . {HOLES}", None, 1),
        # The second claim fits the other hole on one axis only (not left, but same row).
        (
            f"{RIGHT} . hole is above and same column . hole is same row and right",
            None,
            0.7 + 0.3 * 3 / 4,
        ),
        # A hole said twice is said once too often.
        (f"{RIGHT} . hole is above and same column . {HOLES}", None, 0.7 + 0.3 * 4 / 5),
        (HOLES, None, 0),
        (f"{RIGHT} . {RIGHT}", 1, 0.7),
        (f"{RIGHT} . target is above and right", 0, 0),
    ],
)
def test_frozenlake_worked_examples(text, target, with_holes):
    assert scored(text) == pytest.approx(with_holes)
    # Where texts speak of the target alone, holes are no part of their language.
    assert scored(text, state_objects="target") == target


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (f"{RIGHT} . {HOLES}", 1),
        (f"{RIGHT} . hole is above and same column", 0.9),
        (RIGHT, 0.7),
        # The hole is there, but not beside the player.
        (f"{RIGHT} . {HOLES} . hole is below and right", 0.94),
    ],
)
def test_near_ones_are_the_holes_beside_the_player(text, score):
    state = LAKE | {"holes": [[0, 1], [1, 0], [3, 3]]}
    assert scored(text, state=state, state_objects="near") == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (
            "box is below and same column . box is above and left . "
            "target is same row and right . target is below and right",
            1,
        ),
        # One box of two: F1 2/3; no half credit for a pair that is half right.
        (
            "box is below and same column . target is same row and right . "
            "target is same row and right",
            0.5 * 2 / 3 + 0.5 / 2,
        ),
        ("box is below and left . target is same row and left", 0),
        ("box is below and same column . box is above and left", 0),
    ],
)
def test_sokoban_worked_examples(text, score):
    assert scored(text, state=ROOM) == pytest.approx(score)


def test_rows_and_columns_count_from_where_the_player_is_said_to_be():
    for changed, score in (
        ({}, 1),
        ({"player": [1, 0]}, 0.5),
        ({"player": [0, 0]}, 0),
        ({"target": [3, 3]}, 0.7 * 0.5 + 0.3),
        ({"holes": [[0, 1]]}, 0.7 + 0.3 * 2 / 3),
        ({"holes": []}, 0.7),
    ):
        assert scored(json.dumps(DICT | changed), "structured") == pytest.approx(score)
    sentences = "target is at row 3 and column 2 . hole is at row 0 and column 1"
    assert scored(sentences, "structured") == 0
    player = "player is at row 1 and column 1"
    assert scored(f"{player} . {sentences}", "structured") == pytest.approx(0.7 + 0.3 * 2 / 3)


def test_a_drawing_shows_every_hole():
    for options in ({}, {"prompt_detail": "brief"}, {"state_objects": "near"}):
        assert scored(DRAWING, "symbolic", **options) == 1
    assert scored(DRAWING.replace(" ", ""), "symbolic") == 1
    without = DRAWING.replace("_ O _ _", "_ _ _ _")
    assert scored(without, "symbolic") == pytest.approx(0.7 + 0.3 * 2 / 3)
    assert scored(DRAWING.replace("P", "_"), "symbolic") == 0


def test_each_notation_is_read_where_prompts_dictate_it():
    target, hole = Target(vertical="below", horizontal="right"), Hole
    above = hole(vertical="above", horizontal="same column")
    assert read(f"Target is BELOW and right.\n{above}") == [target, above]
    assert read(f"{above}, {target}, and {above}; {above}") == [target, above, above, above]
    assert read('[{"claim": "target", "vertical": "Below", "horizontal": "right"}]') == [target]
    spots = [Player(row=1, column=1), TargetAt(row=3, column=2)]
    holes = [HoleAt(row=0, column=1), HoleAt(row=1, column=0)]
    assert read(json.dumps(DICT), "structured") == spots + holes
    assert set(read(DRAWING, "symbolic")) == set(spots + holes)
    told = {key: DICT[key] for key in ("player", "target")}
    assert read(json.dumps(told), "structured", state_objects="target") == spots
    assert read("X _", "symbolic") == [Player(row=0, column=0), HoleAt(row=0, column=0)]
    room = read("# √ X\n# S _", "symbolic", "Sokoban")
    assert sorted(map(str, room)) == [
        "box is at row 0 and column 1",
        "box is at row 0 and column 2",
        "player is at row 1 and column 1",
        "target is at row 0 and column 1",
        "target is at row 1 and column 1",
    ]
    boxes = '{"boxes": [[3, 2]], "targets": [], "player": [0, 0]}'
    assert read(boxes, "structured", "Sokoban") == [
        Player(row=0, column=0),
        sokoban.BoxAt(row=3, column=2),
    ]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        *((text, "language") for text in (json.dumps(DICT), DRAWING, "the target is below")),
        ("target is right and below", "language"),
        ("target is not above and left", "language"),
        ("target is at row 3 and column 2", "language"),
        ("in another picture target is below and right", "language"),
        ("after the next move target is below and right", "language"),
        ("I would see target is below and right", "language"),
        ("target is below and right, so is hole", "language"),
        ("the target is a hole. target is below and right", "language"),
        (RIGHT, "structured"),
        (DRAWING, "structured"),
        (json.dumps({**DICT, "score": 1}), "structured"),
        (json.dumps({"player": [1, 1], "target": [3, 2]}), "structured"),
        (json.dumps({**DICT, "target": [3, 2, 1]}), "structured"),
        (json.dumps({**DICT, "target": None}), "structured"),
        (json.dumps(DICT)[:-1] + ', "target": [0, 0]}', "structured"),
        (json.dumps(DICT) + " // YES", "structured"),
        (str(DICT).replace("[", "list([", 1).replace("]", "])", 1), "structured"),
        ("{" * 4000 + "}" * 4000, "structured"),
        ('{"player": [' + "9" * 5000 + ', 1], "target": [0, 0], "holes": []}', "structured"),
        ("_ O _\nO P", "symbolic"),
        (f"{DRAWING}\n\n{DRAWING}", "symbolic"),
        (DRAWING.lower(), "symbolic"),
        (f"{DRAWING} YES", "symbolic"),
        (RIGHT, "symbolic"),
    ],
)
def test_nothing_else_is_read(text, form):
    assert read(text, form) is None


PAIRS = [f"{row} and {column}" for row, column in product(ROWS.values(), COLUMNS.values())]
EVERYWHERE = [[row, column] for row in range(4) for column in range(4)]


@pytest.mark.parametrize("state", [LAKE, ROOM | {"boxes": [[3, 2]], "targets": [[2, 4]]}])
def test_claiming_everything_pays_nothing(state):
    """The lists that the first readers were attacked with."""
    thing = {"FrozenLake": "target", "Sokoban": "box"}[state["env_name"]]
    every = " . ".join(f"{thing} is {pair}" for pair in PAIRS)
    others = " . ".join(
        f"{name} is {pair}" for name in ("target", "hole", "box") for pair in PAIRS if name != thing
    )
    for text in (
        every,
        f"{every} . {others}",
        f"the {thing}s are " + " and ".join(PAIRS),
        f"one {thing} is {PAIRS[0]}" + "".join(f", another is {pair}" for pair in PAIRS[1:]),
        f"twenty {thing}s are above, 20 {thing}s are below",
        f"{thing} is not {PAIRS[0]}, not {PAIRS[4]}",
        json.dumps({thing: f"perhaps {PAIRS[0]}"}),
    ):
        assert not scored(text, state=state)
    keys = ("player", "target", "holes", "boxes", "targets")
    told = {key: state[key] for key in keys if key in state}
    listed = {
        key: EVERYWHERE if isinstance(value[0], list) else value for key, value in told.items()
    }
    cells = [" ".join(symbol * 4) for symbol in ("O", "G", "X", "√") for _ in range(4)]
    # Every hole there can be, with the target in its place, is still a list.
    assert not scored(json.dumps(listed), "structured", state)
    assert not scored(json.dumps({**told, "player": EVERYWHERE}), "structured", state)
    assert not scored(json.dumps({"a": told, "b": told}), "structured", state)
    for place in range(0, 16, 4):
        assert not scored("\n".join(cells[place : place + 4]), "symbolic", state)


def test_claiming_every_hole_does_not_pay():
    everywhere = " . ".join(f"hole is {pair}" for pair in PAIRS)
    assert scored(f"{RIGHT} . {everywhere}") == 0
    two = " . ".join(f"hole is {pair}" for pair in PAIRS[:4])
    assert 0 < scored(f"{RIGHT} . {two}") < 1


@given(
    st.integers(0, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=columns, max_size=columns),
            max_size=4,
        )
    )
)
def test_matching_is_the_best_of_all(worths):
    columns = len(worths[0]) if worths else 0
    if len(worths) <= columns:
        choices = permutations(range(columns), len(worths))
        best = max(sum(worths[r][c] for r, c in enumerate(choice)) for choice in choices)
    else:
        choices = permutations(range(len(worths)), columns)
        best = max(sum(worths[r][c] for c, r in enumerate(choice)) for choice in choices)
    assert best_matching(worths) == best
