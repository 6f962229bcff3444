"""Environments of OpenEnv played here, and environments of this package played by OpenEnv."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openenv", reason="make test-interop installs it")

from openenv.core import GenericEnvClient
from pydantic import ValidationError
from served import served
from walk import WalkEnvironment, app

from vagen import envs
from vagen.envs import check_env
from vagen.envs.images import png_bytes
from vagen.interop.openenv_server import make_app
from vagen.service import environments_of

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")

NAMED = {
    "actions": {"left": {"steps": -1}, "right": {"steps": 1}},
    "prompt": "Walk to the green mark: left or right.",
    "text": "{view.png}\n{message}",
    "pictures": ["view.png"],
    "success": "terminated and info.found",
    "max_steps": 6,
}
HERE = {**NAMED, "module": "walk:WalkEnvironment"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(app(sessions=20)) as address:
        yield address


def answer(text: str) -> str:
    return f"<think>so</think><answer>{text}</answer>"


def episode(config: dict[str, Any], answers: list[str], seed: int = 3) -> list[Any]:
    env = envs.make("OpenEnv", config, "test")
    results: list[Any] = [env.reset(seed=seed), *(env.step(answer(each)) for each in answers)]
    env.close()
    return [(shown["text"], [*map(np.copy, shown["images"])], *rest) for shown, *rest in results]


def places(text: str) -> tuple[int, int]:
    at, mark = (int(part.strip(" .")[-1]) for part in text.split("\n")[2].split(","))
    return at, mark


def test_levels_do_not_depend_on_the_address():
    adapter = envs.get_environment("OpenEnv").load()
    options = ({**NAMED, "url": f"http://127.0.0.1:{port}"} for port in (8000, 9000))
    configs = map(adapter.config_class.model_validate, options)
    assert len({adapter.sample_level(config, 3, "test").seed for config in configs}) == 1


@pytest.mark.parametrize("options", [{}, {"render_mode": "text"}, {"max_actions_per_step": 3}])
def test_a_server_keeps_the_contract(url, options):
    config = {**NAMED, "url": url, **options}
    assert check_env(envs.make("OpenEnv", config)) == []


@pytest.mark.parametrize("name", ["WalkEnvironment", "AsyncWalkEnvironment"])
def test_a_class_keeps_the_contract_and_plays_as_on_the_server(url, name):
    config = {**NAMED, "module": f"walk:{name}", "max_steps": 20}
    assert check_env(envs.make("OpenEnv", config)) == []
    for source in (config, {**NAMED, "url": url}):
        env = envs.make("OpenEnv", source, "test")
        level = type(env).sample_level(env.config, 5, "test")
        shown, _ = env.reset(seed=5)
        assert WalkEnvironment().reset(seed=level.seed).message in shown["text"]
        env.close()


def test_reward_success_and_pictures_are_those_of_the_environment(url):
    config = {**NAMED, "url": url, "reward_overrides": {"reward": 2, "success": 1, "format": 0.25}}
    (text, (frame,), info), *_ = episode(config, [])
    at, mark = places(text)
    assert frame.shape == (8, 40, 3) and (frame[0, 8 * mark] == (0, 200, 0)).all()
    assert (frame[4, 8 * at + 4] == 255).all()
    way = ["right" if mark > at else "left"] * abs(mark - at)
    steps = episode(config, way)[1:]
    for index, (text, (_,), reward, terminated, truncated, info) in enumerate(steps, 1):
        last = index == len(way)
        assert reward == pytest.approx(0.25 + 3 * last) and info["success"] is last
        assert (terminated, truncated) == (last, False)
        assert places(text)[0] == at + index * (1 if mark > at else -1)


def test_an_end_that_the_metadata_calls_truncated_truncates():
    config = {**HERE, "kwargs": {"limit": 1}, "max_steps": 9}
    for seed in range(9):
        *_, terminated, truncated, info = episode(config, ["left"], seed)[1]
        assert terminated is info["success"] and truncated is not terminated


def test_actions_are_json_or_fill_a_template_and_a_refused_one_changes_nothing(url):
    plain = {key: value for key, value in NAMED.items() if key not in ("actions", "text")}
    as_json = {**plain, "url": url, "example": '{"steps": 1}'}
    filled = {**plain, "url": url, "action": {"steps": "{answer}"}, "example": "1"}
    moves = [*range(-2, 3)]
    found = episode(as_json, [json.dumps({"steps": each, "metadata": {}}) for each in moves])
    again = episode(filled, [*map(str, moves)])
    assert [each[0] for each in found] == [each[0] for each in again]
    assert found[0][0].split("\n")[1] == "<image>" and '"message": "at ' in found[0][0]
    for config, wrong in ((as_json, '{"steps": "far", "x": 1}'), (filled, "far <b>, away")):
        before, (text, _, _, *ends, info) = episode(config, [wrong])
        assert "refused the action: steps: " in text and ends == [False, False]
        assert info["state"] == before[2]["state"] and info["rewards"]["env"] == 0
        assert not info["metrics"]["action_is_effective"]
    *_, info = episode(as_json, ["right"])[1]
    assert not info["parsed"]["format_correct"]
    assert check_env(envs.make("OpenEnv", as_json)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"url": "http://x", "module": "walk:W"}, "either url or module"),
        ({"url": "localhost:8000"}, "http://127.0.0.1:8000"),
        ({"actions": {}, "example": "right"}, 'such as {"move": 0}'),
        ({"actions": {}, "action": {"steps": 1}, "example": "1"}, "must hold '{answer}'"),
        ({"success": "won"}, "is no condition"),
        ({"actions": {"left": {}, "Left": {}}}, "differ by more than case"),
    ],
)
def test_options_that_cannot_be_played_are_refused(change, reason):
    given = {**NAMED, **({} if "url" in change else {"module": "walk:WalkEnvironment"}), **change}
    with pytest.raises(ValidationError, match=reason):
        envs.make("OpenEnv", given)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"url": "http://127.0.0.1:9"}, "no server of OpenEnv answers"),
        ({"module": "walk:Line"}, "no class that derives from openenv.core.Environment"),
        ({"module": "walk:Run"}, "cannot be loaded"),
        ({"module": "walk:WalkEnvironment", "kwargs": {"size": 1}}, "'size'"),
        ({"module": "walk:WalkEnvironment", "pictures": ["screen"]}, "it shows metadata, message"),
    ],
)
def test_what_cannot_be_reached_is_named(change, reason):
    with pytest.raises(ValueError, match=reason):
        envs.make("OpenEnv", {**NAMED, **change}).reset(seed=0)


def test_a_broken_session_fails_the_episode_and_the_next_one_is_new(url):
    config = {**NAMED, "url": url, "actions": {"break": {"steps": 99}}}
    env = envs.make("OpenEnv", config)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="the line broke"):
        env.step(answer("break"))
    env.reset(seed=0)
    env.close()
    with served(app(sessions=1)) as small:
        first, second = (
            envs.make("OpenEnv", {**NAMED, "url": small, "actions": {"stay": {"steps": 0}}})
            for _ in range(2)
        )
        first.reset(seed=0)
        with pytest.raises(RuntimeError, match="raise its max_concurrent_envs"):
            second.reset(seed=0)
        second.close()
        first.step(answer("stay"))
        first._session.close()
        with pytest.raises(ConnectionError, match="ended the session"):
            first.step(answer("stay"))
        first.reset(seed=0)
        first.close()


HANGS = """
import asyncio, sys
from threading import Event
from vagen import envs
from vagen.service import environments_of
from walk import Walk, WalkEnvironment

