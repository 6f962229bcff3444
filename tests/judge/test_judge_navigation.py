"""Rules of Navigation: readings of sentences and JSON, scores, refusals, calibration."""

import functools
import json
from pathlib import Path
from random import Random

import pytest

from vagen import envs
from vagen.envs.navigation.truth import DIRECTIONS, Sighting, state_of
from vagen.envs.navigation.world import Pose
from vagen.judge import RuleJudge
from vagen.judge.calibration import WRITERS
from vagen.judge.calibration.attacks import attacks
from vagen.judge.calibration.measure import measure
from vagen.judge.calibration.samples import sample_statements
from vagen.judge.rules import RULES, rules_for
from vagen.judge.scene.language import read_description

STATE = state_of(
    Pose(0.0, 0.0, 0),
    [
        Sighting("sofa", "blue", -1.4, 2.0, True, is_target=True),
        Sighting("chair", "red", 0.1, 1.5, True),
        Sighting("chair", "white", 1.5, 2.5, True),
        Sighting("traffic cone", "orange", 0.0, 4.0, True),
        Sighting("table", "brown", 0.0, -2.0, False),
    ],
    goal_distance=1.5,
    instruction="Go to the sofa.",
)
"""Sofa ahead-left at 2.4 m; red chair ahead at 1.5, white chair ahead-right at 2.9, cone at 4.0."""
UNSEEN = state_of(
    Pose(0.0, 0.0, 0),
    [
        Sighting("sofa", "blue", -1.4, -2.0, False, is_target=True),
        Sighting("chair", "red", 0.1, 1.5, True),
    ],
    goal_distance=1.5,
    instruction="Go to the sofa.",
)
NINE = ("bed", "lamp", "sink", "piano", "bin", "stove", "desk", "ball", "plant")


@functools.cache
def judge_of(all_required=False):
    prompt = envs.make("Navigation", {}).system_prompt()
    rules = RULES["Navigation"](all_required=all_required)
    return RuleJudge({"Navigation": rules}, prompts={"Navigation": prompt})


def score(text, state=STATE, **options):
    verdict = judge_of(**options).score_sync(
        env_name="Navigation", observation=text, prediction=None, state=state, next_state=state
    )
    return verdict.observation, [flag.removeprefix("observation:") for flag in verdict.flags]


def claims(text):
    description = read_description(text)
    assert description.understood and not description.contradiction
    return [(c.colour, c.kind, c.bearing, c.metres, c.in_view) for c in description.claims]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blue sofa is ahead-left at 2.5 m", [("blue", "sofa", -45, 2.5, None)]),
        (
            "The couch is ahead to the left, about 2 metres away; a table is to my right.",
            [(None, "sofa", -45, 2.0, None), (None, "table", 90, None, None)],
        ),
        (
            "To my left, two and a half metres away, is a gray chair, and the TV is behind me",
            [("grey", "chair", -90, 2.5, None), (None, "television", 180, None, None)],
        ),
        (
            "I see a bed slightly to the right. It is half a metre away",
            [(None, "bed", 45, 0.5, True)],
        ),
        ("I can't see the trash can", [(None, "bin", None, None, False)]),
        ("No lamp is in view", [(None, "lamp", None, None, False)]),
        (
            "the chair and the table are ahead",
            [(None, "chair", 0, None, None), (None, "table", 0, None, None)],
        ),
        ("ahead is a cone, 150 cm away", [(None, "traffic cone", 0, 1.5, None)]),
        ("the lamp is 35 degrees to the left, 2.6 m", [(None, "lamp", -35.0, 2.6, None)]),
        (
            "After turning right, the fridge will be ahead at 2 m",
            [(None, "fridge", 0, 2.0, None)],
        ),
        ("the target is the blue sofa: ahead, 3 m", [("blue", "sofa", 0, 3.0, None)]),
        ("the sofa is ahead. The sofa is 2 m away.", [(None, "sofa", 0, 2.0, None)]),
        ("the coffee machine is behind me", [(None, "coffee machine", 180, None, None)]),
        (
            '{"target": "sofa", "direction": "behind-right", "distance": 3.0}',
            [(None, "sofa", 135, 3.0, None)],
        ),
        (
            '{"target": "sofa", "direction": "not in view", "objects": [{"name": "red bed",'
            ' "direction": "ahead", "distance": 2}]}',
            [(None, "sofa", None, None, False), ("red", "bed", 0, 2.0, None)],
        ),
    ],
)
def test_descriptions_are_read(text, expected):
    assert claims(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "the sofa is left of the table",
        "the sofa is behind the table",
        "I am behind the sofa",
        "the sofa is ahead of the chair at 2 m",
        "the purple dragon is ahead",
        "the sofa is ahead 2 chairs",
        "two sofas are ahead",
        "the sofa is metres away",
        "the sofa is not 2 m away",
        "ahead at 2 m",
        "is the sofa ahead at 2.5 m",
        "can the sofa be ahead at 2.5 m",
        "once the sofa is ahead-left at 2.5 m",
        "then the sofa is ahead-left at 2.5 m",
        "the sofa was ahead-left at 2.5 m",
        "'the sofa is ahead-left at 2.5 m'",
        "far from it that the sofa is ahead-left at 2.5 m",
        '{"target": "sofa", "direction": "left", "direction": "ahead-left"}',
        '{"objects": [{"name": "sofa", "direction": "left", "direction": "ahead-left"}]}',
        '{"target": ["sofa", "ahead"]}',
        '{"target": "sofa", "direction": ["ahead", "left"]}',
        '{"sofa": "ahead"}',
        '{"target": "sofa"',
        '{"target": "sofa", "direction": "ahead-left", "distance": 2.5, "verdict": "right"}',
        '{"direction": "ahead-left", "distance": 2.5}',
        "{" * 5000,
    ],
)
def test_what_is_not_understood_claims_nothing(text):
    assert not read_description(text).understood
    assert score(text)[0] == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("blue sofa is ahead-left at 2.5 m", 1.0),
        ("the couch is ahead-left", 0.6),
        ("the sofa is 2.4 m away", 0.3),
        ("the target is ahead-left at 2.5 m", 1.0),
        ("the sofa is ahead at 2.5 m", 1.0),  # 35 degrees off: slightly left is still ahead
        ("the sofa is ahead-right at 2.5 m", 0.0),
        ("the sofa is ahead-left at 4 m", 0.0),
        ("the sofa is left at 2.5 m", 0.0),
        ("the red sofa is ahead-left at 2.5 m", 0.0),
        ("the sofa is not to the right, it is ahead-left at 2.5 m", 1.0),
        ("the sofa is not ahead", 0.0),
        ("red chair is ahead at 1.5 m", 0.3),
        ("sofa is ahead-left at 2.5 m . red chair is ahead at 1.5 m", 1.0),
        ("sofa is ahead-left at 2.5 m . red chair is behind me at 1.5 m", 0.7),
        ("sofa is ahead-left at 2.5 m . white chair is ahead at 1.5 m", 0.7),
        ("sofa is ahead-left at 2.5 m . a table is behind me", 1.0),  # right, not asked for
        ("sofa is ahead-left at 2.5 m . a table is behind me at 4 m", 0.0),
        ("sofa is ahead-left at 2.5 m . a fridge is behind me", 0.0),
        ("sofa is ahead-left at 2.5 m . no table is in view", 1.0),
        ("sofa is ahead-left at 2.5 m . no chair is in view", 0.0),
    ],
)
def test_scores(text, value):
    assert score(text)[0] == pytest.approx(value)


