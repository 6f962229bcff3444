"""Real episodes through verl: Ray, two ranks, two servers, processes that play."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from verl_stories import kill_while_playing

from vagen.engines.local.engine import LocalEngine
from vagen.engines.verl.errors import RolloutError
from vagen.engines.verl.rollout_workers import ServerClient, play, start_players
from vagen.engines.verl.torch_server import server_name
from vagen.experiment.load import load_infra
from vagen.rollout.conversation import RenderError
from vagen.rollout.episodes import training_specs
from vagen.rollout.types import Status, Trajectory
from vagen.stages.build import load_levels
from vagen.stages.format_probe import FormatNotKept, probe_format

pytestmark = pytest.mark.slow

PLAYED = ("preset=grpo_mask", "rollout_manager.n_trajectory=2", "data.train_batch_size=3")
NO_CONCAT = (*PLAYED, "rollout_manager.context=no_concat")
COMPACT = (*PLAYED, "rollout_manager.context=compact", "rollout_manager.window_size=1")


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


def test_the_format_probe_reads_the_same_answers_as_on_the_local_engine(
    engine, make_experiment, warm_runs, model_dir
) -> None:
    hot = "actor_rollout_ref.rollout.temperature=3"
    words = ("trainer.format_probe=4", "trainer.format_probe_min=1.0", hot)
    experiment = make_experiment(*PLAYED, *words)
    local = LocalEngine(experiment, model_dir, device=torch.device("cpu"))
    told = []
    for one in (engine, local):
        with pytest.raises(FormatNotKept) as stopped:
            probe_format(experiment, one, load_levels(warm_runs["tiny:vl"]))
        told.append(str(stopped.value))
    assert told[0] == told[1]


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
        ray.get(server.clear_kv_cache.remote())
    disturbed, _ = engine.play(specs, sampling=sampling, split="train")
    assert disturbed[0].rows[0].input_ids.tolist() != before[0].rows[0].input_ids.tolist()
    engine.groups.weights_changed()
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


def players_of(engine, experiment) -> list[Any]:
    """Players of another experiment, on the engine's servers."""
    client = engine.groups.servers.get_client(client_cls=ServerClient)
    return start_players(client, experiment, load_infra(None, ["verl.agent_workers=1"]))


@pytest.mark.parametrize("words", [NO_CONCAT, COMPACT], ids=["no_concat", "compact"])
def test_contexts_of_several_rows_are_those_of_the_local_engine(
    engine, make_experiment, warm_runs, model_dir, words
) -> None:
    experiment = make_experiment(*words)
    specs = specs_of(experiment, warm_runs)
    sampling = experiment.actor_rollout_ref.rollout
    found, _ = play(players_of(engine, experiment), specs, sampling=sampling, split="train")
    assert_same(found, by_local_engine(experiment, model_dir, specs)[0])
    assert max(len(trajectory.rows) for trajectory in found) > 1
    summaries = any(turn.summary for trajectory in found for turn in trajectory.turns)
    assert summaries == (words is COMPACT)


def test_a_prompt_that_is_too_long_is_told_to_the_driver(
    engine, make_experiment, warm_runs
) -> None:
    experiment = make_experiment(*PLAYED, "data.max_prompt_length=8")
    specs, sampling = specs_of(experiment, warm_runs), experiment.actor_rollout_ref.rollout
    with pytest.raises(RenderError, match=r"data\.max_prompt_length=8"):
        play(players_of(engine, experiment), specs, sampling=sampling, split="train")


def test_a_mistake_is_told_with_its_place_and_ends_nothing(
    engine, make_experiment, warm_runs
) -> None:
    experiment = make_experiment(*PLAYED)
    specs = specs_of(experiment, warm_runs)[:2]
    with pytest.raises(RolloutError, match=r"(?s)an episode broke off.*in play.*AttributeError"):
        engine.play(specs, sampling=None, split="train")
    engine.play(specs, sampling=experiment.actor_rollout_ref.rollout, split="train")


def test_a_player_killed_while_playing_is_one_clear_error(
    engine, make_experiment, warm_runs
) -> None:
    experiment = make_experiment(*PLAYED)
    specs, sampling = specs_of(experiment, warm_runs), experiment.actor_rollout_ref.rollout
    kill_while_playing(engine, "player 0", specs, sampling)
