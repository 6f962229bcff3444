"""The guard's judgement and memory, fed with metrics alone."""

import json
import math

import pytest

from vagen.config.trainer_options import GuardConfig
from vagen.learning.guard import Guard, GuardResult, GuardState, TrainingUnstable

ROLLOUT = {"train/success": 0.5, "train/action_is_valid": 0.9, "rollout/reward_std": 0.4}
UPDATE = {
    "actor/update_kl": 0.01,
    "actor/ppo_kl": 0.0,
    "actor/grad_norm": 0.5,
    "critic/grad_norm": 2.0,
    "actor/entropy": 0.3,
    "actor/loss": -0.01,
    "critic/loss": 0.4,
}
NAN = math.nan


def name(iteration: int) -> str:
    return f"iteration-{iteration:04d}" if iteration >= 0 else "warm_start"


def live(guard: Guard, iteration: int, rollout: dict, update: dict) -> GuardResult:
    """One iteration as the update stage runs it with the guard on; returns what decided."""
    verdict = guard.judge_rollout(rollout)
    learnt = verdict.ok
    if learnt:
        verdict = guard.judge_update(update)
    guard.record(name(iteration - 1), rollout, update if learnt else None, verdict)
    return verdict


def trained(iterations: int = 6, **options) -> Guard:
    """A guard after good iterations that are a little different from each other."""
    guard = Guard(GuardConfig(**options), GuardState(good="warm_start"))
    for i in range(iterations):
        shift = 1 + 0.05 * (-1) ** i
        assert live(guard, i, ROLLOUT, {k: v * shift for k, v in UPDATE.items()}).ok
    return guard


@pytest.mark.parametrize(
    ("rollout", "reason"),
    [
        ({"train/success": 0.19}, "success 0.19 is more than 0.3 below its median 0.5"),
        ({"train/action_is_valid": 0.59}, "invalid actions, 0.41, is more than 0.3 above"),
        ({"rollout/reward_std": 0.19}, "reward deviation 0.19 is below 0.5 of its median 0.4"),
        ({"train/success": NAN}, "success is nan"),
    ],
)
def test_a_bad_rollout_speaks_against_the_policy_that_played_it(rollout, reason):
    guard = trained(min_reward_std_factor=0.5)
    verdict = guard.judge_rollout(ROLLOUT | rollout)
    assert reason in verdict.reason and len(verdict.reasons) == 1
    assert verdict.condemns_start


@pytest.mark.parametrize(
    ("update", "reason", "condemns_start"),
    [
        ({"actor/update_kl": 0.6}, "KL 0.6 nats per token is above 0.5", False),
        ({"actor/update_kl": -0.6}, "KL 0.6 nats per token is above 0.5", False),
        ({"actor/ppo_kl": 0.6}, "KL 0.6 nats per token is above 0.5", False),
        ({"actor/grad_norm": 11.0}, "actor/grad_norm 11 is more than 20 times its median", False),
        ({"critic/grad_norm": 45.0}, "critic/grad_norm 45 is more than 20 times", False),
        ({"actor/grad_norm": NAN}, "every step of the actor was skipped", False),
        ({"actor/grad_norm": math.inf}, "actor/grad_norm is inf", False),
        ({"critic/loss": NAN}, "critic/loss is nan", False),
        ({"actor/update_kl": NAN}, "actor/update_kl is nan", False),
        ({"actor/entropy": 0.009}, "entropy 0.009 nats per token is below 0.01", True),
        ({"actor/entropy": 1.0}, "entropy 1 nats per token is more than 3 times", True),
    ],
)
def test_a_bad_update_speaks_against_itself_and_entropy_also_against_what_it_began_with(
    update, reason, condemns_start
):
    verdict = trained().judge_update(UPDATE | update)
    assert any(reason in found for found in verdict.reasons)
    assert verdict.condemns_start == condemns_start


@pytest.mark.parametrize(
    "rollout",
    [
        {"train/success": 0.21},
        {"train/action_is_valid": 0.61},
        {"rollout/reward_std": 0.0},
        {"train/success": 1.0, "train/action_is_valid": 1.0, "rollout/reward_std": 9.0},
    ],
)
def test_what_is_within_the_limits_is_good(rollout):
    assert trained().judge_rollout(ROLLOUT | rollout).ok


