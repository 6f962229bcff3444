"""An episode in verl's agent loop, in this process: real environment and judge, given answers."""

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
from verl.workers.rollout.replica import TokenOutput

from vagen.config import load_infra
from vagen.engines.verl.agent_loop import EpisodeRow, PlayClient, VagenAgentLoop
from vagen.engines.verl.config import verl_config
from vagen.engines.verl.wire import Order, unpack_trajectory
from vagen.envs import make
from vagen.learning.rewards import turn_reward
from vagen.stages.build import build, load_levels
from vagen.stages.episodes import training_specs
from vagen.stages.judge import score
from vagen.stages.warm_start import warm_start

OVERRIDES = (
    "envs.game.env_config.prompt_format=grounding_worldmodeling",
    "judge.use_state_reward=true",
    "data.max_prompt_length=256",
    "data.max_response_length=128",
    "data.max_trajectory_length=1024",
    "warm_start.steps=1",
)


class ExpertServer(PlayClient):
    """Answers as an expert does who looks at the level's first state only."""

    answer: str

    async def generate(self, request_id: str, *, sampling_params: Any, **request: Any) -> Any:
        tokenizer = self.processor.tokenizer
        ids = tokenizer.encode(self.answer, add_special_tokens=False)
        ids.append(self.processor.eos_id)
        assert len(ids) <= sampling_params["max_new_tokens"]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


@pytest.fixture(scope="module")
def run(make_run):
    run = make_run(*OVERRIDES)
    build(run)
    warm_start(run)
    return run


def rows_played(run, experiment) -> list[EpisodeRow]:
    """One episode of the experiment on the run's first level."""
    infra = load_infra(None, ["device=cpu", "verl.rollout=torch", "verl.attention=sdpa"])
    client = ExpertServer(verl_config(experiment, infra, str(run.warm_start / "policy")))
    spec = training_specs(experiment, load_levels(run), 0)[0]
    env = make(spec.env_name, experiment.envs[spec.config_id].env_config)
    env.reset(seed=spec.level_seed)
    client.answer = env.expert_response()
    order = Order(spec, experiment.actor_rollout_ref.rollout, "train")
    return asyncio.run(VagenAgentLoop(server_manager=client).run({}, order=order.to_json()))


def test_a_finished_episode_is_judged_as_the_stage_judges_it(run) -> None:
    (row,) = rows_played(run, run.experiment)
    trajectory, images = unpack_trajectory(row.trajectory)
    assert set(images) == {digest for r in trajectory.rows for digest in r.images}
    assert [turn.verdict["observation"] for turn in trajectory.turns[:1]] == [1.0]
    turns = copy.deepcopy(trajectory.turns)
    for turn in trajectory.turns:
        turn.verdict = None
        turn.rewards |= {"judge_observation": None, "judge_prediction": None}
    score(run.experiment, [trajectory])
    assert trajectory.turns == turns


def test_a_judged_turn_is_not_judged_again(run) -> None:
    (row,) = rows_played(run, run.experiment)
    trajectory, _ = unpack_trajectory(row.trajectory)
    verdict = trajectory.turns[0].verdict | {"observation": 0.25}
    trajectory.turns[0].verdict = verdict
    metrics = score(run.experiment, [trajectory])
    assert trajectory.turns[0].verdict == verdict
    assert metrics["judge/observation"] < 1


def test_turn_rewards_are_on_the_last_token_of_each_turn(run) -> None:
    (row,) = rows_played(run, run.experiment)
    trajectory, _ = unpack_trajectory(row.trajectory)
    (tokens,) = trajectory.rows
    fields = row.as_dict()
    assert fields["prompts"].tolist() + fields["responses"].tolist() == tokens.input_ids.tolist()
    assert fields["response_mask"].tolist() == tokens.loss_mask[1:].tolist()
    expected = np.zeros(len(tokens.input_ids), np.float32)
    for turn in trajectory.turns:
        sampled = tokens.loss_mask & (tokens.turn_index == turn.turn_index)
        expected[np.flatnonzero(sampled)[-1]] = turn_reward(turn.rewards)
    assert np.count_nonzero(expected) == len(trajectory.turns)
    np.testing.assert_array_equal(fields["rm_scores"].numpy(), expected[1:])


def test_without_concatenation_each_row_has_the_reward_of_its_turn(run) -> None:
    experiment = run.experiment.model_copy(
        update={
            "rollout_manager": run.experiment.rollout_manager.model_copy(
                update={"context": "no_concat"}
            )
        }
    )
    rows = rows_played(run, experiment)
    trajectory, _ = unpack_trajectory(rows[0].trajectory)
    assert len(rows) == len(trajectory.rows) > 1
    assert not any(row.trajectory for row in rows[1:])
    found = [sum(row.token_rewards) for row in rows][: len(trajectory.turns)]
    assert found == pytest.approx([turn_reward(turn.rewards) for turn in trajectory.turns])


def test_a_prompt_that_is_too_long_is_told_to_the_driver(run) -> None:
    data = run.experiment.data.model_copy(update={"max_prompt_length": 8})
    (row,) = rows_played(run, run.experiment.model_copy(update={"data": data}))
    assert row.failure.startswith("RenderError: ")
    assert "data.max_prompt_length=8" in row.failure
    assert row.as_dict()["failure"] == row.failure
