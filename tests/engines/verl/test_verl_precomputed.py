"""Which rows are read early, and that nothing is read twice; the local engine's networks read."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from verl_stories import rows_of

from vagen.engines.verl.precomputed import PrecomputedOutputs
from vagen.engines.verl.rows import digest_of

RANKS = 2
CALLS = ("values", "reference", "logprobs")


@pytest.fixture
def story(make_engine, vl_batch):
    """`PrecomputedOutputs` over real networks, the engine, and reads of each row by call."""
    engine = make_engine()
    read: Counter = Counter()

    def compute(call, rows, images, batch):
        assert {digest_of(row) for row in rows} <= {digest_of(row) for row in batch}
        read.update((call, digest_of(row)) for row in rows)
        if call == "values":
            outputs = engine.values(rows, images)[0]
        else:
            outputs = engine.logprobs(rows, images, reference=call == "reference")
        return outputs, {"tokens": sum(len(row.input_ids) for row in rows), "seconds": 1.0}

    return PrecomputedOutputs(engine.config, compute, RANKS), engine, read


def test_what_was_read_early_is_read_no_more(story, vl_batch) -> None:
    early, engine, read = story
    images, trajectories = vl_batch.images, vl_batch.trajectories
    rows = rows_of(vl_batch)
    assert len(trajectories) > 2 * RANKS
    early.begin()
    early.answer(trajectories[:1], images)
    assert not read  # there is no row for the second rank
    early.answer(trajectories[1:2], images)
    early.answer(trajectories[2:5], images)
    begun = [row for trajectory in trajectories[:5] for row in trajectory.rows]
    assert read == Counter({(c, digest_of(r)): 1 for c in CALLS for r in begun})
    for call in CALLS:
        asked = rows if call == "values" else [row for row in rows if row.loss_mask.any()]
        found, measured = early.complete(call, asked, images)
        assert len(measured) == 3  # two parts, and what was left
        assert sum(m["tokens"] for m in measured) == sum(len(row.input_ids) for row in asked)
        expected = (
            engine.values(asked, images)[0]
            if call == "values"
            else engine.logprobs(asked, images, reference=call == "reference")
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        assert early.complete(call, asked[:1], images)[1] == []
    assert set(read.values()) == {1}


def test_rows_without_an_answer_are_read_for_their_values_alone(story, vl_batch) -> None:
    early, _, read = story
    silent = [
        replace(t, rows=[replace(r, loss_mask=np.zeros_like(r.loss_mask)) for r in t.rows])
        for t in vl_batch.trajectories
    ]
    early.answer(silent, vl_batch.images)
    assert {call for call, _ in read} == {"values"}


def test_other_weights_are_asked_again(story, vl_batch) -> None:
    early, _, read = story
    early.answer(vl_batch.trajectories, vl_batch.images)
    early.forget()
    _, measured = early.complete("values", rows_of(vl_batch), vl_batch.images)
    assert len(measured) == 1
    assert {n for (call, _), n in read.items() if call == "values"} == {2}


@pytest.mark.parametrize("given", [True, False])
def test_the_policy_is_asked_before_the_reference_or_neither(
    make_experiment, vl_batch, given
) -> None:
    """Neither where the rollout's log-probabilities are taken."""
    asked = []

    def compute(call, rows, images, batch):
        asked.append(call)
        return [np.zeros(len(row.input_ids), np.float32) for row in rows], {}

    words = (f"actor_rollout_ref.actor.use_rollout_log_probs={given}".lower(), "preset=grpo_mask")
    experiment = make_experiment(*words, "rollout_manager.n_trajectory=2")
    PrecomputedOutputs(experiment, compute, RANKS).answer(vl_batch.trajectories, vl_batch.images)
    assert asked == ([] if given else ["logprobs", "reference"])
