"""Episodes that are stopped between turns and go on later: real environments, scripted answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted_episodes import LIMITS, WALK, ScriptedPolicy, environment, runner_for, spec

from vagen.rollout.batch_tables import decode, encode
from vagen.rollout.carried import carry_on, read_carried, write_carried
from vagen.rollout.runner import EpisodeLimits, EpisodeSpec, run_episode, run_to_end
from vagen.rollout.types import SectionScores, Status, Trajectory, Verdict
from vagen.service import LocalEnv

SCRIPT = [WALK, [7] * 50, "<answer>Down</answer>", WALK]
"""The second answer is cut at its limit."""
DROP = "<memory>drop</memory>"


@pytest.fixture(scope="module")
def processor(vl_model):
    return vl_model.processor


def played(
    policy: ScriptedPolicy,
    asked: EpisodeSpec,
    limits: EpisodeLimits,
    turns: int | None = None,
    **options: Any,
) -> Trajectory:
    """The episode, stopped once the policy was asked so many times."""
    runner = runner_for(policy, limits)
    runner.stopped = lambda: turns is not None and len(policy.requests) >= turns

    async def make_env(_: EpisodeSpec) -> LocalEnv:
        return LocalEnv(environment(**options))

    return run_to_end(run_episode(runner, asked, make_env))


@pytest.mark.parametrize("window", [None, 1, 2, "compact", "gate"])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_what_is_carried_on_ends_as_if_it_had_not_been_stopped(processor, tmp_path, turns, window):
    compact, gate = window == "compact", window == "gate"
    size = 2 if compact or gate else window
    limits = replace(LIMITS, window=size, compact=compact, gate=gate, max_response_length=24)
    count = 5 if compact else 4
    script = [text + DROP if gate and text == WALK else text for text in SCRIPT]
    whole = played(ScriptedPolicy(processor, script), spec(), limits, memory=gate)
    policy = ScriptedPolicy(processor, script)
    first = played(policy, spec(), limits, turns, memory=gate)
    assert first.status is Status.UNFINISHED and len(first.turns) == turns
    assert len(policy.released) == len(first.rows), "no cache outlives the rollout"
    write_carried(tmp_path / "carried.json", [carry_on(spec(), first, "old"), spec("other")])
    begun, other = read_carried(tmp_path / "carried.json")
    assert other == spec("other") and begun == carry_on(spec(), first, "old")
    rest = ScriptedPolicy(processor, script[turns:])
    second = played(rest, begun, limits, memory=gate)
    assert len(rest.requests) == count - turns
    versions = [turn.policy_version for turn in second.turns]
    assert versions == ["old"] * turns + [None] * (count - turns)
    for turn in second.turns:
        turn.policy_version = None
    assert second.turns == whole.turns and second.score == whole.score
    for row, expected in zip(second.rows, whole.rows, strict=True):
        assert row.images == expected.images
        for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
            np.testing.assert_array_equal(getattr(row, name), getattr(expected, name))
    assert len(whole.rows) == {None: 1, 1: 5, 2: 4, "compact": 2, "gate": 3}[window]


def test_it_may_be_carried_on_more_than_once(processor):
    """Each turn keeps its policy's name; stopped before it is where it was, it loses nothing."""
    begun = carry_on(spec(), played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS, 1), "first")
    stopped = played(ScriptedPolicy(processor, SCRIPT), begun, LIMITS, 0)
    assert not stopped.turns and not stopped.rows
    assert carry_on(begun, stopped, "second") == begun
    again = carry_on(
        begun, played(ScriptedPolicy(processor, SCRIPT[1:]), begun, LIMITS, 1), "second"
    )
    assert [answer.policy_version for answer in again.answers] == ["first", "second"]
    finished = carry_on(again, played(ScriptedPolicy(processor, [WALK]), again, LIMITS), "third")
    silent = ScriptedPolicy(processor, [])
    whole = played(silent, finished, LIMITS)
    assert {turn.verdict for turn in whole.turns} == {None}
    assert whole.truncated and whole.status is Status.OK and not silent.requests
    assert [t.policy_version for t in whole.turns] == ["first", "second", "third", "third"]


def test_what_the_judge_has_said_of_a_finished_episode_is_not_asked_again(processor, tmp_path):
    """It waits for the others of its group, and is played again to its end."""
    first = played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS)
    verdict = Verdict(1.0, 0.0, ("prediction:unread",), second=SectionScores(observation=0.5))
    first.turns[1].verdict = verdict
    write_carried(tmp_path / "carried.json", [carry_on(spec(), first, "old")])
    (begun,) = read_carried(tmp_path / "carried.json")
    again = played(ScriptedPolicy(processor, []), begun, LIMITS)
    assert [turn.verdict for turn in again.turns] == [None, verdict, None, None]
    assert carry_on(begun, again, "new") == begun


def test_an_environment_that_goes_another_way_is_answered_anew(processor):
    begun = carry_on(spec(), played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS, 3), "old")
    answers = [begun.answers[0], replace(begun.answers[1], images=["0" * 64]), begun.answers[2]]
    policy = ScriptedPolicy(processor, [WALK])
    found = played(policy, replace(begun, answers=tuple(answers)), LIMITS)
    assert [turn.policy_version for turn in found.turns] == ["old", None, None, None]
    assert len(policy.requests) == 3


def test_a_failed_environment_leaves_what_was_there_before(processor):
    begun = carry_on(spec(), played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS, 2), "old")
    trajectory = played(ScriptedPolicy(processor, SCRIPT), begun, LIMITS)
    assert carry_on(begun, replace(trajectory, status=Status.ENV_ERROR), "new") == begun


def test_an_episode_that_is_stopped_before_it_begins_makes_no_environment(processor):
    runner = runner_for(ScriptedPolicy(processor, SCRIPT))
    runner.stopped = lambda: True

    async def never(_: EpisodeSpec) -> LocalEnv:
        raise AssertionError("an environment was made")

    found = run_to_end(run_episode(runner, spec(), never))
    assert found.status is Status.UNFINISHED and not found.turns and found.error is None


def test_tables_tell_summaries_only_where_there_are_any(processor):
    plain = played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS)
    compact = played(
        ScriptedPolicy(processor, SCRIPT), spec(), replace(LIMITS, window=2, compact=True)
    )
    tables = encode([compact], {})
    assert tables["turns"].schema.names == [*encode([plain], {})["turns"].schema.names, "summary"]
    assert decode(tables)[0][0].turns == compact.turns
    assert [turn.summary for turn in compact.turns] == [False, False, True, False, False]


def test_tables_name_policies_only_where_they_may_differ(processor):
    trajectory = played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS)
    plain = encode([trajectory], {})["turns"].schema.names
    for turn, version in zip(trajectory.turns, ["a", "b", "b", None], strict=True):
        turn.policy_version = version
    tables = encode([trajectory], {})
    assert tables["turns"].schema.names == [*plain, "policy_version"]
    assert decode(tables)[0][0].turns == trajectory.turns
