"""What a batch takes off its scores, near duplicates, and the alarm."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_batches import trajectories

from vagen.config import ConfigError
from vagen.config.judge_options import AlarmConfig
from vagen.judge.batch import score, watch
from vagen.judge.deductions import clusters, deduct
from vagen.judge.scoring import Scorer
from vagen.rollout.types import Trajectory

GROUNDED = {"prompt_format": "grounding_worldmodeling", "prompt_detail": "brief"}
ON = ("judge.use_state_reward=true",)
INFORMATION = "judge.information.enable=true"
REPETITION = "judge.repetition.enable=true"
TEMPLATE = "target is below and right"


def saying(write: Any, count: int = 120) -> list[Trajectory]:
    """Episodes in which every statement is what `write` makes of the state it speaks of."""
    made = trajectories(count)
    for trajectory in made:
        for turn in trajectory.turns:
            said, foreseen = write(turn.state), write(turn.next_state)
            turn.parsed = replace(turn.parsed, observation=said, prediction=foreseen)
    return made


def honest(state: dict[str, Any]) -> str:
    (row, column), (here, there) = state["target"], state["player"]
    vertical = "below" if row > here else "above" if row < here else "same row"
    horizontal = "right" if column > there else "left" if column < there else "same column"
    return f"target is {vertical} and {horizontal}"


def paid(made: list[Trajectory]) -> float:
    """Mean judge reward of a statement."""
    rewards = [
        reward or 0.0
        for trajectory in made
        for turn in trajectory.turns
        for reward in (turn.rewards.judge_observation, turn.rewards.judge_prediction)
    ]
    return sum(rewards) / len(rewards)


def test_a_template_earns_nothing_and_honest_texts_most_of_their_score(
    make_experiment: Any,
) -> None:
    experiment = make_experiment(*ON, INFORMATION, **GROUNDED)
    template, told = saying(lambda _: TEMPLATE), saying(honest)
    metrics = score(experiment, template, iteration=0)
    assert metrics["judge/observation"] > 0.2
    # Below zero: as a prediction it repeats the observation besides.
    assert metrics["judge/information"] < 0.05
    assert paid(template) < 0.025
    metrics = score(experiment, told, iteration=0)
    assert metrics["judge/observation"] == 1.0
    assert metrics["judge/information"] > 0.5
    assert paid(told) == pytest.approx(0.5 * metrics["judge/information"], abs=1e-6)


def test_an_evaluation_and_a_run_without_them_deduct_nothing(make_experiment: Any) -> None:
    made = saying(honest, 10)
    score(make_experiment(*ON, INFORMATION, REPETITION, **GROUNDED), made)
    assert paid(made) == 0.5
    made = saying(honest, 10)
    metrics = score(make_experiment(*ON, **GROUNDED), made, iteration=0)
    assert paid(made) == 0.5
    assert not any(turn.verdict and turn.verdict.deducted for t in made for turn in t.turns)
    assert "judge/information" not in metrics


def test_deductions_are_the_same_each_time_and_leave_out_the_own_episode(
    make_experiment: Any,
) -> None:
    experiment = make_experiment(*ON, INFORMATION, REPETITION, **GROUNDED)
    one, two = saying(honest, 30), saying(honest, 30)
    score(experiment, one, iteration=3)
    score(experiment, two, iteration=3)
    assert [turn.verdict for t in one for turn in t.turns] == [
        turn.verdict for t in two for turn in t.turns
    ]
    (alone,) = saying(honest, 1)
    score(experiment, [alone], iteration=0)
    assert all(turn.rewards.judge_observation == 0.5 for turn in alone.turns)


def test_repetition_charges_templates_and_not_honest_texts_that_are_alike(
    make_experiment: Any,
) -> None:
    experiment = make_experiment(*ON, REPETITION, **GROUNDED)
    template, told = saying(lambda _: TEMPLATE), saying(honest)
    charged = score(experiment, template, iteration=0)["judge/repetition_charge"]
    spared = score(experiment, told, iteration=0)["judge/repetition_charge"]
    assert charged > 0.25
    assert spared < 0.05


def test_texts_that_rules_cannot_read_are_counted_and_kept_as_they_are(
    make_experiment: Any,
) -> None:
    experiment = make_experiment(*ON, INFORMATION, **GROUNDED)
    made = saying(lambda _: "the glarf is below", 5)
    metrics = score(experiment, made, iteration=0)
    assert metrics["judge/not_compared"] == 20
    assert paid(made) == 0.0


def test_deductions_without_rules_do_nothing(make_experiment: Any) -> None:
    experiment = make_experiment(*ON, INFORMATION, **GROUNDED)
    assert deduct(experiment.judge, {}, saying(honest, 2), seed=0) == {"judge/not_compared": 0.0}
    assert Scorer(experiment).readers.keys() == {"game"}


def test_near_duplicates() -> None:
    texts = [
        "target is below and right",
        "The target is below, and right!",
        "target is below and left",
        "hole is below and right",
        "target is at row 1, column 2",
        "target is at row 2, column 1",
        "There, the target is below and right",
        "P _\n_ G",
        "P _\nG _",
    ]
    words = frozenset(["target", "hole", "below", "right", "left", "row", "column"])
    assert clusters(texts, words) == [0, 0, 1, 2, 3, 4, 0, 5, 6]
    alike = ["target below by a glarf and a frob", "target below by a glarf and a zork"]
    assert clusters(alike, words) == [0, 1]
    scene = "corner with ice beside wall under roof"
    assert clusters([f"{scene} red", f"{scene} blue", "corner red blue"], words) == [0, 0, 1]


@given(st.lists(st.text(max_size=30), max_size=20))
def test_any_texts_are_clustered_and_equal_ones_together(texts: list[str]) -> None:
    numbers = clusters([*texts, *texts], {"a", "left"})
    assert numbers[: len(texts)] == numbers[len(texts) :]
    assert sorted(set(numbers)) == list(range(len(set(numbers))))


def history(scores: list[float], successes: list[float]) -> list[dict[str, float]]:
    return [
        {"judge/observation": score, "judge/prediction": score, "train/success": success}
        for score, success in zip(scores, successes, strict=True)
    ]


RISING = [0.4, 0.4, 0.5, 0.5, 0.9, 0.9, 0.95, 0.95]


def test_alarm_sounds_where_scores_rise_and_success_falls() -> None:
    config = AlarmConfig(window=8)
    alarm = watch(config, history(RISING, RISING[::-1]))
    assert alarm is not None and alarm.raised
    assert alarm.rise == pytest.approx(0.475) and alarm.fall == pytest.approx(0.475)
    assert alarm.correlation < -0.9
    assert alarm.metrics()["judge/alarm"] == 1.0
    for scores, successes in ((RISING, RISING), (RISING[::-1], RISING), ([0.5] * 8, RISING[::-1])):
        quiet = watch(config, history(scores, successes))
        assert quiet is not None and not quiet.raised


def test_alarm_needs_a_full_window_of_iterations_with_both() -> None:
    rows = history(RISING, RISING[::-1])
    assert watch(AlarmConfig(window=9), rows) is None
    assert watch(AlarmConfig(window=8, enable=False), rows) is None
    assert watch(AlarmConfig(window=8), [*rows[:7], {"train/success": 0.0}]) is None
    for rise, fall in ((0.04, 0.5), (0.5, 0.04)):
        alarm = watch(
            AlarmConfig(window=8),
            history([0.2] * 4 + [0.2 + rise] * 4, [0.9] * 4 + [0.9 - fall] * 4),
        )
        assert alarm is not None and not alarm.raised


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("judge.gate=false", "judge.type=cascade"), "judge.gate"),
        ((INFORMATION, "judge.type=llm"), "judge.information.enable"),
        ((REPETITION, "judge.type=llm"), "judge.repetition.enable"),
        ((INFORMATION, "judge.above_chance=true"), "judge.above_chance"),
    ],
)
def test_defences_that_cannot_work_are_refused(
    options: tuple[str, ...], message: str, make_experiment: Any
) -> None:
    endpoint = ("judge.llm.base_url=http://localhost:1/v1", "judge.llm.model=m")
    with pytest.raises(ConfigError, match=message):
        make_experiment(*ON, *options, *endpoint, **GROUNDED)


def test_of_the_texts_said_most_those_hardly_right_cost(make_experiment: Any) -> None:
    """As VAGEN has it: -.1 in the score, whatever the text earned; what is right is spared."""
    experiment = make_experiment(*ON, "judge.repetition.top_k=1", **GROUNDED)
    made = saying(lambda _: TEMPLATE)
    metrics = score(experiment, made, iteration=0)
    assert metrics.keys() & {"judge/refused_repeats", "judge/not_compared"} == {
        "judge/refused_repeats"
    }
    seen = set()
    for turn in (turn for trajectory in made for turn in trajectory.turns):
        assert turn.verdict is not None and turn.verdict.observation is not None
        hardly = turn.verdict.observation < 0.35
        expected = -0.1 if hardly else turn.verdict.observation
        assert turn.rewards.judge_observation == pytest.approx(0.5 * expected)
        seen.add(hardly)
    assert seen == {True, False}
    told = saying(honest)
    assert score(experiment, told, iteration=0)["judge/refused_repeats"] == 0.0
