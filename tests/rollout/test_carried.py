"""Episodes that are stopped between turns and go on later: real environments, scripted answers."""

from dataclasses import replace

import numpy as np
import pytest
from scripted_episodes import LIMITS, WALK, ScriptedPolicy, environment, runner_for, spec

from vagen.rollout.batch_tables import decode, encode
from vagen.rollout.carried import carry_on, read_carried, write_carried
from vagen.rollout.runner import EpisodeLimits, EpisodeSpec, run_episode, run_to_end
from vagen.rollout.types import Status, Trajectory
from vagen.service import LocalEnv

SCRIPT = [WALK, [7] * 50, "<answer>Down</answer>", WALK]
"""The second answer is cut at its limit."""


@pytest.fixture(scope="module")
def processor(vl_model):
    return vl_model.processor


async def make_env(_: EpisodeSpec) -> LocalEnv:
    return LocalEnv(environment())


def played(
    policy: ScriptedPolicy, asked: EpisodeSpec, limits: EpisodeLimits, turns: int | None = None
) -> Trajectory:
    """The episode, stopped once the policy was asked so many times."""
    runner = runner_for(policy, limits)
    runner.stopped = lambda: turns is not None and len(policy.requests) >= turns
    return run_to_end(run_episode(runner, asked, make_env))


@pytest.mark.parametrize("window", [None, 1, 2])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_what_is_carried_on_ends_as_if_it_had_not_been_stopped(processor, tmp_path, turns, window):
    limits = replace(LIMITS, window=window)
    whole = played(ScriptedPolicy(processor, SCRIPT), spec(), limits)
    policy = ScriptedPolicy(processor, SCRIPT)
    first = played(policy, spec(), limits, turns)
    assert first.status is Status.UNFINISHED and len(first.turns) == turns
    assert len(policy.released) == len(first.rows), "no cache outlives the rollout"
    write_carried(tmp_path / "carried.json", [carry_on(spec(), first, "old"), spec("other")])
    begun, other = read_carried(tmp_path / "carried.json")
    assert other == spec("other") and begun == carry_on(spec(), first, "old")
    rest = ScriptedPolicy(processor, SCRIPT[turns:])
    second = played(rest, begun, limits)
    assert len(rest.requests) == LIMITS.max_turns - turns
    assert [turn.policy_version for turn in second.turns] == ["old"] * turns + [None] * (4 - turns)
    for turn in second.turns:
        turn.policy_version = None
    assert second.turns == whole.turns and second.score == whole.score
    for row, expected in zip(second.rows, whole.rows, strict=True):
        assert row.images == expected.images
        for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
            np.testing.assert_array_equal(getattr(row, name), getattr(expected, name))


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
    assert whole.truncated and whole.status is Status.OK and not silent.requests
    assert [t.policy_version for t in whole.turns] == ["first", "second", "third", "third"]


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


def test_tables_name_policies_only_where_they_may_differ(processor):
    trajectory = played(ScriptedPolicy(processor, SCRIPT), spec(), LIMITS)
    plain = encode([trajectory], {})["turns"].schema.names
    for turn, version in zip(trajectory.turns, ["a", "b", "b", None], strict=True):
        turn.policy_version = version
    tables = encode([trajectory], {})
    assert tables["turns"].schema.names == [*plain, "policy_version"]
    assert decode(tables)[0][0].turns == trajectory.turns
