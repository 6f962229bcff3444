"""Rollouts of verl's vLLM servers (`make test-vllm`): what they sample and what they say of it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from ray_cluster import ray_files
from verl_stories import started

from vagen.rollout.episodes import training_specs
from vagen.stages.build import load_levels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed; `make test-vllm` installs it",
    ),
]

PLAYED = ("preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=3")


@pytest.fixture(scope="module")
def model_dir(warm_runs) -> Path:
    return warm_runs["tiny:vl"].warm_start / "policy"


@pytest.fixture(scope="module")
def shared_memory():
    """Removes what verl's transfer of weights to vLLM leaves there."""
    blocks = Path("/dev/shm")
    before = set(blocks.glob("psm_*"))
    yield
    for block in set(blocks.glob("psm_*")) - before:
        block.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def engine(shared_memory, make_experiment, model_dir):
    with ray_files(), started(make_experiment(*PLAYED), model_dir, "verl.rollout=vllm") as engine:
        yield engine


@pytest.fixture(scope="module")
def specs(make_experiment, warm_runs):
    return training_specs(make_experiment(*PLAYED), load_levels(warm_runs["tiny:vl"]), 0)


def test_probabilities_are_those_of_the_trainer_and_seeds_decide(engine, specs) -> None:
    sampling = engine.config.actor_rollout_ref.rollout
    first, images = engine.play(specs, sampling=sampling, split="train")
    rows = [row for trajectory in first for row in trajectory.rows]
    trained = engine.logprobs(rows, images)
    rollout = np.concatenate([row.rollout_logprobs[row.loss_mask] for row in rows])
    actor = np.concatenate([x[row.loss_mask] for x, row in zip(trained, rows, strict=True)])
    assert np.corrcoef(np.exp(rollout), np.exp(actor))[0, 1] >= 0.99
    np.testing.assert_allclose(rollout, actor, atol=0.1)
    sampled = {token for row in rows for token in row.input_ids[row.loss_mask].tolist()}
    assert not sampled & set(engine.processor.banned_ids)
    again, _ = engine.play(specs, sampling=sampling, split="train")
    for trajectory, other in zip(first, again, strict=True):
        for row, same in zip(trajectory.rows, other.rows, strict=True):
            assert row.input_ids.tolist() == same.input_ids.tolist()


def test_an_update_reaches_the_servers(engine, specs) -> None:
    sampling = engine.config.actor_rollout_ref.rollout
    before, images = engine.play(specs, sampling=sampling, split="train")
    rows = [row for trajectory in before for row in trajectory.rows]
    for row in rows:
        row.columns["old_logprobs"] = row.rollout_logprobs
        row.columns["advantages"] = np.where(row.loss_mask, np.float32(1), np.float32(0))
        row.columns["ref_logprobs"] = row.rollout_logprobs
    engine.update(rows, images, seed=0)
    after, images = engine.play(specs, sampling=sampling, split="train")
    rows = [row for trajectory in after for row in trajectory.rows]
    trained = engine.logprobs(rows, images)
    for row, values in zip(rows, trained, strict=True):
        found = row.rollout_logprobs[row.loss_mask]
        np.testing.assert_allclose(found, values[row.loss_mask], atol=0.1)
