"""Environments of one's own: what `env init` writes, Gymnasium's, and those of `GymImageEnv`."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from env_cases import episode
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check
from PIL import Image
from pydantic import ValidationError

from vagen import envs
from vagen.config import ConfigError
from vagen.envs.adapters import AdapterError
from vagen.envs.adapters.success import read_rule
from vagen.envs.gym_image_env import GymImageEnv
from vagen.envs.levels import split_of
from vagen.envs.template import EnvironmentNameError, write_environment
from vagen.experiment.load import load_experiment
from vagen.rollout.reach import out_of_reach
from vagen.service import environments_of

DOCS = Path(__file__).parents[2] / "docs" / "environments.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)


def experiment(tmp_path, tree, *overrides):
    path = tmp_path / "own.yaml"
    base = {
        "name": "own",
        "preset": "vagen_base",
        "actor_rollout_ref": {"model": {"path": "some/model"}},
        "rollout_manager": {"max_turns": 5},
    }
    path.write_text(yaml.safe_dump(base | tree))
    return load_experiment(path, list(overrides))


@pytest.fixture
def corridor(tmp_path, monkeypatch):
    """What `vagen env init corridor` writes, and the module of the documentation, importable."""
    assert write_environment("corridor", tmp_path / "corridor") == "corridor:CorridorEnv"
    (code,) = blocks("python")
    (tmp_path / "pole.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "corridor"))
    yield "corridor:CorridorEnv"
    for name in ("corridor", "pole"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_an_environment_is_written_that_is_checked_tested_and_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            env=os.environ
            | {"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path / 'acorridor'}"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    told = run("-m", "vagen.cli.main", "env", "init", "acorridor").split("try it:\n")[1]
    (_, check, test, train) = (line.split() for line in told.splitlines())
    assert {path.name for path in (tmp_path / "acorridor").iterdir()} == {
        "acorridor.py",
        "acorridor.yaml",
        "test_acorridor.py",
    }
    assert check[-1] == "acorridor:AcorridorEnv"
    assert "keeps the contract" in run("-m", "vagen.cli.main", *check[1:])
    assert " passed" in run("-m", "pytest", "-p", "no:cacheprovider", *test[3:])
    small = (
        *("trainer.total_training_steps=1", "warm_start.steps=1", "warm_start.batch_size=2"),
        *("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("envs.acorridor.env_config.max_steps=2", "rollout_manager.max_turns=2"),
        *(f"envs.acorridor.{split}_size=2" for split in envs.SPLITS),
    )
    run("-m", "vagen.cli.main", *train[1:], *small, "--name", "short")
    assert (tmp_path / "outputs/short/summary.json").is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-env", "cannot name a Python module: .* such as my_env$"),
        ("class", "cannot name a Python module: .* such as class_env$"),
        ("3", "cannot name a Python module: .* such as env$"),
        ("_x", "cannot name a Python module"),
        ("tür", "cannot name a Python module"),
        ("Sokoban", "Sokoban is an environment of this package"),
        ("frozen_lake", "FrozenLake is an environment of this package"),
        ("numpy", r"there is a module numpy already \(.*__init__.py\)"),
        ("there", "there exists: take another name"),
    ],
)
def test_no_environment_is_written_under_a_name_that_cannot_be(tmp_path, name, reason):
    (tmp_path / "there").mkdir()
    with pytest.raises(EnvironmentNameError, match=reason):
        write_environment(name, tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]


def test_the_written_environment_keeps_the_contract(corridor):
    for mode in ("vision", "text"):
        gymnasium_check(envs.make(corridor, {"render_mode": mode}))
        envs.check_env(envs.make(corridor, {"render_mode": mode}))
    env = envs.make(corridor, {})
    assert env._parser.parse(env.example_response()).format_correct
    assert env.example_response() in env.system_prompt()
    hashes = {}
    for split in envs.SPLITS:
        for seed in range(30):
            _, info = env.reset(seed=seed, options={"split": split})
            hashes.setdefault(info["level_hash"], split)
            assert hashes[info["level_hash"]] == split == split_of(info["level_hash"])
            for before, (*_, info) in episode(env, seed, split=split):
                assert info["parsed"]["observation"] == env.state_text(before)
                assert info["parsed"]["prediction"] == env.state_text(info["state"])
            assert info["success"]


def test_the_documented_experiments_are_valid(corridor, tmp_path, monkeypatch):
    pytest.importorskip("pygame")
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "their_env.py").write_text(
        "from vagen.envs.gym_image_env import GymImageEnv\n\n\n"
        "class TheirEnv(GymImageEnv):\n    pass\n"
    )
    for text in blocks("yaml"):
        config = experiment(tmp_path, yaml.safe_load(text))
        (spec,) = config.envs.values()
        assert envs.distinct_levels(spec.env_name, spec.env_config, "train", 3)


def test_the_documented_pole_has_an_expert_and_can_be_won(corridor, tmp_path):
    pytest.importorskip("pygame")
    (text,) = (text for text in blocks("yaml") if "pole:PoleEnv" in text)
    config = experiment(tmp_path, yaml.safe_load(text))
    spec = config.envs["pole"]
    envs.check_env(envs.make(spec.env_name, spec.env_config))
    assert list(out_of_reach(config, environments_of())) == []
    short = experiment(tmp_path, yaml.safe_load(text), "rollout_manager.max_turns=24")
    assert "expert wins none" in next(out_of_reach(short, environments_of()))


def test_what_cannot_be_loaded_is_refused_with_the_reason(corridor, tmp_path):
    for name, reason in (
        ("corridor:Nothing", "has no attribute 'Nothing'"),
        ("no_such_module:Env", "No module named 'no_such_module'"),
        ("corridor:Level", "derives from vagen.envs.AgentEnv"),
        ("corridor", "module:Class"),
    ):
        with pytest.raises(envs.UnknownEnvironmentError, match=re.escape(reason)):
            envs.make(name, {})
    tree = {"envs": {"own": {"env_name": "corridor:Nothing"}}, "judge": {"use_state_reward": False}}
    with pytest.raises(ConfigError, match=r"`envs\.own\.env_name`: .*'Nothing'"):
        experiment(tmp_path, tree)


def test_an_entry_point_gives_an_environment_a_name(corridor, tmp_path, monkeypatch):
    folder = tmp_path / "corridor-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: corridor\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[vagen.environments]\nCorridor = {corridor}\n")
    env = envs.make("Corridor", {"length": 9})
    assert type(env).__name__ == "CorridorEnv" and env.config.length == 9


# Gymnasium.


class Lamps(gymnasium.Env):
    """Switch all lamps on; the third action draws nothing and ends the episode."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None, count=3):
        self.render_mode, self.count = render_mode, count
        self.action_space = spaces.Discrete(3, start=1)
        self.observation_space = spaces.MultiBinary(count)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lamps = self.np_random.integers(0, 2, self.count).astype(np.int8)
        self.lamps[0] = 0
        self.turns = 0
        return self.lamps.copy(), {}

    def step(self, action):
        self.turns += 1
        if action < 3:
            dark = np.flatnonzero(self.lamps == 0)
            self.lamps[dark[0 if action == 1 else -1]] = 1
        lit = bool(self.lamps.all())
        return self.lamps.copy(), float(lit), lit or action == 3, self.turns == 20, {"lit": lit}

    def render(self):
        row = self.lamps.astype(np.uint8)[None, :, None] * 255
        return row.repeat(3, 2).repeat(8, 0).repeat(8, 1)


