"""`check_env` and `vagen env check`: what breaks the contract is said."""

import random
import re
import sys
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from vagen import envs
from vagen.cli.main import main
from vagen.envs import ContractError, check_env
from vagen.envs.frozenlake.env import FrozenLakeConfig, FrozenLakeEnv


class Unseeded(FrozenLakeEnv):
    """A level of its own draw."""

    @classmethod
    def sample_level(cls, config, seed, split):
        return super().sample_level(config, random.randrange(10**6), split)


class OneLevel(FrozenLakeEnv):
    @classmethod
    def sample_level(cls, config, seed, split):
        return super().sample_level(config, 0, split)


class OneSplit(FrozenLakeEnv):
    @classmethod
    def sample_level(cls, config, seed, split):
        return super().sample_level(config, seed, "train")


class OtherLevel(FrozenLakeEnv):
    """`reset` does not load what `sample_level` says."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None if seed is None else seed + 1, options=options)


class Trace(FrozenLakeEnv):
    """Remembers the episodes before."""

    played = 0

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.played += 1
        return {**observation, "text": f"{observation['text']} {self.played}"}, info


class Shared(FrozenLakeEnv):
    """Keeps the level in a global."""

    def _load_level(self, level, seed):
        Shared.level = level
        time.sleep(0.002)
        super()._load_level(Shared.level, seed)


class NoPlaceholder(FrozenLakeEnv):
    def _shown(self):
        return "a lake", (self.picture(),)


class FloatImages(FrozenLakeEnv):
    def picture(self):
        return super().picture() / 255


class ListOfImages(FrozenLakeEnv):
    def _observe(self, moves):
        shown = super()._observe(moves)
        return {**shown, "images": list(shown["images"])}


class NumpyState(FrozenLakeEnv):
    def _read_state(self):
        state = super()._read_state()
        return {**state, "player": [np.int64(cell) for cell in state["player"]]}


class OneState(FrozenLakeEnv):
    """Hands out one dict and changes it."""

    def _read_state(self):
        self._only = {**getattr(self, "_only", {}), **super()._read_state()}
        self._state.update(self._only)
        return self._state or self._only


class OtherState(FrozenLakeEnv):
    def state(self):
        return {}


class TellsLevel(FrozenLakeEnv):
    def system_prompt(self):
        return f"{super().system_prompt()} {self._state.get('target')}"


class WrongExample(FrozenLakeEnv):
    example_actions = ("Jump",)


class ShowsReward(FrozenLakeEnv):
    def _load_level(self, level, seed):
        self._paid = None
        super()._load_level(level, seed)

    def _move(self, action):
        self._paid = super()._move(action)
        return self._paid

    def _shown(self):
        text, images = super()._shown()
        return f"{text} {self._paid}", images


class NoExpert(FrozenLakeEnv):
    """Walks away from the target."""

    def _plan(self, count):
        return ["Up" if self._state["target"][0] > self._state["player"][0] else "Down"]


class LyingExpert(FrozenLakeEnv):
    def expert_response(self):
        actions = self._plan(1)
        return self._write(actions, self._after(self._state, actions), self._state)


class InvalidExpert(FrozenLakeEnv):
    def expert_response(self):
        return "go right"


class Negative(FrozenLakeEnv):
    @classmethod
    def distance(cls, state):
        return -1.0


class Distant(FrozenLakeEnv):
    """Success is not at a distance of 0."""

    @classmethod
    def distance(cls, state):
        found = super().distance(state)
        return None if found is None else found + 1


class Broken(FrozenLakeEnv):
    def reset(self, *, seed=None, options=None):
        raise KeyError("board")


class TupleConfig(FrozenLakeConfig):
    shape: Any = (4, 4)


class TupleOption(FrozenLakeEnv):
    config_class = TupleConfig


def stepping(name, change):
    """A class whose `step` gives what `change(env, response, result)` makes of the right one."""

    def step(self, action):
        return change(self, action, FrozenLakeEnv.step(self, action))

    return type(name, (FrozenLakeEnv,), {"step": step})


def with_info(result, **changes):
    *others, info = result
    return (*others, {key: value for key, value in {**info, **changes}.items() if value != "gone"})


def ends_late(env, response, result):
    env._running = True
    return (*result[:2], False, False, result[4])


def is_lenient(env, response, result):
    """Finds the answer among whatever is around it."""
    if (inner := re.search("<think>.*</answer>", response)) is None or result[2] or result[3]:
        return result
    env._running = True
    return FrozenLakeEnv.step(env, inner[0])


BROKEN = [
    (Unseeded, "another level for the same seed"),
    (OneLevel, "20 seeds give one and the same level in train"),
    (OneSplit, r"is in train and in val; decide by split_of"),
    (OtherLevel, r"reset\(seed=3\) loads another level of train"),
    (Trace, "another episode in an instance that was played before: take all chance from the seed"),
    (NoPlaceholder, "holds <image> 0 times for 1 images; it must hold it once for each"),
    (FloatImages, r"array float64 \[96, 96, 3\]; an image is an array uint8"),
    (ListOfImages, r"images are .*not a tuple"),
    (NumpyState, r"info\['state'\]\['player'\]\[0\] is np.int64.*JSON does not hold"),
    (OneState, "changes a state that was handed out before: build a new state each time"),
    (OtherState, r"state\(\) is not the last info's state"),
    (TellsLevel, r"system_prompt\(\) depends on the level"),
    (WrongExample, r"raises KeyError: 'Jump' \(while it was checked that its system prompt"),
    (ShowsReward, "the agent could read its reward"),
    (NoExpert, "solves none of 8 levels; .*has_expert = False"),
    (LyingExpert, "the expert describes a state by .*but state_text gives"),
    (InvalidExpert, "the expert's response 'go right' is not accepted"),
    (Negative, r"distance\(\) gives -1.0; it must be a number from 0"),
    (Distant, "where the expert has succeeded, not 1"),
    (Broken, "Broken raises KeyError: 'board'"),
    (TupleOption, r"options change on their way through JSON.*\(4, 4\)"),
    (
        stepping("OldGym", lambda env, response, result: result[:4]),
        r"step\(\) returns a tuple of 4; it must return \(observation, reward, terminated, trunc",
    ),
    (
        stepping("NoMetrics", lambda env, response, result: with_info(result, metrics="gone")),
        r"step\(\)'s info holds rewards, parsed, success, state.*; it must hold rewards, parsed, m",
    ),
    (
        stepping("Unsummed", lambda env, response, result: (result[0], 3.0, *result[2:])),
        "the reward is 3.0, but its parts .* sum to ",
    ),
    (
        stepping("Number", lambda env, response, result: with_info(result, success=1)),
        "success is 1 .*must be True or False",
    ),
    (stepping("Endless", ends_late), "does not end after 6 responses, though max_steps is 6"),
    (
        stepping(
            "Failing",
            lambda env, response, result: (*result[:2], result[2] or result[3], False, result[4]),
        ),
        "after max_steps 1 an episode is terminated; it must be truncated",
    ),
    (
        stepping(
            "Late",
            lambda env, response, result: (
                *result[:2],
                result[2] and env._steps_taken < env.config.max_steps,
                env._steps_taken >= env.config.max_steps,
                result[4],
            ),
        ),
        r"ends on the last allowed action \(max_steps \d\) is truncated; it must be terminated",
    ),
    (
        stepping("Fragile", lambda env, response, result: (response.encode(), result)[1]),
        r"the response '\\x00\\ud800' raises UnicodeEncodeError",
    ),
    (stepping("Lenient", is_lenient), "the format of 'so: <think>.*is accepted"),
    (
        stepping(
            "Unending", lambda env, response, result: setattr(env, "_running", True) or result
        ),
        r"step\(\) after the end of an episode is to raise gymnasium.error.ResetNeeded",
    ),
]


@pytest.mark.parametrize(
    ("kind", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_what_breaks_the_contract_is_said(kind, message):
    with pytest.raises(ContractError, match=message):
        check_env(kind({"size": 3, "p_frozen": 0.9, "max_steps": 6}))


def test_what_shares_globals_between_threads_is_found():
    with pytest.raises(ContractError, match="keep no globals, or set needs_process"):
        check_env(Shared({"render_mode": "text"}))


def test_a_wrapped_environment_is_checked_and_another_class_refused():
    said = []
    check_env(gymnasium.make("vagen/FrozenLake-v0"), report=said.append)
    assert len(said) == len(set(said)) == 12
    with pytest.raises(ContractError, match="CartPoleEnv is no AgentEnv: derive from"):
        check_env(gymnasium.make("CartPole-v1"))


def test_the_command_says_what_it_checked_and_why_it_is_refused(tmp_path, monkeypatch, capsys):
    assert main(["env", "check", "FrozenLake", "--config", "size=3", "--config", "p_frozen=1"]) == 0
    remark, *kept, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"· takes about \d+ s of at most 60", remark)
    assert len(kept) == 12 and all(line.startswith("✓ ") for line in kept)
    assert last == "FrozenLake keeps the contract of vagen.envs.AgentEnv"

    (tmp_path / "their_lake.py").write_text(
        "from vagen.envs.frozenlake.env import FrozenLakeEnv\n\n\n"
        "class Lake(FrozenLakeEnv):\n"
        "    def _plan(self, count):\n"
        "        target, player = self._state['target'], self._state['player']\n"
        "        return ['Up' if target[0] > player[0] else 'Down']\n\n\n"
        "class Dry(FrozenLakeEnv):\n"
        "    def __init__(self, *args, **options):\n"
        "        raise KeyError('water')\n"
    )
    (tmp_path / "lake.yaml").write_text("size: 3\nrender_mode: text\nmax_steps: 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = str(tmp_path / "lake.yaml")
    for words, message in (
        (["their_lake:Lake", "--config", file], "error: the expert solves none of 8 levels"),
        (["their_lake:Dry"], "error: their_lake:Dry cannot be made: KeyError: 'water'"),
        (["their_lake:River"], "has no attribute 'River'"),
        (["FrozenLake", "--config", "sise=3"], "sise"),
        (["FrozenLake", "--config", str(tmp_path / "none.yaml")], "cannot be read"),
    ):
        assert main(["env", "check", *words]) == 2
        out, err = capsys.readouterr()
        assert message in err and "keeps the contract" not in out
    sys.modules.pop("their_lake")


class Walk(gymnasium.Env):
    """A dot on a line; drawn with numpy, because pygame's pictures are not made for threads."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Discrete(1000)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(1000))
        return self.place, {}

    def step(self, action):
        self.place = (self.place + 2 * int(action) - 1) % 1000
        return self.place, 0.0, False, False, {}

    def render(self):
        picture = np.zeros((32, 32, 3), np.uint8)
        picture[self.place // 32, self.place % 32] = 255
        return picture


gymnasium.register("test/Walk-v0", Walk)


def test_a_foreign_environment_without_an_expert_is_not_said_to_have_one():
    said = []
    options = {"id": "test/Walk-v0", "actions": {"left": 0, "right": 1}, "prompt": "Walk."}
    check_env(envs.make("Gymnasium", {**options, "max_steps": 30}), report=said.append)
    assert len(said) == 11 and not any("expert" in line for line in said)
