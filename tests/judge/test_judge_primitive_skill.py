"""Rules of PrimitiveSkill: readings of sentences and dicts, scores, refusals."""

import json
from pathlib import Path
from random import Random

import pytest

from vagen import envs
from vagen.config.judge_options import JudgeConfig
from vagen.envs.primitive_skill.level import sample_level
from vagen.envs.primitive_skill.primitives import HOME
from vagen.envs.primitive_skill.tasks import TASKS
from vagen.judge import RuleJudge
from vagen.judge.calibration.attacks import attacks
from vagen.judge.calibration.run import calibrate, judge_digest, subject_named
from vagen.judge.rules import RULES, rules_for

STATE = {
    "env_name": "PrimitiveSkill",
    "task": "AlignTwoCube",
    "goal": ["red cube", "green cube"],
    "objects": {"green cube": [60, 110, 20], "red cube": [-70, -40, 20]},
    "held": None,
    "gripper": list(HOME),
}
HELD = {
    **STATE,
    "objects": {"green cube": [60, 110, 198], "red cube": [-70, -40, 20]},
    "held": "green cube",
}
DRAWER = {
    **STATE,
    "task": "PutAppleInDrawer",
    "goal": ["apple"],
    "objects": {"drawer": [-10, 30, 34], "apple": [-12, 35, 34]},
}
OTHER = {**STATE, "objects": {"blue cube": [90, -110, 20], "yellow cube": [20, 140, 20]}}


@pytest.fixture(scope="module")
def judge():
    prompt = envs.make("PrimitiveSkill", {}).system_prompt()
    return RuleJudge(
        {"PrimitiveSkill": RULES["PrimitiveSkill"]()}, prompts={"PrimitiveSkill": prompt}
    )


def score(judge, text, state=STATE):
    verdict = judge.score_sync(
        env_name="PrimitiveSkill", observation=text, prediction=None, state=state, next_state=state
    )
    return verdict.observation, [flag.removeprefix("observation:") for flag in verdict.flags]


@pytest.mark.parametrize(
    "text",
    [
        "green cube at (60, 110, 20) . red cube at (-70, -40, 20)",
        "The red cube is at (-70, -40, 20), and the green cube is at (60, 110, 20).",
        "red cube: (-70,-40,20)\ngreen cube: (60,110,20)",
        "There is a red cube at x=-70, y=-40, z=20 mm and a green cube at 60, 110, 20",
        "the red block lies at [-64, -47, 28]; the green block sits at (60.0, 110.0, 20.0) mm",
        "The position of the red cube is (-70, -40, 20) and the green cube's position is "
        "(60, 110, 20). The gripper is empty.",
        "Positions: red cube (-70, -40, 20), green cube (60, 110, 20), nothing held",
        "The red cube’s center is at (−70, −40, 20), the green cube still lies at (60, 110, 20)",
        "After that, the red cube will be at (-70, -40, 20), and the green cube remains on the "
        "table at coordinates (60, 110, 20).",
        "- red cube -> (-70, -40, 20)\n- green cube - (60, 110, 20)\n- gripper: empty",
        '{"red cube": [-70, -40, 20], "green cube": [60, 110, 20], "held": "nothing"}',
        "{'red_cube_position': (-70, -40, 20), 'green_cube': (60, 110, 20)}",
    ],
)
def test_right_descriptions_score_one_in_any_wording(judge, text):
    assert score(judge, text) == (1.0, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red cube at (-70, -40, 20)", 2 / 3),
        ("red cube at (-78, -40, 20) . green cube at (60, 110, 20)", 1 / 2),
        ("red cube at (-70, -40, 31) . green cube at (60, 110, 20)", 1 / 2),
        ("red cube at (-70, -40) . green cube at (60, 110)", 1 / 2),
        ("red cube at (60, 110, 20) . green cube at (-70, -40, 20)", 0.0),
        ("red cube at (-70, -40, 20) . blue cube at (60, 110, 20)", 1 / 2),
        ("red cube at (-70, -40, 20) . green cube at (60, 110, 20) . red cube held", 4 / 5),
        (
            "red cube at (-70, -40, 20) . green cube at (60, 110, 20) . red cube on green cube",
            4 / 5,
        ),
    ],
)
def test_partial_and_wrong_descriptions(judge, text, expected):
    assert score(judge, text)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("green cube held at (60, 110, 200) . red cube at (-70, -40, 20)", 1.0),
        ("The gripper holds the green cube at (60,110,200). The red cube is at (-70,-40,20)", 1.0),
        ("The green cube is held by the gripper. Red cube at (-70, -40, 20)", 4 / 5),
        ("the green cube is held", 1 / 2),
        ("the red cube is held", 0.0),
        ("green cube at (60, 110, 200) . red cube at (-70, -40, 20)", 4 / 5),
        ("green cube at (60, 110, 200) . red cube at (-70, -40, 20) . gripper is empty", 2 / 3),
        ("green cube at (60,110,200). red cube at (-70,-40,20). green cube is not held", 2 / 3),
    ],
)
def test_what_is_held_is_part_of_the_state(judge, text, expected):
    assert score(judge, text, HELD)[0] == pytest.approx(expected)