gymnasium.register("test/Lamps-v0", Lamps, max_episode_steps=2)
LAMPS = {
    "id": "test/Lamps-v0",
    "kwargs": {"count": 4},
    "actions": {"first": 1, "last": 2, "give up": 3},
    "prompt": "Switch on every lamp. Actions: first, last, give up.",
}


def answer(word):
    return f"<think>so</think><answer>{word}</answer>"


def test_a_gymnasium_environment_plays_by_words():
    env = envs.make("Gymnasium", LAMPS)
    gymnasium_check(env)
    envs.check_env(env)
    assert env.system_prompt().startswith(LAMPS["prompt"])
    observation, info = env.reset(seed=3)
    assert observation["images"][0].shape == (8, 32, 3)
    assert observation["text"].count("<image>") == 1
    lamps = info["state"]["observation"]
    assert lamps[0] == 0 and len(lamps) == 4
    over = False
    while not over:
        observation, reward, terminated, truncated, info = env.step(answer("First"))
        over = terminated or truncated
    # Its own limit of two steps is left out.
    assert lamps.count(0) == info["state"]["observation"].count(1) - lamps.count(1)
    assert (terminated, truncated, info["success"], reward) == (True, False, True, 1.5)
    assert info["rewards"] == {"env": 1.0, "format": 0.5}
    assert (observation["images"][0] == 255).all()


