"""The AI2-THOR back end against its contract, answered by a replaying controller."""

import json
import sys
from types import ModuleType

import env_cases
import numpy as np
import pytest
from thor_replay import FLOOR_HEIGHT, ReplayController

from vagen import envs
from vagen.envs.levels import LevelError
from vagen.envs.navigation import thor
from vagen.envs.navigation.config import NavigationConfig

OBJECTS = [
    ("CoffeeMachine", 2.0, 3.0),
    ("CoffeeMachine", -2.0, -3.0),
    ("Fridge", 0.0, 3.4),
    ("CounterTop", 2.2, 2.6),
    ("Floor", 0.0, 0.0),
]
FLOOR = [
    (x / 10, z / 10)
    for x in range(-15, 16)
    for z in range(-15, 31)
    if not (-2 <= x <= 2 and 8 <= z <= 12)
]
"""A floor with a table in the way."""


def episode(**changes):
    return {
        "scene": "FloorPlan1",
        "instruction": "Make some coffee: go to the coffee machine.",
        "target": {"type": "CoffeeMachine", "position": {"x": 2.1, "y": 1.0, "z": 3.1}},
        "start": {"position": {"x": 0.0, "y": FLOOR_HEIGHT, "z": 0.5}, "rotation": 0},
        "split": "train",
        **changes,
    }


@pytest.fixture
def controllers(monkeypatch):
    started = []

    def start(config):
        started.append(ReplayController(OBJECTS, FLOOR, config.picture_size))
        return started[-1]

    monkeypatch.setattr(thor, "start_controller", start)
    return started


@pytest.fixture
def make(tmp_path, controllers):
    def make(*episodes, split="train", **options):
        path = tmp_path / "episodes.json"
        path.write_text(json.dumps({"episodes": list(episodes) or [episode()]}))
        options = {"backend": "ai2thor", "episodes": str(path), **options}
        return envs.make("Navigation", options, split)

    return make


def test_an_episode_starts_as_its_file_says(make, controllers):
    env = make()
    assert controllers == []  # nothing is started before it is needed
    observation, info = env.reset(seed=0)
    reset, teleport, *rest = controllers[0].asked
    assert reset == {"action": "reset", "scene": "FloorPlan1"} and rest == []
    assert teleport == {
        "action": "Teleport",
        "position": {"x": 0.0, "y": FLOOR_HEIGHT, "z": 0.5},
        "rotation": {"x": 0, "y": 0, "z": 0},
        "horizon": 0,
        "standing": True,
    }
    assert "Make some coffee" in observation["text"]
    assert observation["images"][0].shape == (255, 255, 3)
    state = info["state"]
    assert state["agent"] == {"x": 0.0, "z": 0.5, "rotation": 0, "horizon": 0}
    assert (state["target"]["type"], state["target"]["direction"]) == (
        "coffee machine",
        "ahead-right",
    )
    assert state["target"]["distance"] == pytest.approx(np.hypot(2.0, 2.5), abs=1e-3)
    assert [entry["type"] for entry in state["objects"]] == ["fridge", "counter top"]
    assert json.loads(json.dumps(info)) == info
    env.close()
    assert controllers[0].stopped


def test_actions_are_the_simulators_commands(make, controllers):
    env = make(prompt_format="no_think", max_actions_per_step=8)
    env.reset(seed=0)
    controllers[0].asked.clear()
    env.step(f"<answer>{','.join(env.actions)}</answer>")
    assert controllers[0].asked == [
        {"action": "MoveAhead", "moveMagnitude": 0.5},
        {"action": "MoveBack", "moveMagnitude": 0.5},
        {"action": "MoveRight", "moveMagnitude": 0.5},
        {"action": "MoveLeft", "moveMagnitude": 0.5},
        {"action": "RotateRight", "degrees": 90},
        {"action": "RotateLeft", "degrees": 90},
        {"action": "LookUp", "degrees": 30},
        {"action": "LookDown", "degrees": 30},
    ]


def test_what_blocks_the_agent_leaves_the_state_as_it_is(make):
    env = make(prompt_format="no_think")
    _, before = env.reset(seed=0)
    *_, info = env.step("<answer>moveahead</answer>")  # the table
    assert info["metrics"] == {"action_is_valid": True, "action_is_effective": False}
    assert info["state"] == before["state"]


@pytest.mark.parametrize("reward", ["vagen-legacy", "vagen-new"])
def test_the_expert_walks_around_what_is_in_the_way(make, reward):
    env = make(reward=reward, expert_actions_per_turn=2)
    for before, (*_, info) in env_cases.episode(env, 0):
        assert info["metrics"]["action_is_effective"]
        assert info["parsed"]["observation"] == env.state_text(before)
        assert info["parsed"]["prediction"] == env.state_text(info["state"])
    assert info["success"]