def test_the_drawer_and_what_is_in_it(judge):
    right = "drawer at (-10, 30, 34) . apple at (-12, 35, 34)"
    assert score(judge, f"{right} . the apple is in the drawer . drawer is open", DRAWER)[0] == 1.0
    assert score(judge, f"{right} . the drawer is closed", DRAWER)[0] == pytest.approx(4 / 5)
    out = {**DRAWER, "objects": {"drawer": [-10, 30, 34], "apple": [120, -35, 24]}}
    text = "drawer at (-10, 30, 34) . apple at (120, -35, 24) . apple in drawer"
    assert score(judge, text, out)[0] == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("red cube at (-70, -40, 20) . red cube at (70, -40, 20)", "contradiction"),
        ('{"red cube": [-70, -40, 20], "red cube": [0, 0, 20]}', "contradiction"),
        ("red cube is held . red cube is not held", "contradiction"),
        ("red cube is held . green cube is held", "contradiction"),
        ("red cube is held . gripper is empty", "contradiction"),
        ("drawer open . drawer closed . apple at (1, 2, 3)", "contradiction"),
        ("red cube at (-70, -40, 20) . " * 4, "repeated"),
        ("nothing is held", "no_relation"),
        ("red cube on green cube", "no_relation"),
        ("{}", "no_entity"),
        ("things lie on a table", "not_understood"),
        ("red cube at (-70, -40, 20) beyond all doubt", "not_understood"),
        ("red cube and green cube at (-70, -40, 20)", "not_understood"),
        ("red cube not at (-70, -40, 20)", "not_understood"),
        ("red cube at (-70, -40, 20), (0, 0, 20)", "not_understood"),
        ("a cube at (-70, -40, 20)", "not_understood"),
        ("red cube at -(-70, -40, 20)", "not_understood"),
        ("red cube at 2(-70, -40, 20)", "not_understood"),
        ("red cube at (-70, -40, 20, 60, 110, 20)", "not_understood"),
        ("red cube at (-70, -40, 20)(60, 110, 20)", "not_understood"),
        ("red cube at (-70, -40, 20) cm", "not_understood"),
        ("red cube to (-70, -40, 20)", "not_understood"),
        ("red cube was at (-70, -40, 20)", "not_understood"),
        ("red cube no longer at (-70, -40, 20)", "not_understood"),
        ("no red cube at (-70, -40, 20)", "not_understood"),
        ("red cube at the position of the green cube (60, 110, 20)", "not_understood"),
        ("red cube green cube at (-70, -40, 20)", "not_understood"),
        ("red cube @ (-70, -40, 20)", "not_understood"),
        ('{"red cube": "(-70, -40, 20)"}', "not_understood"),
        ('{"red cube": [-70, -40, NaN]}', "not_understood"),
        ("red " * 500, "too_long"),
    ],
)
def test_what_commits_itself_to_nothing_is_refused(judge, text, flag):
    value, flags = score(judge, text)
    assert value == 0.0 and flags == [flag]


def test_more_things_than_there_are_earn_nothing(judge):
    env = envs.make("PrimitiveSkill", {})
    assert score(judge, f"{env.state_text(STATE)} . {env.state_text(OTHER)}")[0] == 0.0