def test_failing_giving_up_and_running_out_are_told_apart():
    env = envs.make("Gymnasium", {**LAMPS, "max_steps": 2})
    env.reset(seed=3)
    *_, terminated, truncated, info = env.step(answer("give up"))
    assert (terminated, truncated, info["success"]) == (True, False, False)
    env.reset(seed=3)
    _, reward, *_, info = env.step(answer("none"))
    assert reward == 0.0 and not info["metrics"]["action_is_effective"]
    lamps = {"count": 30}
    env = envs.make("Gymnasium", {**LAMPS, "kwargs": lamps, "max_steps": 2})
    env.reset(seed=3)
    assert env.step(answer("last"))[2:4] == (False, False)
    assert env.step(answer("last"))[2:4] == (False, True)
    # The environment itself truncates after 20 steps.
    env = envs.make("Gymnasium", {**LAMPS, "kwargs": {"count": 64}, "success": "steps >= 20"})
    env.reset(seed=3)
    ends = [env.step(answer("last"))[2:5] for _ in range(20)]
    assert ends[-1][:2] == (False, True) and ends[-1][2]["success"]
    assert not any(terminated or truncated for terminated, truncated, _ in ends[:-1])
    with pytest.raises(ResetNeeded):
        env.step(answer("last"))


def test_pictures_are_brought_to_a_size_and_rewards_scaled():
    env = envs.make(
        "Gymnasium",
        {
            **LAMPS,
            "frame_size": [64, 96],
            "reward_overrides": {"reward": 2.0, "success": 5.0},
            "success": "info.lit",
        },
    )
    observation, info = env.reset(seed=0)
    assert observation["images"][0].shape == (64, 96, 3)
    while not info.get("success"):
        *_, info = env.step(answer("last"))
    assert info["rewards"]["env"] == 7.0
    env.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "test/Nothing-v0"}, "cannot make 'test/Nothing-v0'"),
        ({"actions": {"first": 0}}, "has no action 0"),
        ({"kwargs": {"lamps": 3}}, "unexpected keyword"),
    ],
)
def test_what_gymnasium_cannot_do_is_said(change, message):
    with pytest.raises(AdapterError, match=message):
        envs.make("Gymnasium", {**LAMPS, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"success": "reward > 0 or 1"}, "is no condition"),
        ({"success": "__import__('os')"}, "is no condition"),
        ({"prompt_format": "grounding"}, "asks for state texts"),
        ({"actions": {"on": 1, "On": 2}}, "differ by more than case"),
        ({"actions": {}}, "at least 1 item"),
    ],
)
def test_options_that_cannot_work_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        envs.make("Gymnasium", {**LAMPS, **change})


@pytest.mark.parametrize(
    ("rule", "facts", "holds"),
    [
        ("terminated and reward > 0", {"terminated": True, "reward": 0.5}, True),
        ("terminated and reward > 0", {"terminated": True, "reward": 0.0}, False),
        ("return >= -200", {"return": -200.0}, True),
        ("steps<40 and not truncated", {"steps": 3, "truncated": False}, True),
        ("steps<40 and not truncated", {"steps": 3, "truncated": True}, False),
        ("info.is_success", {"info.is_success": np.True_}, True),
        ("info.score > 0", {"info.score": np.float32(0.5)}, True),
        ("info.score > 0", {}, False),
        ("not info.is_success", {}, True),
        ("reward == 1", {"reward": 1.0}, True),
    ],
)
def test_rules_of_success(rule, facts, holds):
    assert read_rule(rule)(facts) is holds


def test_there_is_no_warm_start_without_an_expert(tmp_path):
    tree = {
        "envs": {
            "lamps": {"env_name": "Gymnasium", "env_config": LAMPS | {"prompt_format": "no_think"}}
        },
        "judge": {"use_state_reward": False},
    }
    assert experiment(tmp_path, tree).warm_start.steps == 0
    with pytest.raises(ConfigError, match=r"`warm_start\.steps`.*no expert to learn from"):
        experiment(tmp_path, tree, "warm_start.steps=10")


# GymImageEnv.


class Counting(GymImageEnv):
    """Written as for VAGEN: name the number of dots, three rounds."""

    def __init__(self, env_config):
        super().__init__(env_config)
        self.loop = None

    async def system_prompt(self):
        return {"obs_str": f"Count up to {self.config['most']}."}

    async def reset(self, seed):
        self.loop = asyncio.get_running_loop()
        self.numbers = np.random.default_rng(seed).integers(1, self.config["most"] + 1, 3).tolist()
        self.round = 0
        return self.shown(), {}

    async def step(self, action_str):
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        if "slow" in action_str:
            await asyncio.sleep(5)
        right = action_str.strip() == str(self.numbers[self.round])
        self.round += 1
        done = self.round == 3 or not right
        info = {
            "actions": [action_str],
            "metrics": {"turn_metrics": {"action_is_valid": action_str.strip().isdigit()}},
            "success": right and self.round == 3,
        }
        return self.shown(), 1.0 if right else -0.25, done, info

    async def close(self):
        self.closed = True

    def shown(self):
        if self.round == 3:
            return {"obs_str": "over"}
        image = Image.new("RGBA", (32, 16), "white")
        for dot in range(self.numbers[self.round]):
            image.putpixel((2 * dot, 8), (0, 0, 0, 255))
        return {"obs_str": "dots: <image>", "multi_modal_input": {"<image>": [image]}}


