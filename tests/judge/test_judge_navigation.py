"""Claims of Navigation: what is read, what is scored, what a blind text earns."""

import functools

import pytest

from vagen import envs
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.env import Direction, NavigationEnv, Seen, Unseen
from vagen.envs.navigation.truth import DIRECTIONS, Sighting, state_of
from vagen.envs.navigation.world import Pose
from vagen.judge import RuleJudge, rules_for
from vagen.judge.calibration import writer_of
from vagen.judge.calibration.attacks import attacks

CHAIR, WHITE = Sighting("chair", "red", 0.1, 1.5, True), Sighting("chair", "white", 1.5, 2.5, True)
STATE = state_of(
    Pose(0.0, 0.0, 0),
    [
        Sighting("sofa", "blue", -1.4, 2.0, True, is_target=True),
        CHAIR,
        WHITE,
        Sighting("traffic cone", "orange", 0.0, 4.0, True),
        Sighting("table", "brown", 0.0, -2.0, False),
    ],
)
"""Sofa ahead-left at 2.4 m; red chair ahead at 1.5, white chair ahead-right at 2.9, cone at 4.0."""
BEHIND = Sighting("sofa", "blue", -1.4, -2.0, False, is_target=True)
UNSEEN, ALONE = state_of(Pose(0, 0, 0), [BEHIND, CHAIR, WHITE]), state_of(Pose(0, 0, 0), [BEHIND])
SOFA, RED = "blue sofa is ahead-left at 2.5 m", "red chair is ahead at 1.5 m"


@functools.cache
def judge_of(detail):
    env = envs.make("Navigation", {"prompt_detail": detail})
    rules = rules_for("Navigation", env.config)
    return RuleJudge(rules, prompt=env.system_prompt())


def score(text, state=STATE, detail="brief"):
    verdict = judge_of(detail).score_sync(text, None, state, state)
    return verdict.observation, [flag.removeprefix("observation:") for flag in verdict.flags]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SOFA, [Seen(name="blue sofa", direction="ahead-left", distance=2.5)]),
        (
            "Sofa is not in view, red bed is  ahead at 2 m.",
            [Unseen(name="sofa"), Seen(name="red bed", direction="ahead", distance=2)],
        ),
        (
            '{"target": "lamp", "direction": "not in view", "objects": [{"name": "coffee machine",'
            ' "direction": "left", "distance": 0.5}]}',
            [Unseen(name="lamp"), Seen(name="coffee machine", direction="left", distance=0.5)],
        ),
        ("the sofa is ahead at 2 m", [Seen(name="sofa", direction="ahead", distance=2)]),
        ("sofa is right in front of me at 2 m", None),
        ("sofa is ahead", None),
        ("sofa is ahead at 2 m, maybe", None),
        ("in another picture sofa is ahead at 2 m", None),
        ("purple dragon is ahead at 2 m", None),
        ("sofa is ahead at 1e1 m", None),
        ('{"target": "sofa", "direction": "ahead", "distance": 2, "verdict": "right"}', None),
        ('{"target": "sofa", "direction": "left", "direction": "ahead", "distance": 2}', None),
        ('{"target": "sofa", "direction": ["ahead"], "distance": 2}', None),
        ('{"direction": "ahead", "distance": 2}', None),
        ('{"target": "sofa"', None),
        ("{" * 5000, None),
    ],
)
def test_only_the_controlled_language_is_read(text, expected):
    assert NavigationEnv.read_claims(text, NavigationConfig()) == expected