@pytest.mark.parametrize("other", [HELD, OTHER])
def test_no_attack_is_paid(judge, other):
    env = envs.make("PrimitiveSkill", {})
    texts = attacks(env.state_text(STATE), env.state_text(other), "red cube")
    assert len(texts) > 200
    assert {kind: text for kind, text in texts.items() if score(judge, text)[0] > 0} == {}


def test_readings_never_raise():
    rules, rng = RULES["PrimitiveSkill"](), Random(3)
    pieces = [
        "red cube",
        "at",
        "(",
        ")",
        "1",
        "-",
        ",",
        ".",
        "held",
        "{",
        '"',
        ":",
        "[",
        "9" * 9,
        "@",
    ]
    for _ in range(5_000):
        text = " ".join(rng.choices(pieces, k=rng.randrange(14)))
        reading = rules.read(text)
        if reading.understood and not reading.flags:
            assert 0.0 <= rules.score(reading.content, rules.truth(STATE))[0] <= 1.0


@pytest.mark.parametrize("notation", ["", "_structured"])
@pytest.mark.parametrize("task", TASKS)
def test_the_environments_own_texts_score_one(judge, task, notation):
    env = envs.make("PrimitiveSkill", {"task": task, "prompt_format": f"grounding{notation}"})
    for seed in range(20):
        level = sample_level(task, seed, "train")
        places = {thing.name: [thing.x, thing.y, 20] for thing in level.things}
        if level.drawer is not None:
            places["drawer"] = [*level.drawer, 34]
        names = [thing.name for thing in level.things]
        for held in (None, names[0]):
            state = {**STATE, "task": task, "goal": names, "objects": places, "held": held}
            assert score(judge, env.state_text(state), state) == (1.0, [])


def test_a_copied_observation_is_refused_where_something_moved(judge):
    env = envs.make("PrimitiveSkill", {})
    text = env.state_text(STATE)
    moved = {**STATE, "objects": {**STATE["objects"], "red cube": [0, -40, 20]}}
    for after, flags in ((moved, ("prediction:copied_observation",)), (STATE, ())):
        verdict = judge.score_sync(
            env_name="PrimitiveSkill",
            observation=text,
            prediction=text,
            state=STATE,
            next_state=after,
        )
        assert verdict.observation == 1.0 and verdict.flags == flags


def test_the_truth_in_words_and_as_a_key():
    rules = rules_for("PrimitiveSkill")
    assert rules is not None
    assert "The green cube is at (60, 110, 198)." in rules.describe(HELD)
    assert "The gripper holds the green cube." in rules.describe(HELD)
    assert "The drawer is open." in rules.describe(DRAWER)
    shuffled = {**STATE, "objects": dict(reversed(STATE["objects"].items())), "gripper": [0, 0, 0]}
    assert rules.canonical(shuffled) == rules.canonical(STATE) != rules.canonical(HELD)
    assert json.loads(rules.canonical(HELD))[1] == "green cube"


def is_good_enough(figures, statements):
    assert figures["statements"] >= statements and figures["absent"] == 0
    assert figures["precision"] >= 0.98 and figures["recall"] >= 0.95
    assert min(figures["recall_by_wording"].values()) >= 0.9
    assert max(figures["information"][kind] for kind in ("vague", "template")) <= 0.05
    assert figures["worst_attack"][1] <= figures["chance"]


def test_the_stored_calibration_is_of_this_judge_and_good_enough():
    path = Path(__file__).parents[2] / "benchmarks/results/judge-calibration-primitiveskill.json"
    stored = json.loads(path.read_text())
    assert stored["judge_digest"] == judge_digest(JudgeConfig())
    is_good_enough(stored["environments"]["PrimitiveSkill"], 4990)
    assert stored["environments"]["PrimitiveSkill"]["attack_patterns"] >= 180


@pytest.mark.slow
def test_the_judge_on_statements_about_simulated_states():
    found = calibrate(JudgeConfig(), [subject_named("PrimitiveSkill")], statements=1000, seed=3)
    is_good_enough(found["PrimitiveSkill"].to_dict(), 990)
