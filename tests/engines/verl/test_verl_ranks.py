"""Two ranks on two Ray nodes compute what one does; a run outlives the death of a rank."""

import numpy as np
import pytest
from ray_cluster import nodes
from verl_stories import OVERRIDES, go_on, started

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def resumed(two_ranks, one_rank, make_experiment, vl_dir, vl_batch):
    """The second update of a new engine with two ranks, from either checkpoint."""
    with nodes(2) as settings, started(make_experiment(*OVERRIDES), vl_dir, *settings) as engine:
        return [go_on(engine, vl_batch, story.checkpoint) for story in (two_ranks, one_rank)]


def test_two_ranks_compute_what_one_does(two_ranks, one_rank):
    for ours, theirs in zip(one_rank.values, two_ranks.values, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert one_rank.first.keys() == two_ranks.first.keys()
    for name, value in one_rank.first.items():
        assert two_ranks.first[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for name in ("actor/loss", "critic/loss"):
        assert two_ranks.first[name] == pytest.approx(one_rank.first[name], abs=1e-4)


def test_a_rank_killed_while_learning_is_one_clear_error(two_ranks):
    victim, (error, again) = two_ranks.found["victim"], two_ranks.found["errors"]
    assert error == again
    assert error.startswith(f"rank 1 died (process {victim.pid} on {victim.node}, log ")
    assert victim.log in error and error.endswith("goes on from its last checkpoint")
    assert "rank 0" not in error and "\n" not in error


def test_after_it_the_last_checkpoint_goes_on_as_if_nothing_had_been(two_ranks, resumed):
    metrics, logprobs = resumed[0]
    assert metrics == two_ranks.second[0]
    for found, undisturbed in zip(logprobs, two_ranks.second[1], strict=True):
        np.testing.assert_array_equal(found, undisturbed)


def test_two_ranks_go_on_from_what_one_wrote(one_rank, resumed):
    metrics, logprobs = resumed[1]
    for name, value in one_rank.second[0].items():
        assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for found, theirs in zip(logprobs, one_rank.second[1], strict=True):
        np.testing.assert_allclose(found, theirs, atol=1e-4)
