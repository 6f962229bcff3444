"""The same experiment in process, in workers and behind the service: the same trajectories."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vagen.config.infra import EnvironmentsConfig
from vagen.config.schema import SamplingConfig
from vagen.rollout.play import check_rendering, make_environment, make_runner, play
from vagen.rollout.runner import EpisodeSpec, run_to_end
from vagen.rollout.types import Generation, Sampling, Status, Trajectory
from vagen.service import Environments, client, environments_of

pytestmark = pytest.mark.slow

GREEDY = SamplingConfig(temperature=0.0)
OVERRIDES = ("actor_rollout_ref.rollout.max_concurrency=4",)


class SeededPolicy:
    """Answers that are a function of the turn's seed: good moves, bad ones and broken tags."""

    def __init__(self, processor: Any):
        self.processor = processor

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], images: list[Any], sampling: Sampling
    ) -> Generation:
        draws = np.random.default_rng(sampling.seed)
        word = draws.choice(["Up", "Down", "Left", "Right", "Jump"])
        text = f"<answer>{word}</answer>" if draws.random() < 0.9 else "<answer>"
        await asyncio.sleep(0)
        ids = [*self.processor.tokenizer.encode(text, add_special_tokens=False)]
        return Generation([*ids, self.processor.eos_id], [-0.5] * (len(ids) + 1), "stop")

    def release(self, request_id: str) -> None:
        pass


def experiment(make_experiment: Any) -> Any:
    return make_experiment(*OVERRIDES, prompt_format="no_think", render_mode="vision")


def specs(config: Any, count: int) -> list[EpisodeSpec]:
    (config_id,) = config.envs
    return [
        EpisodeSpec(f"e{k}", f"g{k}", config_id, "FrozenLake", "digest", k, 100 + k)
        for k in range(count)
    ]


def played(config: Any, processor: Any, place: EnvironmentsConfig, count: int = 12) -> Any:
    trajectories, images = play(
        config,
        specs(config, count),
        policy=SeededPolicy(processor),
        processor=processor,
        sampling=GREEDY,
        split="train",
        environments=place,
    )
    return [plain(t) for t in trajectories], images


def plain(trajectory: Trajectory) -> Any:
    """A trajectory that compares by value."""
    rows = [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name in row.__dataclass_fields__
            for value in [getattr(row, name)]
        }
        for row in trajectory.rows
    ]
    return replace(trajectory, rows=rows)


@pytest.fixture(scope="module")
def here(make_experiment, vl_model) -> Any:
    config = experiment(make_experiment)
    found = played(config, vl_model.processor, EnvironmentsConfig(placement="process"))
    assert {t.status for t in found[0]} == {Status.OK}
    assert any(t.terminated for t in found[0]) and any(t.truncated for t in found[0])
    return found


def test_workers_play_the_same_trajectories(make_experiment, vl_model, here) -> None:
    place = EnvironmentsConfig(placement="workers", workers=2)
    assert played(experiment(make_experiment), vl_model.processor, place) == here


def test_the_service_plays_the_same_trajectories(
    make_experiment, vl_model, here, server, monkeypatch
) -> None:
    monkeypatch.setattr(client, "BATCH", 3)
    steps = server.metric("vagen_env_calls_total")
    found = played(experiment(make_experiment), vl_model.processor, server.config())
    assert found == here
    assert server.metric("vagen_env_calls_total") > steps + len(here[0])
    assert server.metric('vagen_env_sessions{env_name="FrozenLake"}') == 0, "all are closed"


def test_experts_play_wherever_the_environment_is(make_experiment, vl_model, server) -> None:
    config = experiment(make_experiment)
    responses = []
    for place in (EnvironmentsConfig(), EnvironmentsConfig(placement="workers"), server.config()):
        check_rendering(config, vl_model.processor, "val", place)
        env = environments_of(place).open("FrozenLake", {}, "val")
        _, info = env.reset(seed=3)
        said = [env.expert_response(), env.expert_summary(), env.system_prompt()]
        responses.append([*said, info["state"]])
        env.close()
    assert responses[0] == responses[1] == responses[2]


def play_with(
    config: Any, processor: Any, environments: Environments, policy: Any, count: int
) -> Sequence[Trajectory]:
    from vagen.rollout.runner import run_episodes

    runner = make_runner(config, policy=policy, processor=processor, sampling=GREEDY)
    return run_to_end(
        run_episodes(
            runner,
            specs(config, count),
            lambda spec: make_environment(config, spec, "train", environments),
            max_concurrency=count,
        )
    )


def test_a_worker_killed_in_an_episode_makes_env_errors(make_experiment, vl_model) -> None:
    """Masked from training and counted, never a reward of 0; the others play on."""
    config = experiment(make_experiment)
    environments = Environments(EnvironmentsConfig(placement="workers", workers=2))

    begun: set[str] = set()

    class Killing(SeededPolicy):
        """Kills a worker when all episodes are in their first turn."""

        killed = asyncio.Event()

        async def generate(self, **request: Any) -> Generation:
            begun.add(request["request_id"])
            if len(begun) == 6 and not self.killed.is_set():
                os.kill(environments._pools.pids[0], signal.SIGKILL)
                self.killed.set()
            await self.killed.wait()
            return await super().generate(**request)

    trajectories = play_with(
        config, vl_model.processor, environments, Killing(vl_model.processor), 6
    )
    environments.close()
    failed = [t for t in trajectories if t.status is Status.ENV_ERROR]
    assert len(failed) == 3 and all("SIGKILL" in (t.error or "") for t in failed)
    assert not any(row.loss_mask.any() for t in failed for row in t.rows)
    assert not any(t.terminated or t.truncated for t in failed)
    whole = [t for t in trajectories if t.status is Status.OK]
    assert len(whole) == 3 and all(t.terminated or t.truncated for t in whole)


@pytest.mark.slow
def test_two_simulators_draw_side_by_side() -> None:
    """In one process their graphics end in a segmentation fault."""
    environments = Environments(EnvironmentsConfig(workers=1))
    opened = [environments.open(name, {}) for name in ("Navigation", "PrimitiveSkill") * 2]
    for seed in range(2):
        for env in opened:
            observation, _ = env.reset(seed=seed)
            assert observation["images"]
    environments.close()


def test_environments_step_while_others_generate(make_experiment, vl_model) -> None:
    """With a stopped worker the episodes of the other one go on to their end."""
    config = experiment(make_experiment)
    environments = Environments(EnvironmentsConfig(placement="workers", workers=2))
    finished: list[str] = []

    class Stopping(SeededPolicy):
        stopped = 0

        async def generate(self, **request: Any) -> Generation:
            if not self.stopped:
                self.stopped = environments._pools.pids[0]
                os.kill(self.stopped, signal.SIGSTOP)
            return await super().generate(**request)

        def release(self, request_id: str) -> None:
            finished.append(request_id)
            if len(finished) == 2:  # all that are not in the stopped worker
                os.kill(self.stopped, signal.SIGCONT)

    policy = Stopping(vl_model.processor)
    trajectories = play_with(config, vl_model.processor, environments, policy, 4)
    environments.close()
    assert {t.status for t in trajectories} == {Status.OK}
