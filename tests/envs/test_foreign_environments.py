"""Installed environments of others, by `check_env`: what each gives here (`make test-foreign`)."""

import re
from contextlib import closing
from typing import Any

import pytest

from vagen import envs
from vagen.envs.adapters import AdapterError
from vagen.envs.web.browser import installed

pytest.importorskip("ale_py", reason="make test-foreign installs environments of others")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SECONDS = 5.0
KEEPS = ""
BY_SEED = "the same seed and responses give another episode"
FOUR = {"up": 0, "right": 1, "down": 2, "left": 3}
TWO = {"left": 0, "right": 1}
MINI = {"left": 0, "right": 1, "forward": 2}


@pytest.mark.parametrize(
    ("name", "actions", "options", "found"),
    [
        ("CartPole-v1", TWO, {}, KEEPS),
        ("CartPole-v1", TWO, {"render_mode": "text"}, KEEPS),
        ("Acrobot-v1", TWO, {}, KEEPS),
        ("MountainCar-v0", TWO, {}, KEEPS),
        ("Taxi-v4", FOUR, {}, KEEPS),
        ("CliffWalking-v1", FOUR, {"kwargs": {"is_slippery": True}}, KEEPS),
        ("FrozenLake-v1", FOUR, {}, KEEPS),
        ("Blackjack-v1", {"stick": 0, "hit": 1}, {"render_mode": "text"}, KEEPS),
        ("LunarLander-v3", {"wait": 0, "left": 1, "main": 2, "right": 3}, {}, KEEPS),
        ("Pendulum-v1", TWO, {}, "only discrete actions can have names"),
        ("Ant-v5", TWO, {"render_mode": "text"}, "only discrete actions can have names"),
        ("minigrid:MiniGrid-DoorKey-5x5-v0", MINI, {}, KEEPS),
        ("minigrid:MiniGrid-FourRooms-v0", MINI, {"render_mode": "text"}, KEEPS),
        ("minigrid:BabyAI-GoToRedBall-v0", MINI, {}, KEEPS),
        ("ale_py:ALE/Pong-v5", {"stay": 0, "up": 2, "down": 3}, {}, KEEPS),
        ("ale_py:ALE/Pong-v5", {"stay": 0}, {"render_mode": "text"}, r"uint8 \[210, 160, 3\]"),
        (
            "ale_py:ALE/Breakout-v5",
            {"stay": 0, "fire": 1},
            {"render_mode": "text", "kwargs": {"obs_type": "ram"}},
            KEEPS,
        ),
        ("highway_env:highway-fast-v0", {"left": 0, "idle": 1, "right": 2}, {}, KEEPS),
        ("flappy_bird_gymnasium:FlappyBird-v0", {"wait": 0, "flap": 1}, {}, BY_SEED),
        (
            "flappy_bird_gymnasium:FlappyBird-v0",
            {"wait": 0, "flap": 1},
            {"render_mode": "text"},
            KEEPS,
        ),
        ("gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0", FOUR, {}, KEEPS),
        ("gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0", FOUR, {"render_mode": "text"}, KEEPS),
        ("gym_simplegrid:SimpleGrid-8x8-v0", FOUR, {}, KEEPS),
        ("mo_gymnasium:deep-sea-treasure-v0", FOUR, {}, r"reward is an array float32 \[2\]"),
        ("mo_gymnasium:four-room-v0", FOUR, {}, "reward is an array"),
        ("gymnasium_robotics:PointMaze_UMaze-v3", TWO, {}, "only discrete actions can have names"),
    ],
)
def test_an_installed_environment_gives_what_is_known_of_it(name, actions, options, found):
    config: dict[str, Any] = {"id": name, "actions": actions, "prompt": "Play.", "max_steps": 20}
    said = ""
    try:
        env = envs.make("Gymnasium", config | options)
        observation, info = env.reset(seed=0)
        seen = info["state"]["observation"]
        for part in seen.values() if isinstance(seen, dict) else ():
            assert not isinstance(part, str) or part in observation["text"]
        envs.check_env(env, seconds=SECONDS)
    except ValueError as error:
        said = str(error)
    assert re.search(found, said) if found else not said


