"""The agent of a run over HTTP, with every kind of context: it plays as the engine does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from threaded_server import ThreadedServer

from vagen.envs import make
from vagen.rollout.episodes import evaluation_specs
from vagen.rollout.levels import draw_levels
from vagen.serve.app import Server, ServeSettings, make_app
from vagen.serve.client import AgentClient, AgentError
from vagen.serve.model import ServedModel

pytestmark = pytest.mark.slow


@contextmanager
def serving(model, config, **settings: Any) -> Iterator[str]:
    served = ServedModel(model, rows=2)
    server = Server(served, "it", ServeSettings(**settings), run=config)
    with ThreadedServer(make_app(server)) as running:
        yield running.root
    served.close()


@pytest.mark.parametrize(
    "overrides",
    [
        ["rollout_manager.context=concat"],
        ["rollout_manager.context=window", "rollout_manager.window_size=2"],
        ["rollout_manager.context=compact", "rollout_manager.window_size=1"],
        ["rollout_manager.context=gate", "rollout_manager.window_size=1"],
    ],
    ids=lambda overrides: overrides[0].partition("=")[2],
)
def test_it_says_what_the_engine_says(overrides, text_model, make_engine) -> None:
    engine = make_engine(*overrides, "rollout_manager.max_turns=4", model="tiny:text")
    config = engine.config
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    specs = evaluation_specs(config, draw_levels(config, {"test": 3}), "test")
    played, _ = engine.play(specs, sampling=sampling, split="test")
    assert any(len(t.turns) > 2 for t in played) and sampling.temperature > 0
    spec = config.envs["game"]
    env = make(spec.env_name, spec.env_config, split="test")
    with serving(text_model, config) as address, AgentClient(address, "it") as agent:
        for episode, t in zip(specs, played, strict=True):
            observation, _ = env.reset(seed=t.seed)
            agent.reset(seed=episode.sampling_seed)
            for turn in t.turns:
                if turn.summary:
                    continue
                said = agent.act(observation["text"])
                assert said.text == turn.response_text
                observation, *_ = env.step(said.text)


def test_sessions_have_limits_and_say_what_is_wrong(text_model, make_experiment) -> None:
    config = make_experiment(model="tiny:text")
    limits = {"max_sessions": 1, "idle_seconds": 0.3}
    with serving(text_model, config, **limits) as address:
        with AgentClient(address, "it") as agent, AgentClient(address, "it") as other:
            agent.reset(observation={"text": "instruction"})
            with pytest.raises(AgentError, match="429: 1 sessions are open"):
                other.reset()
            with pytest.raises(AgentError, match="has its observation from reset"):
                agent.act("another")
            said = agent._post("act", {"session": agent.session})
            assert said["turn"] == 1 and said["text"]
            with pytest.raises(AgentError, match="needs an observation"):
                agent._post("act", {"session": agent.session})
            with pytest.raises(AgentError, match="no pictures"):
                agent._post("act", {"session": agent.session, "observation": {"images": ["x"]}})
            with pytest.raises(AgentError, match="retries"):
                agent.act("x", retries=100)
            for _ in range(100):
                try:
                    agent.act("P _ G " * 8)
                except AgentError as error:
                    assert "409: the conversation is full" in str(error)
                    break
            else:
                raise AssertionError("the run's limit of tokens holds")
            time.sleep(0.4)
            other.reset()
            with pytest.raises(AgentError, match="404: there is no such session"):
                agent.act("x")
            with pytest.raises(AgentError, match="did you mean `game`"):
                other.reset(env="gam")
        with AgentClient(address, "us") as stranger, pytest.raises(AgentError, match="404"):
            stranger.reset()


def test_a_bad_response_is_retried(text_model, make_experiment) -> None:
    # At this temperature hardly any response has the layout.
    config = make_experiment(model="tiny:text")
    with serving(text_model, config) as address, AgentClient(address, "it") as agent:
        agent.reset(temperature=5.0, seed=1)
        once = agent.act("P _ G")
        assert (once.attempts, once.format_correct) == (1, False)
        agent.reset(temperature=5.0, seed=1)
        again = agent.act("P _ G", retries=2)
        assert again.attempts > 1 and again.turn == 1 and again.text != once.text