def test_limits_that_are_null_and_metrics_that_are_not_there_judge_nothing():
    guard = trained(
        max_kl=None,
        grad_norm_factor=None,
        min_entropy=None,
        max_entropy_factor=None,
        max_invalid_rise=None,
        max_success_drop=None,
    )
    assert guard.judge_rollout({"train/success": 0.0, "train/action_is_valid": 0.0}).ok
    assert guard.judge_update({"actor/update_kl": 9, "actor/entropy": 0, "actor/grad_norm": 1e9}).ok
    assert trained().judge_rollout({}).ok and trained().judge_update({}).ok


def test_medians_wait_for_enough_good_iterations():
    collapsed = {"train/success": 0.0, "train/action_is_valid": 0.0}
    assert trained(3).judge_rollout(collapsed).ok
    assert not trained(4).judge_rollout(collapsed).ok
    # An update counts only once the rollout after it was good, so its medians come one later.
    spike = {"actor/grad_norm": 1e6}
    assert trained(4).judge_update(spike).ok
    assert not trained(5).judge_update(spike).ok
    assert not trained(0).judge_update({"actor/update_kl": 0.6}).ok, "this limit needs no median"


def test_the_last_good_weights_are_the_newest_that_a_rollout_has_shown_to_be_good():
    guard = trained(6)
    assert guard.state.good == name(4), "update 5 was fine by itself, no rollout has shown it yet"
    # A spike: the policy it started from has just been seen, that is where to go back to.
    spike = live(guard, 6, ROLLOUT, UPDATE | {"actor/update_kl": 3.0})
    assert not spike.ok and guard.roll_back(spike) == name(5)
    # A collapse seen by the rollout: the update before it was the bad one.
    guard = trained(6)
    collapse = live(guard, 6, ROLLOUT | {"train/success": 0.0}, UPDATE)
    assert not collapse.ok and guard.roll_back(collapse) == name(4)
    # Entropy: the policy that the update began with had it already.
    guard = trained(6)
    flat = live(guard, 6, ROLLOUT, UPDATE | {"actor/entropy": 0.0})
    assert not flat.ok and guard.roll_back(flat) == name(4)
    # Nothing was shown to be good yet.
    guard = trained(0)
    first = live(guard, 0, ROLLOUT, UPDATE | {"actor/loss": NAN})
    assert guard.roll_back(first) == "warm_start"


def test_only_good_iterations_enter_the_medians():
    guard = trained(6, window=4)
    before = guard.state.to_dict()
    live(guard, 6, ROLLOUT | {"train/success": 0.0}, UPDATE)
    after = guard.state.to_dict()
    assert (after["rollouts"], after["updates"]) == (before["rollouts"], before["updates"])
    assert after["pending"] is None, "the update that led to the collapse is forgotten"
    live(guard, 7, ROLLOUT, UPDATE | {"actor/grad_norm": 1e6})
    assert guard.state.updates == before["updates"]
    assert len(guard.state.rollouts) == 4 and guard.state.pending is None
    live(guard, 8, ROLLOUT, UPDATE | {"actor/grad_norm": 0.123})
    assert all(entry["actor/grad_norm"] != 0.123 for entry in guard.state.updates)
    live(guard, 9, ROLLOUT, UPDATE)
    assert guard.state.updates[-1]["actor/grad_norm"] == 0.123


def test_each_rollback_lowers_the_rates_and_too_many_are_an_error():
    guard = trained(6, lr_factor=0.5, max_rollbacks=2)
    bad = GuardResult(("success 0 is more than 0.3 below its median 0.5",), condemns_start=True)
    guard.roll_back(bad)
    guard.roll_back(bad)
    assert (guard.state.rollbacks, guard.state.lr_scale) == (2, 0.25)
    with pytest.raises(TrainingUnstable, match=r"2 times \(trainer.guard.max_rollbacks\).*success"):
        guard.roll_back(bad)
    assert (guard.state.rollbacks, guard.state.lr_scale) == (2, 0.25)


def test_its_memory_survives_json_exactly():
    guard = trained(6)
    guard.roll_back(GuardResult(("x",)))
    again = GuardState(**json.loads(json.dumps(guard.state.to_dict())))
    assert again == guard.state
    twin = Guard(guard.config, again)
    for update in (UPDATE, UPDATE | {"actor/grad_norm": 9.99}, UPDATE | {"actor/grad_norm": 10.6}):
        assert twin.judge_update(update) == guard.judge_update(update)