def test_highway_is_not_black():
    options = {"id": "highway_env:highway-fast-v0", "actions": {"idle": 1}, "prompt": "Drive."}
    observation, _ = envs.make("Gymnasium", options).reset(seed=0)
    assert observation["images"][0].mean() > 90


QUICK = {"slow_mo": 0, "pre_observation_delay": 0.05}
NO_CHROMIUM = pytest.mark.skipif(not installed(), reason="no chromium: make system-packages")


def answer(action: str) -> str:
    return f"<think>so</think><answer>{action}</answer>"


def miniwob(task: str, **options: Any) -> Any:
    return envs.make("BrowserGym", {"task": f"miniwob.{task}", "kwargs": QUICK, **options})


def button(text: str, name: str) -> str:
    """The id of a button in the text of a page."""
    return re.search(rf"\[(\d+)\] button '{name}'", text, re.IGNORECASE)[1]


@NO_CHROMIUM
def test_tasks_of_miniwob_are_solved_and_failed_by_their_ids_and_by_the_mouse():
    with closing(miniwob("enter-text", render_mode="text", max_actions_per_step=2)) as env:
        for seed in range(2):
            text = env.reset(seed=seed)[0]["text"]
            wanted = re.search(r'Enter "(\w+)" into the text field', text)[1]
            field = re.search(r"\[(\d+)\] textbox", text)[1]
            told = answer(f"fill('{field}', '{wanted}') | click('{button(text, 'Submit')}')")
            observation, reward, terminated, _, info = env.step(told)
            assert (reward, terminated, info["success"]) == (1.5, True, True), observation["text"]
        env.reset(seed=1)
        _, reward, terminated, _, info = env.step(answer(f"click('{button(text, 'Submit')}')"))
        assert (reward, terminated, info["success"]) == (0.5, True, False)
    with closing(miniwob("click-button", action_subsets=["coord"])) as env:
        observation, _ = env.reset(seed=3)
        assert observation["images"][0].shape == (321, 498, 3)
        name = re.search(r'Click on the "(.*)" button', observation["text"])[1]
        left, top, width, height = env._elements[button(env.text_view(), name)]["bbox"]
        told = answer(f"mouse_click({left + width / 2}, {top + height / 2})")
        assert env.step(told)[4]["success"]


@NO_CHROMIUM
@pytest.mark.parametrize(
    ("task", "options"),
    [
        # A picture is the same again when what moves has come to rest.
        ("click-test", {"kwargs": {}}),
        ("click-checkboxes", {"render_mode": "text"}),
    ],
)
def test_a_task_of_miniwob_keeps_the_contract(task, options):
    with closing(miniwob(task, max_steps=4, **options)) as env:
        assert envs.check_env(env, seconds=600) == []


@NO_CHROMIUM
def test_actions_of_browsergym_are_read_and_what_fails_or_hangs_is_told():
    with closing(miniwob("click-test", timeout=30)) as env:
        actions = env.parse(answer('click("13", button = "left")')).actions
        assert actions == ("click('13', button='left')",)
        for wrong in (
            *("goto('file:///etc/passwd')", "upload_file('1', '/etc/passwd')", "click(13"),
            *("noop(1e9)", "noop(wait_ms=1e9)", "click(open('x'))", "click('1'); exit()"),
        ):
            assert not env.parse(answer(wrong)).actions, wrong
        env.reset(seed=0)
        observation, reward, terminated, *_ = env.step(answer("click('999')"))
        assert "The action failed: " in observation["text"] and "999" in observation["text"]
        assert (reward, terminated) == (0.5, False)
        patient = env.config
        env.config = patient.model_copy(update={"timeout": 0.5})
        with pytest.raises(AdapterError, match=r"click-test step: took more than 0\.5 s"):
            env.step(answer("noop(5000)"))
        env.config = patient
        env.reset(seed=0)
        assert "Click the button" in env.step(answer("noop(1)"))[0]["text"]
    with pytest.raises(AdapterError, match=r"no-such-task reset: NameNotFound"):
        miniwob("no-such-task").reset(seed=0)
    with pytest.raises(ValueError, match="Unknown high-level action subspace: all"):
        miniwob("click-test", action_subsets=["all"])