class Pictured(Counting):
    async def system_prompt(self):
        return Counting.shown(self) | {"obs_str": "<image>"}


class Mismatched(Counting):
    def shown(self):
        return {"obs_str": "dots: <image> <image>", "multi_modal_input": {"<image>": []}}


HERE = f"{__name__}:Counting"
THEIRS = {"entry_point": HERE, "kwargs": {"most": 9}}


def test_a_class_of_gym_image_env_cannot_say_what_to_keep():
    with pytest.raises(ValidationError, match="no tag of keep or drop"):
        envs.make("GymImageEnv", {**THEIRS, "memory": True})


def test_a_class_of_gym_image_env_runs_unchanged():
    env = envs.make("GymImageEnv", THEIRS)
    assert env.system_prompt() == "Count up to 9."
    observation, info = env.reset(seed=4)
    assert observation["text"] == "dots: <image>"
    (image,) = observation["images"]
    assert image.shape == (16, 32, 3) and image.dtype == np.uint8
    total, over = 0.0, False
    while not over:
        before = info["state"]
        dots = int((observation["images"][0] == 0).all(2).sum())
        observation, reward, terminated, truncated, info = env.step(f" {dots} ")
        total, over = total + reward, terminated or truncated
        assert info["rewards"] == {"env": 1.0, "format": 0.0}
        assert info["metrics"] == {"action_is_valid": True, "action_is_effective": True}
        assert info["parsed"]["actions"] == [f" {dots} "] and info["state"] != before
    assert (terminated, truncated, info["success"], total) == (True, False, True, 3.0)
    assert observation["images"] == ()
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.close()
    assert env._inner.closed


def test_a_class_of_gym_image_env_keeps_the_contract():
    envs.check_env(envs.make("GymImageEnv", THEIRS))


def test_a_wrong_answer_and_the_limit_end_it():
    env = envs.make("GymImageEnv", {**THEIRS, "max_steps": 1})
    env.reset(seed=4)
    _, reward, terminated, truncated, info = env.step("many")
    assert (reward, terminated, truncated) == (-0.25, True, False)
    assert not info["success"] and not info["metrics"]["action_is_valid"]
    observation, _ = env.reset(seed=4)
    dots = int((observation["images"][0] == 0).all(2).sum())
    assert env.step(str(dots))[2:4] == (False, True)


def test_the_same_seed_gives_the_same_pictures_within_a_running_loop():
    async def first(seed):
        env = envs.make("GymImageEnv", THEIRS)
        observation, info = env.reset(seed=seed)
        return observation["images"][0].tobytes(), info["level_hash"]

    assert asyncio.run(first(7)) == asyncio.run(first(7)) != asyncio.run(first(8))


def test_what_is_wrong_with_a_class_is_said():
    with pytest.raises(AdapterError, match=r"cannot be loaded: No module named.*PYTHONPATH"):
        envs.make("GymImageEnv", {"entry_point": "no_such:Env"})
    with pytest.raises(AdapterError, match="no coroutine reset, step, system_prompt"):
        envs.make("GymImageEnv", {"entry_point": "pathlib:Path"})
    with pytest.raises(ValidationError, match="write module:Class"):
        envs.make("GymImageEnv", {"entry_point": "no_such.Env"})
    env = envs.make("GymImageEnv", {**THEIRS, "entry_point": f"{__name__}:Pictured"})
    with pytest.raises(AdapterError, match="pictures in its system prompt"):
        env.reset(seed=0)
    env = envs.make("GymImageEnv", {**THEIRS, "entry_point": f"{__name__}:Mismatched"})
    with pytest.raises(ValueError, match="2 times for 0 pictures"):
        env.reset(seed=0)
    env = envs.make("GymImageEnv", {**THEIRS, "timeout": 0.05})
    env.reset(seed=0)
    with pytest.raises(TimeoutError, match=r"more than 0\.05 s"):
        env.step("slow")
