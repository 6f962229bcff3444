"""The early stopping rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.config.trainer_options import EarlyStopConfig
from vagen.learning.early_stop import BASELINE, group_variance, stop_reason

VARIANCE = EarlyStopConfig(min_reward_variance=0.1, reward_variance_patience=3)
SUCCESS = EarlyStopConfig(min_val_success=0.01, val_success_patience=2)
FIRST = [2.0] * BASELINE


@given(st.lists(st.tuples(st.floats(-20, 20), st.sampled_from("abcd")), max_size=20))
def test_variance_is_the_mean_over_groups_of_numpys(pairs):
    groups = {g: [s for s, other in pairs if other == g] for _, g in pairs}
    expected = [np.var(scores) for scores in groups.values() if len(scores) > 1]
    found = group_variance([s for s, _ in pairs], [g for _, g in pairs])
    if expected:
        assert found == pytest.approx(np.mean(expected), abs=1e-9)
    else:
        assert found is None


def test_low_variance_stops_after_the_patience():
    low = [0.19] * 3
    assert stop_reason(VARIANCE, FIRST + low, []) == (
        "the variance of scores in a group was below 0.2, 0.1 of its first 10 iterations' mean, "
        "3 iterations in a row"
    )
    for history in (
        FIRST + low[:2],
        [*FIRST, *low[:2], 0.21, *low[:2]],
        [*FIRST, 0.2, 0.2, 0.2],
        [0.0] * 30,
        low,
        [],
    ):
        assert stop_reason(VARIANCE, history, []) is None
    assert stop_reason(VARIANCE, [*FIRST, 1.0, *low], []) is not None


def test_the_first_iterations_are_never_low_themselves():
    assert stop_reason(VARIANCE, [20.0] * 7 + [0.1] * 3, []) is None
    assert stop_reason(VARIANCE, [20.0] * 7 + [0.1] * 5, []) is None
    assert stop_reason(VARIANCE, [20.0] * 7 + [0.1] * 6, []) is not None


def test_no_success_stops_after_the_patience():
    reason = "validation success was below 0.01 2 times in a row"
    assert stop_reason(SUCCESS, [], [0.3, 0.0, 0.009]) == reason
    for validations in ([], [0.0], [0.0, 0.01], [0.0, 0.01, 0.0]):
        assert stop_reason(SUCCESS, [], validations) is None


def test_rules_that_are_null_stop_nothing():
    assert stop_reason(EarlyStopConfig(), FIRST + [0.0] * 50, [0.0] * 50) is None


def test_empty_batches_in_a_row_stop():
    config = EarlyStopConfig(empty_batches=2)
    reason = stop_reason(config, [], [], [True, False, True, True])
    assert reason == "the rollout filter left nothing to learn from 2 iterations in a row"
    for history in ([], [True], [True, True, False], [True, False, True]):
        assert stop_reason(config, [], [], history) is None
    assert stop_reason(EarlyStopConfig(), [], [], [True] * 50) is None
