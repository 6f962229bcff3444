"""Template collapse of a real policy on the batch it played."""

import copy

import numpy as np
import pytest

from vagen.engines.collapse import cross_logprobs, first_turns, is_due, measure
from vagen.engines.columns import add_columns
from vagen.rollout.types import Status

FREQUENT = ("trainer.template_collapse_freq=2", "trainer.template_collapse_samples=4")


def test_it_is_measured_every_so_many_iterations(make_experiment):
    config = make_experiment(*FREQUENT)
    assert [is_due(config, i) for i in range(4)] == [True, False, True, False]
    assert not is_due(make_experiment(), 0)


def test_first_turns_are_the_prompts_and_answers_of_different_levels(batch):
    turns = first_turns(batch.trajectories, 4)
    assert len(turns) == 4 and len(first_turns(batch.trajectories, 99)) == 6
    for turn, trajectory in zip(turns, batch.trajectories, strict=False):
        row = trajectory.rows[0]
        ids = np.concatenate([turn.prompt_ids, turn.response_ids])
        np.testing.assert_array_equal(ids, row.input_ids[: len(ids)])
        assert len(turn.images) == 1 and turn.images == row.images[:1]
        assert len(turn.response_ids) == (row.loss_mask & (row.turn_index == 0)).sum() > 0
    twins = [batch.trajectories[0], copy.deepcopy(batch.trajectories[0]), batch.trajectories[1]]
    assert len(first_turns(twins, 4)) == 2
    failed = copy.deepcopy(batch.trajectories[0])
    failed.status, failed.rows = Status.ENV_ERROR, []
    assert len(first_turns([failed, *batch.trajectories[1:]], 99)) == 5


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
def test_a_response_behind_its_own_prompt_has_the_probability_it_was_sampled_with(
    make_engine, batch_dirs, model
):
    from vagen.rollout.batch import TrajectoryBatch

    batch = TrajectoryBatch.load(batch_dirs[model])
    turns = first_turns(batch.trajectories, 5)
    cross = cross_logprobs(make_engine(model=model), turns, batch.images)
    for j, trajectory in enumerate(batch.trajectories[:5]):
        row = trajectory.rows[0]
        first = row.loss_mask & (row.turn_index == 0)
        assert cross[j, j] == pytest.approx(row.rollout_logprobs[first].sum(), abs=1e-3)
    assert (cross < 0).all() and np.ptp(cross, axis=0).max() > 0.01, "prompts differ"


def test_measuring_changes_nothing_else(make_engine, make_experiment, batch):
    config = make_experiment(*FREQUENT)
    engine = make_engine()
    plain = copy.deepcopy(batch.trajectories)
    expected = add_columns(config, engine, plain, batch.images)
    metrics = measure(config, engine, batch.trajectories, batch.images)
    assert metrics["collapse/samples"] == 4
    assert 0.0 < metrics["collapse/retrieval_accuracy"] <= 1.0
    assert metrics["collapse/mutual_information"] <= np.log(4)
    assert metrics["collapse/entropy"] - metrics["collapse/conditional_entropy"] == pytest.approx(
        metrics["collapse/mutual_information"]
    )
    assert measure(config, engine, batch.trajectories, batch.images) == metrics
    again = copy.deepcopy(batch.trajectories)
    assert add_columns(config, engine, again, batch.images) == expected
    for a, b in zip(plain, again, strict=True):
        for name, column in a.rows[0].columns.items():
            np.testing.assert_array_equal(column, b.rows[0].columns[name])


def test_of_less_than_two_levels_there_is_no_measure(make_engine, make_experiment, batch):
    assert measure(make_experiment(*FREQUENT), make_engine(), batch.trajectories[:1], {}) == {}