class Hangs(WalkEnvironment):
    def __init__(self):
        sys.argv[1] == "creation" and Event().wait()
        super().__init__()

    def step(self, action: Walk):
        Event().wait()

async def play(config):
    env = await environments_of().make("OpenEnv", config)
    await env.reset(seed=0)
    await env.step("<think>so</think><answer>left</answer>")

asyncio.run(play({"module": "__main__:Hangs", "timeout": 0.2, **%r}))
"""


@pytest.mark.parametrize("where", ["step", "creation"])
def test_an_environment_that_hangs_does_not_keep_the_process(where):
    command = [sys.executable, "-c", HANGS % (NAMED,), where]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True)
    assert f"more than 0.2 s for {where}" in done.stderr


async def _played(config: dict[str, Any]) -> bool:
    env = await environments_of().make("OpenEnv", config, "val")
    shown, _ = await env.reset(seed=1)
    await env.close()
    return "<image>" in shown["text"]


def test_environments_of_coroutines_are_not_in_the_way(url):
    assert asyncio.run(_played({**NAMED, "url": url})) and asyncio.run(_played(HERE))


@pytest.mark.parametrize(
    ("env_name", "env_config"), [("FrozenLake", {"size": 4}), ("PrimitiveSkill", {})]
)
def test_the_client_of_openenv_plays_an_expert_episode_as_it_is_here(env_name, env_config):
    mine = envs.make(env_name, env_config, "val")
    with (
        served(make_app(env_name, env_config)) as address,
        GenericEnvClient(base_url=address).sync() as client,
    ):
        seen, info = mine.reset(seed=4)
        result = client.reset(seed=4, split="val", episode_id="one")
        for turn in range(9):
            pictures = [base64.b64encode(png_bytes(frame)).decode() for frame in seen["images"]]
            assert result.observation["images"] == pictures and pictures
            assert result.observation["text"] == seen["text"]
            assert result.observation["system_prompt"] == mine.system_prompt()
            state = client.state()
            assert (state["episode_id"], state["step_count"]) == ("one", turn)
            assert state["truth"] == info["state"]
            if result.done:
                break
            response = mine.expert_response()
            result = client.step({"response": response})
            seen, reward, terminated, truncated, info = mine.step(response)
            assert (result.reward, result.done) == (reward, terminated or truncated)
            assert result.metadata["success"] is info["success"]
        assert env_name != "FrozenLake" or info["success"]
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.step({"answer": response})


def test_openenv_validates_what_the_command_serves(tmp_path):
    def run(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vagen.cli.main", "env", "serve", "FrozenLake", *words]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **output)

    assert "--openenv" in run().communicate()[0]
    assert "sise" in run("sise=3", "--openenv").communicate()[0]
    server = run("size=3", "--openenv", "--port", "0")
    try:
        assert server.stdout
        (address,) = next(found for line in server.stdout if (found := ADDRESS.findall(line)))
        program = str(Path(sys.executable).with_name("openenv"))
        done = subprocess.run([program, "validate", address], capture_output=True, text=True)
    finally:
        server.terminate()
        server.communicate()
    assert done.returncode == 0 and "Verdict: PASS" in done.stdout, done.stdout + done.stderr
