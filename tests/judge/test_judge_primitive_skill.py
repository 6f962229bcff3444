"""Claims of PrimitiveSkill: what is read, scores, refusals."""

import pytest

from vagen import envs
from vagen.envs.primitive_skill.level import sample_level
from vagen.envs.primitive_skill.primitives import HOME
from vagen.envs.primitive_skill.tasks import TASKS
from vagen.judge import RuleJudge, rules_for
from vagen.judge.calibration.attacks import attacks

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
OTHER = {**STATE, "objects": {"blue cube": [90, -110, 20], "yellow cube": [20, 140, 20]}}
RED, GREEN = "red cube at (-70, -40, 20)", "green cube at (60, 110, 20)"


@pytest.fixture(scope="module")
def judge():
    prompt = envs.make("PrimitiveSkill", {}).system_prompt()
    return RuleJudge(rules_for("PrimitiveSkill"), prompt=prompt)


def score(judge, text, state=STATE):
    verdict = judge.score_sync(text, None, state, state)
    return verdict.observation, [flag.removeprefix("observation:") for flag in verdict.flags]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{GREEN} . {RED}", 1.0),
        ("Red cube at (-70,-40,20), and green cube at (60, 110, 20).", 1.0),
        ("red cube at (-64, -47, 28)\ngreen cube at (60, 110, 20)", 1.0),
        ('{"red cube": [-70, -40, 20], "green cube": [60, 110, 20], "held": "nothing"}', 1.0),
        ('{"red cube": [-70, -40, 20], "green cube": [60, 110, 20], "held": null}', 1.0),
        (
            '[{"claim": "at", "thing": "red cube", "x": -70, "y": -40, "z": 20},'
            ' {"claim": "at", "thing": "green cube", "x": 60, "y": 110, "z": 20}]',
            1.0,
        ),
        (RED, 2 / 3),
        (f"red cube at (-78, -40, 20) . {GREEN}", 1 / 2),
        (f"red cube at (-70, -40, 31) . {GREEN}", 1 / 2),
        ("red cube at (60, 110, 20) . green cube at (-70, -40, 20)", 0.0),
        (f"{RED} . blue cube at (60, 110, 20)", 1 / 2),
        (f"{RED} . {GREEN} . red cube held", 4 / 5),
        (f"{RED} . {GREEN} . blue cube at (0, 0, 20)", 0.0),  # more things than there are
    ],
)
def test_scores(judge, text, expected):
    assert score(judge, text) == (pytest.approx(expected), [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"green cube at (60, 110, 200) . {RED} . green cube held", 1.0),
        ('{"red cube": [-70, -40, 20], "green cube": [60, 110, 200], "held": "green cube"}', 1.0),
        (f"green cube held . {RED}", 4 / 5),
        ("green cube held", 1 / 2),
        ("red cube held", 0.0),
        (f"green cube at (60, 110, 200) . {RED}", 4 / 5),
    ],
)
def test_what_is_held_is_part_of_the_state(judge, text, expected):
    assert score(judge, text, HELD)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("red cube at (-70, -40, 20) . red cube at (70, -40, 20)", "contradiction"),
        ("red cube held . green cube held", "contradiction"),
        ("red cube at (-70, -40, 20) . " * 4, "repeated"),
        ("{}", "no_entity"),
        ('{"red cube": [-70, -40, 20], "red cube": [0, 0, 20]}', "not_understood"),
        ("red cube at (-70, -40)", "not_understood"),
        ("red cube not at (-70, -40, 20)", "not_understood"),
        ("red cube at (-70, -40, 20), (0, 0, 20)", "not_understood"),
        ("red cube at (-70, -40, 20, 60, 110, 20)", "not_understood"),
        ("red cube at (-70, -40, 20) cm", "not_understood"),
        ("so is red cube at (-70, -40, 20)", "not_understood"),
        ('{"red cube": "(-70, -40, 20)"}', "not_understood"),
        ('{"red cube": [-70, -40, NaN]}', "not_understood"),
        ("red " * 500, "too_long"),
    ],
)
def test_what_commits_itself_to_nothing_is_refused(judge, text, flag):
    assert score(judge, text) == (None if flag == "not_understood" else 0.0, [flag])


@pytest.mark.parametrize("other", [HELD, OTHER])
def test_no_attack_is_paid(judge, other):
    env = envs.make("PrimitiveSkill", {})
    texts = attacks(env.state_text(STATE), env.state_text(other), "red cube")
    assert len(texts) > 200
    assert {kind: text for kind, text in texts.items() if (score(judge, text)[0] or 0) > 0} == {}


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
    text = f"{GREEN} . {RED}"
    moved = {**STATE, "objects": {**STATE["objects"], "red cube": [0, -40, 20]}}
    trembled = {**STATE, "objects": {**STATE["objects"], "red cube": [-69, -40, 21]}}
    copied = ("prediction:copied_observation",)
    for after, flags in ((moved, copied), (trembled, ()), (STATE, ())):
        verdict = judge.score_sync(text, text, STATE, after)
        assert verdict.observation == 1.0 and verdict.flags == flags
