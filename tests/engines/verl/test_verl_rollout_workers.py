"""An episode as a player plays it, in this process: real environment and judge, given answers."""

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf
from thinking_templates import QWEN3_THINKING, with_template
from verl.workers.rollout.replica import TokenOutput

from vagen.engines.local.generation import LocalPolicy
from vagen.engines.verl.config import verl_config
from vagen.engines.verl.rollout_workers import RolloutWorker, ServerClient, unpack_trajectory
from vagen.engines.verl.torch_server import TorchServer
from vagen.envs import make
from vagen.experiment.load import load_infra
from vagen.judge.batch import score
from vagen.models.processor import load_processor
from vagen.rollout.conversation import RenderError
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import play
from vagen.rollout.types import Trajectory, TurnRewards
from vagen.stages.build import build, load_levels
from vagen.stages.warm_start import warm_start

OVERRIDES = (
    "envs.game.env_config.prompt_format=grounding_worldmodeling",
    "judge.use_state_reward=true",
    "data.max_prompt_length=256",
    "data.max_response_length=128",
    "data.max_trajectory_length=1024",
    "warm_start.steps=1",
)


class ExpertServer(ServerClient):
    """Answers as an expert does who looks at the level's first state only."""

    answer: str

    async def generate(self, request_id: str, *, sampling_params: Any, **request: Any) -> Any:
        processor = load_processor(self.config.actor_rollout_ref.model.path)
        ids = processor.tokenizer.encode(self.answer, add_special_tokens=False)
        ids.append(processor.eos_id)
        assert len(ids) <= sampling_params["max_new_tokens"]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


@pytest.fixture(scope="module")
def run(make_run):
    run = make_run(*OVERRIDES)
    build(run)
    warm_start(run)
    return run


def played(run, experiment) -> tuple[Trajectory, dict[str, bytes]]:
    """One episode of the experiment on the run's first level."""
    infra = load_infra(None, ["device=cpu", "verl.rollout=torch"])
    config = verl_config(experiment, infra, str(run.warm_start / "policy"))
    OmegaConf.resolve(config)
    client = ExpertServer(config)
    spec = training_specs(experiment, load_levels(run), 0)[0]
    env = make(spec.env_name, experiment.envs[spec.config_id].env_config)
    env.reset(seed=spec.level_seed)
    client.answer = env.expert_response()
    player = RolloutWorker(client, experiment, infra)
    sampling = experiment.actor_rollout_ref.rollout
    return unpack_trajectory(asyncio.run(player.play(spec, sampling, "train")))


def test_a_finished_episode_is_judged_as_the_stage_judges_it(run) -> None:
    trajectory, images = played(run, run.experiment)
    assert set(images) == {digest for r in trajectory.rows for digest in r.images}
    assert [turn.verdict.observation for turn in trajectory.turns[:1]] == [1.0]
    turns = copy.deepcopy(trajectory.turns)
    for turn in trajectory.turns:
        turn.verdict = None
        turn.rewards = TurnRewards(turn.rewards.env, turn.rewards.format)
    score(run.experiment, [trajectory])
    assert trajectory.turns == turns


@pytest.mark.parametrize("seeds", [True, False])
def test_vllm_gets_the_seeds_of_requests_or_none(run, seeds) -> None:
    asked: list[Any] = []

    class Server(ServerClient):
        async def generate(self, request_id: str, *, sampling_params: Any, **_: Any) -> Any:
            asked.append(sampling_params["seed"])
            return TokenOutput(token_ids=[0], log_probs=[-0.5])

    infra = load_infra(None, ["device=cpu", f"verl.request_seeds={str(seeds).lower()}"])
    config = verl_config(run.experiment, infra, str(run.warm_start / "policy"))
    player = RolloutWorker(Server(config), run.experiment, infra)
    spec = training_specs(run.experiment, load_levels(run), 0)[0]
    asyncio.run(player.play(spec, run.experiment.actor_rollout_ref.rollout, "train"))
    assert asked and all((seed is not None) is seeds for seed in asked)


@pytest.mark.slow
def test_a_thought_is_closed_on_a_rollout_server_as_by_the_local_policy(
    run, vl_model, tmp_path
) -> None:
    """Both requests of a turn go to one conversation of the server."""
    vl_model.save(tmp_path)
    with_template(vl_model.processor, QWEN3_THINKING).tokenizer.save_pretrained(tmp_path)
    server = TorchServer(model_path=str(tmp_path), dtype="float32", slots=1)

    class InProcess(ServerClient):
        async def generate(self, request_id: str, **request: Any) -> Any:
            return await server.generate(request_id=request_id, **request)

        def release(self, request_id: str) -> None:
            server._live.discard(request_id)
            server.policy.release(request_id)
            server._free.release()

    manager = run.experiment.rollout_manager.model_copy(update={"thinking_budget": 3})
    experiment = run.experiment.model_copy(update={"rollout_manager": manager})
    infra = load_infra(None, ["device=cpu", "verl.rollout=torch"])
    config = verl_config(experiment, infra, str(tmp_path))
    OmegaConf.resolve(config)
    spec = training_specs(experiment, load_levels(run), 0)[0]
    sampling = experiment.actor_rollout_ref.rollout
    player = RolloutWorker(InProcess(config), experiment, infra)
    served, _ = unpack_trajectory(asyncio.run(player.play(spec, sampling, "train")))
    (local,), _ = play(
        experiment,
        [spec],
        policy=LocalPolicy(server.language_model, slots=1),
        processor=player.processor,
        sampling=sampling,
        split="train",
    )
    assert any(turn.thought_cut for turn in served.turns)
    assert [t.thought_length for t in served.turns] == [t.thought_length for t in local.turns]
    for a, b in zip(served.rows, local.rows, strict=True):
        for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
            assert (getattr(a, name) == getattr(b, name)).all()


def test_a_judged_turn_is_not_judged_again(run) -> None:
    trajectory, _ = played(run, run.experiment)
    verdict = replace(trajectory.turns[0].verdict, observation=0.25)
    trajectory.turns[0].verdict = verdict
    metrics = score(run.experiment, [trajectory])
    assert trajectory.turns[0].verdict == verdict
    assert metrics["judge/observation"] < 1


def test_a_prompt_that_is_too_long_is_refused(run) -> None:
    data = run.experiment.data.model_copy(update={"max_prompt_length": 8})
    with pytest.raises(RenderError, match=r"data\.max_prompt_length=8"):
        played(run, run.experiment.model_copy(update={"data": data}))