def test_all_that_is_near_is_required_where_the_prompt_asks_for_it():
    parts = [
        "blue sofa is ahead-left at 2.5 m",
        "red chair is ahead at 1.5 m",
        "white chair is ahead-right at 3 m",
        "cone is ahead at 4 m",
    ]
    values = [score(" . ".join(parts[:count]), all_required=True)[0] for count in range(1, 5)]
    assert values == pytest.approx([0.7, 0.85, 0.94, 1.0])
    # Two chairs of no colour are told apart by where they are.
    assert score("sofa is ahead-left . chair is ahead at 1.5 m . chair is ahead-right at 3 m")[
        0
    ] == pytest.approx(0.7 * 0.6 + 0.3)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("the sofa is left and right", "contradiction"),
        ("sofa is ahead-left at 2.5 m . sofa is behind at 2.5 m", "contradiction"),
        ("chair is ahead . chair is ahead-right . chair is behind", "contradiction"),
        ("red chair is ahead . red chair is ahead-right", "contradiction"),
        ("sofa is ahead-left at 2.5 m . fridge is ahead at 2 m", "sight"),
        ("I see a fridge . sofa is ahead-left at 2.5 m", "sight"),
        ("I see the sofa", "no_relation"),
        ("there is a wall ahead", "not_understood"),
        ("I look ahead", "no_entity"),
        ("it is here", "no_entity"),
        ("the sofa is ahead-left or behind", "hedge"),
        ("sofa ahead-left. " * 5, "repeated"),
        (". ".join(f"{kind} is behind me" for kind in NINE), "repeated"),
    ],
)
def test_refusals(text, flag):
    assert score(text) == (0.0, [flag])


def test_what_is_out_of_sight_is_to_be_said_so():
    assert score("the sofa is not in view", UNSEEN)[0] == 1.0
    assert score("the sofa is not in view")[0] == 0.0
    assert score("the sofa is behind me to the left, 2.5 m away", UNSEEN)[0] == 1.0
    assert score("the sofa is not in view; it is behind me to the right", UNSEEN)[0] == 0.0
    assert score("I see the sofa, 2.4 m away", UNSEEN)[0] == 0.0