@pytest.mark.parametrize(
    ("text", "brief", "full"),
    [
        (SOFA, 1.0, 0.7),
        ("sofa is ahead-left at 2.5 m", 1.0, 0.7),
        ("blue sofa is ahead at 2.5 m", 1.0, 0.7),  # 35 degrees off: slightly left is still ahead
        ("blue sofa is left at 2.5 m", 0.0, 0.0),
        ("blue sofa is ahead-left at 4 m", 0.0, 0.0),
        (f"{SOFA} . {RED}", 1.0, 0.7 + 0.3 * 2 / 4),
        (f"{SOFA} . red chair is left at 1.5 m", 0.7, 0.7),
        (f"{SOFA} . chair is ahead at 1.5 m . chair is ahead-right at 3 m", 1.0, 0.7 + 0.3 * 4 / 5),
        (
            f"{SOFA} . {RED} . white chair is ahead-right at 3 m . traffic cone is ahead at 4 m",
            1.0,
            1.0,
        ),
        (f"{SOFA} . table is behind at 2 m", 0.0, 0.0),  # not in view
        (f"{SOFA} . table is not in view", 0.0, 0.0),
        ("red sofa is ahead-left at 2.5 m", 0.0, 0.0),
        ("sofa is not in view", 0.0, 0.0),
        (f"{SOFA} . blue sofa is behind at 2.5 m", 0.0, 0.0),
        (f"{SOFA} . sofa is behind at 2.5 m", 0.0, 0.0),
        (f"{SOFA} . {RED} . red chair is behind at 1 m", 0.0, 0.0),
    ],
)
def test_scores(text, brief, full):
    assert score(text)[0] == pytest.approx(brief)
    assert score(text, detail="full")[0] == pytest.approx(full)


def test_in_front_is_never_read_as_a_side():
    """What is not understood is flagged: a cascade asks its language model then."""
    for text in ("blue sofa is right in front of me at 2.5 m", "sofa is right ahead, 2 m away"):
        assert score(text) == (None, ["not_understood"])


def test_that_the_target_is_out_of_view_is_worth_little_without_a_look():
    blind = "sofa is not in view"
    assert score(blind, UNSEEN)[0] == score(blind, UNSEEN, "full")[0] == pytest.approx(0.3)
    assert score(f"{blind} . {RED}", UNSEEN)[0] == 1.0
    assert score(f"{blind} . {RED}", UNSEEN, "full")[0] == pytest.approx(0.3 + 0.7 * 2 / 3)
    assert score(f"{blind} . red chair is left at 1.5 m", UNSEEN)[0] == pytest.approx(0.3)
    assert score(blind, ALONE)[0] == 1.0 and score(f"{blind} . {RED}", ALONE)[0] == 0.0
    assert score("blue sofa is behind-left at 2.5 m", UNSEEN)[0] == 0.0


@pytest.mark.parametrize("way", DIRECTIONS)
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_every_direction_means_what_the_state_means(way, rotation):
    offsets = {0: (0, 2), 45: (2, 2), 90: (2, 0), 135: (2, -2), 180: (0, -2)}
    offsets |= {225: (-2, -2), 270: (-2, 0), 315: (-2, 2)}
    east, north = offsets[(DIRECTIONS[way] + rotation) % 360]
    state = state_of(
        Pose(5.0, 5.0, rotation),
        [Sighting("bed", "red", 5.0 + east, 5.0 + north, True, is_target=True)],
    )
    distance = 2.0 if 0 in (east, north) else 3.0
    right = {w for w in DIRECTIONS if score(f"bed is {w} at {distance} m", state)[0] > 0}
    assert right == {way} and set(Direction.__args__) == set(DIRECTIONS)


def test_a_prediction_must_not_repeat_an_observation_that_no_longer_holds():
    nearer = state_of(
        Pose(0.0, 0.5, 0), [Sighting("sofa", "blue", -1.4, 2.0, True, is_target=True)]
    )
    for after, flags in ((nearer, ("prediction:copied_observation",)), (STATE, ())):
        verdict = judge_of("brief").score_sync(SOFA, SOFA, STATE, after)
        assert verdict.observation == 1.0 and verdict.flags == flags


@pytest.mark.parametrize("detail", ["full", "brief"])
def test_no_attack_is_paid(detail):
    config = envs.parse_env_config("Navigation", {"prompt_detail": detail, "render_mode": "text"})
    writer_class = writer_of("Navigation")
    assert writer_class
    writer = writer_class(config)
    texts = attacks(writer.plain(STATE), writer.plain(UNSEEN), "sofa")
    texts |= writer._attacks(STATE, UNSEEN)
    texts["list/every way"] = " . ".join(f"blue sofa is {way} at 2.5 m" for way in DIRECTIONS)
    texts["list/every kind"] = " . ".join(f"{kind} is not in view" for kind in ("sofa", "bed"))
    paid = {name: t for name, t in texts.items() for s in (STATE, UNSEEN) if score(t, s)[0]}
    assert len(texts) > 200 and not paid
