"""Real episodes through verl: Ray, two ranks, two servers, processes that play."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from omegaconf import OmegaConf, open_dict

from vagen.engines.local.engine import LocalEngine
from vagen.engines.verl import rollout
from vagen.engines.verl.agent_loop import PlayClient, PlayManager
from vagen.engines.verl.torch_server import server_name
from vagen.rollout.types import Status, Trajectory
from vagen.stages.build import load_levels
from vagen.stages.episodes import training_specs

pytestmark = pytest.mark.slow

PLAYED = ("preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=3")
NO_CONCAT = (*PLAYED, "rollout_manager.context=no_concat")


@pytest.fixture(scope="module")
def model_dir(warm_runs) -> Path:
    return warm_runs["tiny:vl"].warm_start / "policy"


@pytest.fixture(scope="module")
def engine(make_verl_engine, model_dir):
    return make_verl_engine(model_dir, *PLAYED, ranks=2)


def specs_of(experiment, warm_runs) -> list[Any]:
    return training_specs(experiment, load_levels(warm_runs["tiny:vl"]), 0)


def by_local_engine(
    experiment, model_dir: Path, specs
) -> tuple[list[Trajectory], dict[str, bytes]]:
    local = LocalEngine(experiment, model_dir, device=torch.device("cpu"))
    sampling = experiment.actor_rollout_ref.rollout
    return local.play(specs, sampling=sampling, split="train")


def assert_same(found: list[Trajectory], expected: list[Trajectory]) -> None:
    """All is equal, but for how the sums of a log-probability were rounded."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert replace(a, rows=[]) == replace(b, rows=[])
        for row, other in zip(a.rows, b.rows, strict=True):
            for name in ("input_ids", "loss_mask", "turn_index"):
                np.testing.assert_array_equal(getattr(row, name), getattr(other, name))
            assert row.images == other.images
            np.testing.assert_allclose(row.rollout_logprobs, other.rollout_logprobs, atol=2e-5)


def test_episodes_are_those_of_the_local_engine(
    engine, make_experiment, warm_runs, model_dir
) -> None:
    experiment = make_experiment(*PLAYED)
    specs = specs_of(experiment, warm_runs)
    finished: list[str] = []
    found, images = engine.play(
        specs,
        sampling=experiment.actor_rollout_ref.rollout,
        split="train",
        on_finish=lambda trajectory: finished.append(trajectory.trajectory_id),
    )
    expected, expected_images = by_local_engine(experiment, model_dir, specs)
    assert_same(found, expected)
    assert images == expected_images
    assert sorted(finished) == sorted(spec.trajectory_id for spec in specs)


def test_servers_play_with_the_weights_that_the_trainer_has(
    engine, make_experiment, warm_runs
) -> None:
    experiment = make_experiment(*PLAYED)
    sampling = experiment.actor_rollout_ref.rollout
    specs = specs_of(experiment, warm_runs)[:2]
    before, _ = engine.play(specs, sampling=sampling, split="train")
    for rank in range(2):
        server = ray.get_actor(server_name(rank))
        weight = torch.zeros_like(head_of(server))
        ray.get(server.update_weights.remote({"lm_head.weight": weight}))
        ray.get(server.finish_update.remote(0))
    disturbed, _ = engine.play(specs, sampling=sampling, split="train")
    assert disturbed[0].rows[0].input_ids.tolist() != before[0].rows[0].input_ids.tolist()
    engine.workers.weights_changed()
    again, _ = engine.play(specs, sampling=sampling, split="train")
    assert_same(again, before)


def head_of(server) -> torch.Tensor:
    read = server.__ray_call__.remote(
        lambda self: self.language_model.model.state_dict()["lm_head.weight"].clone()
    )
    return ray.get(read)


def test_a_weight_that_the_server_lacks_is_named(engine) -> None:
    server = ray.get_actor(server_name(0))
    with pytest.raises(ValueError, match="sent unknown"):
        ray.get(server.update_weights.remote({"unknown": torch.zeros(1)}))


def test_a_failing_environment_is_a_status(engine, make_experiment, warm_runs) -> None:
    experiment = make_experiment(*PLAYED)
    first, second = specs_of(experiment, warm_runs)[:2]
    impossible = replace(first, level_seed=-1)
    (failed, played), _ = engine.play(
        [impossible, second], sampling=experiment.actor_rollout_ref.rollout, split="train"
    )
    assert failed.status is Status.ENV_ERROR
    assert failed.error and not failed.rows
    assert played.status is not Status.ENV_ERROR


def test_without_concatenation_a_turn_is_a_row(
    engine, make_experiment, warm_runs, model_dir
) -> None:
    experiment = make_experiment(*NO_CONCAT)
    specs = specs_of(experiment, warm_runs)
    config = OmegaConf.create(engine.workers.config)
    with open_dict(config):
        config.actor_rollout_ref.rollout.custom.experiment = experiment.model_dump(mode="json")
    client = engine.workers.llm_server_manager.get_client(client_cls=PlayClient)
    client.config = config
    manager = PlayManager.create(config=config, llm_client=client, reward_loop_worker_handles=[])
    sampling = experiment.actor_rollout_ref.rollout
    found, _ = rollout.play(manager, specs, sampling=sampling, split="train")
    assert_same(found, by_local_engine(experiment, model_dir, specs)[0])
    assert max(len(trajectory.rows) for trajectory in found) > 1