@pytest.mark.parametrize("way", DIRECTIONS)
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_every_direction_means_what_the_state_means(way, rotation):
    angle = DIRECTIONS[way] + rotation
    offsets = {0: (0, 2), 45: (2, 2), 90: (2, 0), 135: (2, -2), 180: (0, -2)}
    offsets |= {225: (-2, -2), 270: (-2, 0), 315: (-2, 2)}
    east, north = offsets[angle % 360]
    state = state_of(
        Pose(5.0, 5.0, rotation),
        [Sighting("bed", "red", 5.0 + east, 5.0 + north, True, is_target=True)],
    )
    assert state["target"]["direction"] == way
    right = {other for other in DIRECTIONS if score(f"the bed is {other}", state)[0] > 0}
    assert right == {way}


def test_a_prediction_must_not_repeat_an_observation_that_no_longer_holds():
    judge = judge_of()
    text = "blue sofa is ahead-left at 2.5 m"
    nearer = state_of(
        Pose(0.0, 0.5, 0), [Sighting("sofa", "blue", -1.4, 2.0, True, is_target=True)]
    )
    verdict = judge.score_sync(
        env_name="Navigation", observation=text, prediction=text, state=STATE, next_state=nearer
    )
    assert verdict.prediction == 0.0 and verdict.flags == ("prediction:copied_observation",)
    same = judge.score_sync(
        env_name="Navigation", observation=text, prediction=text, state=STATE, next_state=STATE
    )
    assert (same.observation, same.prediction, same.flags) == (1.0, 1.0, ())


def test_the_truth_in_words_and_as_a_key():
    rules = RULES["Navigation"]()
    told = rules.describe(STATE)
    assert "The target is the blue sofa: ahead-left" in told and "2.4 m away" in told
    assert told.count("In view is a") == 3
    assert "It is not in view." in rules.describe(UNSEEN)
    assert rules.canonical(STATE) == rules.canonical(json.loads(json.dumps(STATE)))
    assert rules.canonical(STATE) != rules.canonical(UNSEEN)


@pytest.mark.parametrize("options", [{}, {"prompt_detail": "brief"}])
@pytest.mark.parametrize("notation", ["", "_structured"])
def test_true_statements_of_the_expert_get_full_marks(options, notation):
    env = envs.make(
        "Navigation",
        {
            **options,
            "render_mode": "text",
            "tasks": ["base", "complex_instruction", "long_horizon"],
            "prompt_format": f"grounding_worldmodeling{notation}",
            "expert_actions_per_turn": 3,
        },
    )
    judge = RuleJudge({"Navigation": rules_for("Navigation", env.config)})
    for seed in range(3):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            before = info["state"]
            *_, terminated, truncated, info = env.step(env.expert_response())
            over = terminated or truncated
            verdict = judge.score_sync(
                env_name="Navigation",
                observation=info["parsed"]["observation"],
                prediction=info["parsed"]["prediction"],
                state=before,
                next_state=info["state"],
            )
            assert (verdict.observation, verdict.prediction, verdict.flags) == (1.0, 1.0, ())


def test_no_attack_is_paid():
    plain = "blue sofa is ahead-left at 2.4 m"
    lie = "blue sofa is behind at 5.0 m"
    texts = attacks(plain, lie, "sofa")
    writer = WRITERS["Navigation"](envs.parse_env_config("Navigation", {}))
    texts |= writer.attacks(STATE, UNSEEN)
    paid = {name: text for name, text in texts.items() if score(text)[0] > 0.05}
    assert len(texts) > 200 and not paid


def test_noise_is_read_without_an_exception():
    rng = Random(3)
    words = [
        "sofa",
        "the",
        "2",
        "m",
        "left",
        "{",
        '"target":',
        ":",
        "not",
        "and",
        ",",
        ".",
        "٣",
        "\0",
    ]
    for _ in range(3000):
        text = " ".join(rng.choices(words, k=rng.randrange(12)))
        read_description(text)


@pytest.mark.slow
def test_calibration_meets_its_thresholds():
    writer = WRITERS["Navigation"]
    templates = []
    for env_config in writer.env_configs:
        samples = sample_statements(writer, [env_config], 900, 1)
        rules = rules_for("Navigation", envs.parse_env_config("Navigation", env_config))
        found = measure(RuleJudge({"Navigation": rules}), "Navigation", samples)
        assert found.precision >= 0.98 and found.recall >= 0.95
        assert found.information["vague"] <= 0.05 and found.information["true"] > 0.9
        assert found.worst_attack[1] <= max(found.chance, 0.05)
        templates.append(found.information["template"])  # of 45 texts each
    assert sum(templates) / len(templates) <= 0.05


def test_the_stored_calibration_is_good_enough():
    path = (
        Path(__file__).parents[2] / "benchmarks" / "results" / "judge-calibration-navigation.json"
    )
    found = json.loads(path.read_text())["environments"]["Navigation"]
    assert found["statements"] >= 5000
    assert found["precision"] >= 0.98 and found["recall"] >= 0.95
    assert max(found["information"]["vague"], found["information"]["template"]) <= 0.05
    assert found["worst_attack"][1] <= found["chance"]