def test_a_second_episode_uses_the_same_program(make, controllers):
    env = make(episode(), episode(scene="FloorPlan2"))
    hashes = [env.reset(seed=seed)[1]["level_hash"] for seed in range(4)]
    assert hashes[:2] == hashes[2:] and hashes[0] != hashes[1]
    assert len(controllers) == 1
    scenes = [asked["scene"] for asked in controllers[0].asked if asked["action"] == "reset"]
    assert scenes == ["FloorPlan1", "FloorPlan2"] * 2


def test_styles_and_splits_choose_episodes(make):
    far = episode(task="long_horizon", split="val", instruction="Find it.")
    assert (
        "Find it."
        in make(far, episode(), split="val", tasks="long_horizon").reset(seed=0)[0]["text"]
    )
    with pytest.raises(LevelError, match=r"no episode of base is in split 'val'"):
        make(far, episode(), split="val").reset(seed=0)
    # Without a split of its own an episode belongs to the one its content's hash is in.
    free = [episode(split=None, instruction=f"Go, {number}.") for number in range(60)]
    counts = [len(_told(make(*free, split=split))) for split in ("train", "val", "test")]
    assert sum(counts) == 60 and min(counts) >= 1


def _told(env):
    return {env.reset(seed=seed)[1]["state"]["instruction"] for seed in range(60)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the file: Invalid JSON"),
        ({"episodes": [episode(scene="")]}, r"episodes\.0\.scene"),
        ({"episodes": [{**episode(), "pose": 1}]}, r"episodes\.0\.pose"),
        (
            {"episodes": [episode(start={"position": {"x": 0, "y": 0, "z": 0}, "rotation": 45})]},
            r"episodes\.0\.start\.rotation",
        ),
    ],
)
def test_a_wrong_file_is_refused_where_it_is_wrong(tmp_path, content, message):
    path = tmp_path / "episodes.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    env = envs.make("Navigation", {"backend": "ai2thor", "episodes": str(path)})
    with pytest.raises(LevelError, match=message):
        env.reset(seed=0)


def test_a_missing_file_is_told(tmp_path):
    env = envs.make("Navigation", {"backend": "ai2thor", "episodes": str(tmp_path / "none.json")})
    with pytest.raises(LevelError, match=r"none\.json: episodes cannot be read"):
        env.reset(seed=0)


def test_what_the_simulator_refuses_is_told(make):
    off = {"position": {"x": 9.0, "y": FLOOR_HEIGHT, "z": 0.0}, "rotation": 0}
    with pytest.raises(thor.ThorError, match=r"FloorPlan1: Teleport to .* is not on the floor"):
        make(episode(start=off)).reset(seed=0)
    lost = {"type": "Toaster", "position": {"x": 0, "y": 0, "z": 0}}
    with pytest.raises(thor.ThorError, match="no object of type 'Toaster'"):
        make(episode(target=lost)).reset(seed=0)


def _module(name, **content):
    module = ModuleType(name)
    module.__dict__.update(content)
    return module


def test_a_missing_package_or_build_is_told(monkeypatch):
    config = NavigationConfig(backend="ai2thor", episodes="x.json", gpu=1)
    monkeypatch.setitem(sys.modules, "ai2thor.controller", None)
    with pytest.raises(thor.ThorError, match=r"pip install 'ai2thor>=5,<6'"):
        thor.start_controller(config)

    asked = {}

    def refuse(**arguments):
        asked.update(arguments)
        raise ValueError("Invalid commit_id: abc")

    platform = object()
    monkeypatch.setitem(sys.modules, "ai2thor", _module("ai2thor"))
    monkeypatch.setitem(
        sys.modules, "ai2thor.controller", _module("ai2thor.controller", Controller=refuse)
    )
    monkeypatch.setitem(
        sys.modules, "ai2thor.platform", _module("ai2thor.platform", CloudRendering=platform)
    )
    with pytest.raises(thor.ThorError, match=r"Invalid commit_id: abc.*needs its Unity build"):
        thor.start_controller(config)
    assert asked == {
        "agentMode": "default",
        "gridSize": 0.1,
        "visibilityDistance": 10,
        "width": 255,
        "height": 255,
        "fieldOfView": 100.0,
        "platform": platform,
        "gpu_device": 1,
        "server_timeout": 300.0,
    }


@pytest.mark.parametrize(
    ("object_type", "words"),
    [("CoffeeMachine", "coffee machine"), ("TVStand", "tv stand"), ("Sofa", "sofa"), ("CD", "cd")],
)
def test_types_become_words(object_type, words):
    assert thor.words_of(object_type) == words
