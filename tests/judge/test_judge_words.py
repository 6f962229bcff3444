"""Rules of Blackjack and Household: what texts claim, scores, calibration."""

import json
from pathlib import Path

import pytest

from vagen import envs
from vagen.config.judge_options import JudgeConfig
from vagen.judge import RuleJudge
from vagen.judge.calibration.run import calibrate, judge_digest, subject_named
from vagen.judge.rules import rules_for
from vagen.judge.rules.blackjack import BlackjackRules
from vagen.judge.rules.household import HouseholdRules

STORED = Path(__file__).parents[2] / "benchmarks" / "results"
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


def score(rules, text, state):
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
        ("I have a hard sixteen and the dealer's face-up card is a six of clubs", 1.0),
        ('{"sum": 16, "ace": "none", "dealer_shows": 6}', 1.0),
        ("my cards are 9 of spades and 7 of hearts. my sum is 16. no usable ace. dealer has a 6",
         1.0),
        ("sum is 16 . dealer shows 6", pytest.approx(2 * 0.9 / 1.9)),
        ("sum is 15 with no usable ace . dealer shows 6", pytest.approx(0.5)),
        ("sum is 16 with a usable ace . dealer shows 6", pytest.approx(0.9)),
        ("sum is 16", pytest.approx(2 / 3)),
        ("dealer shows 6", "no_relation"),
        ("sum is 16 . sum is 17", "contradiction"),
        ("sum is 16 . sum is 16 . sum is 16", "repeated"),
        ("sum is 16 . dealer shows 6 . it is not so", None),
        ("sum is not 16", None),
        ("sum is 4-21", None),
        ('{"sum": [16, 17]}', None),
        ('{"sum": 16, "sum": 17}', None),
        ("", "no_entity"),
    ],
)  # fmt: skip
def test_hands_in_words(text, expected):
    assert score(BlackjackRules(), text, HAND) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i am at fridge 1 . fridge 1 is open . i hold mug 1 . mug 1 is cold . "
         "mug 2 is on desk 1", 1.0),
        ("In front of the fridge 1, holding the mug; the fridge is open. The mug is chilled. "
         "On the desk is a mug", 1.0),
        ('{"at": "fridge 1", "fridge 1": "open", "holding": "mug 1", "mug 1": "cold", '
         '"mug 2": "desk 1"}', 1.0),
        ("the book is on the desk; I hold mug 1", pytest.approx(2 / 4.5 / (1 + 1 / 4.5))),
        ("i am at fridge 1 . i hold nothing", pytest.approx(1 / 4.5 / (0.5 + 1 / 4.5))),
        ("the mug is in the fridge", 0.0),
        ("mug 2 is on desk 1 . mug 2 is in fridge 1", "contradiction"),
        ("i hold mug 1 . mug 1 is on desk 1", "contradiction"),
        ("i hold mug 1 . i hold nothing", "contradiction"),
        ("fridge 1 is open . fridge 1 is closed . i hold mug 1", "contradiction"),
        ("the fridge is open", "no_relation"),
        ("i am at fridge 1 but not there", None),
        ("i am at every place", None),
        ("maybe", None),
        ('{"at": ["fridge 1", "desk 1"]}', None),
        ("  ", "no_entity"),
    ],
)  # fmt: skip
def test_homes_in_words(text, expected):
    assert score(HouseholdRules(), text, HOME) == expected


def test_a_prediction_copied_from_the_observation_is_refused_where_its_facts_changed():
    rules = HouseholdRules()
    moved = {**HOME, "at": "desk 1"}
    content = rules.read("i am at fridge 1 . i hold mug 1").content
    assert rules.has_changed(content, rules.truth(HOME), rules.truth(moved))
    content = rules.read("i hold mug 1").content
    assert not rules.has_changed(content, rules.truth(HOME), rules.truth(moved))
    rules = BlackjackRules()
    content = rules.read("sum is 16 . dealer shows 6").content
    hit = {**HAND, "sum": 21}
    assert rules.has_changed(content, rules.truth(HAND), rules.truth(hit))
    content = rules.read("dealer shows 6").content
    assert not rules.has_changed(content, rules.truth(HAND), rules.truth(hit))


@pytest.mark.parametrize("name", ["Blackjack", "Household"])
@pytest.mark.parametrize("notation", ["", "_structured"])
def test_the_experts_own_texts_are_right(name, notation):
    env = envs.make(name, {"prompt_format": f"grounding_worldmodeling{notation}"})
    judge = RuleJudge({name: rules_for(name)}, prompts={name: env.system_prompt()})
    for seed in range(25):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            before = info["state"]
            _, _, terminated, truncated, info = env.step(env.expert_response())
            over, parsed = terminated or truncated, info["parsed"]
            verdict = judge.score_sync(
                env_name=name,
                observation=parsed["observation"],
                prediction=parsed["prediction"],
                state=before,
                next_state=info["state"],
            )
            assert verdict.observation == 1.0
            if name == "Household" or parsed["actions"] == ["Stand"]:
                assert verdict.prediction > 0.6 and not verdict.flags


@pytest.mark.parametrize("name", ["Blackjack", "Household"])
def test_truth_in_words_and_cache_keys(name):
    rules = rules_for(name)
    env = envs.make(name, {})
    _, info = env.reset(seed=3)
    described, key = rules.describe(info["state"]), rules.canonical(info["state"])
    *_, after = env.step(env.expert_response())
    assert rules.describe(after["state"]) != described or name == "Blackjack"
    assert name == "Blackjack" or rules.canonical(after["state"]) != key
    assert rules.canonical(dict(info["state"])) == key


@pytest.mark.parametrize("name", ["Blackjack", "Household"])
def test_the_stored_calibration_is_of_this_judge_and_good_enough(name):
    stored = json.loads((STORED / f"judge-calibration-{name.lower()}.json").read_text())
    assert stored["judge_digest"] == judge_digest(JudgeConfig())
    (measured,) = stored["environments"].values()
    assert measured["statements"] >= 4990
    assert measured["precision"] >= 0.98 and measured["recall"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Blackjack", "Household"])
def test_calibration(name):
    found = calibrate(JudgeConfig(), [subject_named(name)], statements=5000, seed=1)[name]
    assert found.statements >= 4990 and found.absent == 0
    assert found.precision >= 0.98 and found.recall >= 0.95
    assert min(found.recall_by_wording.values()) >= 0.9
    assert found.information["vague"] <= 0.05 and found.information["template"] <= 0.05
    assert found.attack_patterns >= 150 and found.worst_attack[1] <= found.chance
    assert found.refused >= 0.98
