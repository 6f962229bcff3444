"""Installed environments of others, by `check_env`: what each gives here (`make test-foreign`)."""

import re
from typing import Any

import pytest

from vagen import envs

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
