"""What environments of others return: what has one meaning is taken, the rest refused in words."""

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image
from pydantic import ValidationError

from vagen import envs
from vagen.config.infra import EnvironmentsConfig
from vagen.envs.adapters import AdapterError
from vagen.envs.adapters.gymnasium import SCREEN
from vagen.envs.adapters.pictures import frame_of
from vagen.envs.answers import AnswerError, flag, number, plain
from vagen.envs.answers import stepped as stepped_result
from vagen.envs.gym_image_env import GymImageEnv
from vagen.rollout.scripted import play_scripted
from vagen.rollout.types import Status
from vagen.service import EnvironmentRaised, Environments, HereEnv


class Maze(gymnasium.Env):
    """Answers `step` and `reset` with what it is told to."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    action_space = spaces.Discrete(2)
    change: ClassVar[dict[str, Any]] = {}
    """What of its answers is another."""

    def __init__(self, render_mode: str | None = None):
        if self.change.get("screen") and os.environ.get(SCREEN) != "dummy":
            raise RuntimeError("No available video device")
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(50)
        observation = self.change.get("observation", self.place)
        return self.change.get("reset", (observation, {}))

    def step(self, action):
        self.place += 1
        answer = {
            "observation": self.change.get("observation", self.place),
            "reward": np.float32(0.5),
            "terminated": np.bool_(self.place % 5 == 0),
            "truncated": np.False_,
            "info": {"won": np.True_, "score": np.float32(0.25), "at": np.zeros(3)},
        }
        answer = {name: self.change.get(name, value) for name, value in answer.items()}
        return self.change.get("step", tuple(answer.values()))

    def render(self):
        grey = np.full((32, 48, 3), 200, np.uint8)
        grey[self.place % 32] = 10
        return self.change.get("picture", grey)


gymnasium.register("test/Maze-v0", Maze)
MAZE = {
    "id": "test/Maze-v0",
    "actions": {"go": 0, "stay": 1},
    "prompt": "Go.",
    "success": "terminated and info.won",
    "max_steps": 20,
}
GO = "<think>so</think><answer>go</answer>"


def maze(monkeypatch, *, options: Any = None, **change: Any):
    monkeypatch.setattr(Maze, "change", change)
    return envs.make("Gymnasium", MAZE | (options or {}))


def stepped(env):
    env.reset(seed=0)
    return env.step(GO)


@pytest.mark.parametrize("mode", ["vision", "text"])
def test_numbers_of_numpy_become_plain(monkeypatch, mode):
    env = maze(monkeypatch, options={"render_mode": mode})
    assert len(envs.check_env(env)) == 0
    _, reward, terminated, truncated, info = stepped(env)
    assert [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]
    assert type(info["success"]) is bool and json.loads(json.dumps(info)) == info
    reward, *_ = (number(x, "it") for x in (np.float16(2), np.array(2), 2, True, np.int8(1)))
    assert reward == 2.0 and flag(np.array(True), "it") is True
    assert plain({"a": (np.int64(1), np.array([0.5]))}, "it") == {"a": [1, [0.5]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": float("nan")}, r"Maze\.step\(\)'s reward is nan .* one finite number"),
        ({"reward": np.float32("inf")}, r"Maze\.step\(\)'s reward is inf"),
        ({"reward": 1e39}, r"reward is 1e\+39"),
        ({"reward": np.zeros(2)}, r"reward is an array float64 \[2\]"),
        ({"reward": None}, "reward is None"),
        ({"reward": [1.0]}, r"reward is \[1\.0\]"),
        ({"reward": "1"}, "reward is '1'"),
        ({"terminated": "no"}, r"Maze\.step\(\)'s terminated is 'no' .* True or False"),
        ({"truncated": 1}, "truncated is 1"),
        ({"info": None}, r"Maze\.step\(\) returns None as info"),
        ({"step": (0, 1.0, True, {})}, r"returns a tuple of 4; .*terminated, truncated, info\)"),
        ({"step": (0, 1.0, {}, True, False)}, r"returns False .* as info"),
        ({"step": None}, r"Maze\.step\(\) returns None; it must return"),
        ({"info": {"won": "False"}, "terminated": True}, "info.won is 'False'"),
        ({"info": {"won": 0.25}, "terminated": True}, r"info.won is 0.25 .*`info.KEY > 0`"),
    ],
)
def test_what_step_returns_wrongly_fails_that_episode(monkeypatch, change, message):
    env = maze(monkeypatch, **change)
    with pytest.raises(AnswerError, match=message):
        stepped(env)
    with pytest.raises(envs.ContractError, match=message):
        envs.check_env(env)
    episode = play_scripted(
        HereEnv(env), lambda env, _: GO, config_id="maze", env_name="Gymnasium", seed=0, max_turns=9
    )
    assert (episode.status, episode.success, episode.turns) == (Status.ENV_ERROR, False, [])
    assert episode.error and episode.error.startswith("AnswerError: Maze.step()")


@pytest.mark.parametrize("answer", [np.zeros(2), (0,), (0, None), [0, {}]])
def test_what_reset_returns_wrongly_is_refused(monkeypatch, answer):
    with pytest.raises(AnswerError, match=r"Maze\.reset\(\) returns .*\(observation, info\)"):
        maze(monkeypatch, reset=answer)


GREY = np.arange(12, dtype=np.uint8).reshape(2, 6) * 20
RGB = np.stack([GREY, GREY // 2, GREY * 0], -1)
CLEAR = np.dstack([RGB, np.zeros((2, 6), np.uint8)])
PNG = io.BytesIO()
Image.fromarray(RGB).save(PNG, "PNG")


@pytest.mark.parametrize(
    ("picture", "frame"),
    [
        (RGB, RGB),
        (RGB.astype(np.int64), RGB),
        (RGB.astype(np.float64), RGB),
        ((RGB / 255).astype(np.float32), RGB),
        (RGB.transpose(2, 0, 1), RGB),
        (RGB[None], RGB),
        (GREY, np.stack([GREY] * 3, -1)),
        (GREY[..., None], np.stack([GREY] * 3, -1)),
        (GREY > 100, np.stack([(GREY > 100) * np.uint8(255)] * 3, -1)),
        (np.dstack([RGB, np.full((2, 6), 255, np.uint8)]), RGB),
        (CLEAR, np.full((2, 6, 3), 255, np.uint8)),
        (Image.fromarray(RGB), RGB),
        (Image.fromarray(CLEAR, "RGBA"), np.full((2, 6, 3), 255, np.uint8)),
        (Image.fromarray(GREY), np.stack([GREY] * 3, -1)),
        (PNG.getvalue(), RGB),
        (base64.b64encode(PNG.getvalue()).decode(), RGB),
        ("data:image/png;base64," + base64.b64encode(PNG.getvalue()).decode(), RGB),
    ],
)
def test_pictures_with_one_meaning_are_taken(picture, frame):
    found = frame_of(picture, "it")
    assert found.dtype == np.uint8 and np.array_equal(found, frame)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (None, "it is None"),
        ("+---+", "no picture in base64"),
        (np.zeros((2, 3, 2)), r"float64 \[2, 3, 2\]; a picture is \[height, width\]"),
        (np.zeros((0, 3, 3)), "a picture is"),
        (RGB.astype(np.uint16) * 257, "numbers from 0 to 56540"),
        (RGB / 255 - 0.5, "numbers from -0.5"),
        (RGB * np.nan, "numbers from nan"),
        ((GREY > 100).astype(int), "numbers from 0 to 1"),
        ([[0, 1], [2]], "a picture is an array of numbers"),
    ],
)
def test_pictures_whose_meaning_is_not_certain_are_refused(picture, message):
    with pytest.raises(AnswerError, match=message):
        frame_of(picture, "it")


def test_text_mode_needs_no_pictures(monkeypatch):
    env = maze(monkeypatch, picture="+---+", options={"render_mode": "text"})
    assert env.reset(seed=0)[0]["images"] == ()
    with pytest.raises(AnswerError, match=r"Maze\.render\(\)'s picture is '\+---\+'"):
        maze(monkeypatch, picture="+---+")


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((8, 8, 3), np.uint8), r"every picture is of one colour, \[0, 0, 0\]"),
        (np.eye(8, dtype=np.uint8), "of one colour"),  # as good as black
        (np.dstack([RGB, GREY * 0]), r"of one colour, \[255, 255, 255\]"),  # transparent
        (RGB, r"all pictures are the same, though there were \d+ states"),
    ],
)
def test_the_check_finds_pictures_that_carry_nothing(monkeypatch, picture, message):
    with pytest.raises(envs.ContractError, match=message):
        envs.check_env(maze(monkeypatch, picture=picture))


def test_a_dummy_screen_is_set_only_where_nothing_else_draws(monkeypatch):
    monkeypatch.setenv(SCREEN, "")
    monkeypatch.delenv(SCREEN)
    maze(monkeypatch)
    assert SCREEN not in os.environ
    with pytest.raises(AdapterError, match="TypeError"):
        maze(monkeypatch, options={"kwargs": {"lamps": 3}})
    assert SCREEN not in os.environ
    with pytest.warns(UserWarning, match="draws on a screen.*other environments may draw black"):
        maze(monkeypatch, screen=True)
    assert os.environ[SCREEN] == "dummy"


def test_text_mode_shows_what_it_observes_or_is_refused(monkeypatch):
    text = {"options": {"render_mode": "text"}}
    seen = {"at": np.arange(200) / 3, "mission": "find the <image>", "far": np.inf}
    shown = maze(monkeypatch, observation=seen, **text).reset(seed=0)[0]["text"]
    assert "66.333]" in shown and '"mission": "find the image"' in shown and '"inf"' in shown
    shown = maze(monkeypatch, observation="a dark room", **text).reset(seed=0)[0]["text"]
    assert "\na dark room\n" in shown
    for large, what in (
        ({"screen": np.zeros((84, 84))}, r"screen is an array float64 \[84, 84\]"),
        ((0, object()), "1 is <object"),
    ):
        with pytest.raises(AdapterError, match=rf"Maze\.reset\(\) returns: {what}.*512 numbers"):
            maze(monkeypatch, observation=large, **text)
        first, second = (
            maze(monkeypatch, observation=large).reset(seed=0)[1]["state"] for _ in range(2)
        )
        assert first == second == json.loads(json.dumps(first))


def test_texts_of_an_observation_stand_beside_the_picture(monkeypatch):
    seen = {"mission": "open the <image> door", "image": np.zeros((7, 7, 3)), "more": {"log": "!"}}
    observation, info = maze(monkeypatch, observation=seen).reset(seed=0)
    assert "\nmission: open the image door\nmore.log: !\n<image>\n" in observation["text"]
    assert info["state"]["observation"]["mission"] == "open the <image> door"


@pytest.mark.parametrize("word", ["", " go", "go, stay", "<go>", "</answer>", "a|b"])
def test_action_names_that_no_answer_can_play_are_refused(word):
    separator = {"action_sep": "|"} if "|" in word else {}
    with pytest.raises(ValidationError, match="no answer can play"):
        envs.make("Gymnasium", MAZE | separator | {"actions": {word: 0}})
    with pytest.raises(ValidationError, match="actions"):
        envs.make("Gymnasium", MAZE | {"actions": "Left"})


def test_a_check_says_how_long_it_takes_and_keeps_to_it(monkeypatch):
    step = Maze.step
    monkeypatch.setattr(Maze, "step", lambda self, action: time.sleep(0.02) or step(self, action))
    remarks: list[str] = []
    started = time.monotonic()
    env = maze(monkeypatch, options={"max_steps": 1000}, terminated=False)
    unchecked = envs.check_env(env, remark=remarks.append, seconds=6)
    assert time.monotonic() - started < 12
    assert "s of at most 6, for which it plays less: 2 episodes" in remarks[0]
    assert len(remarks) == 1 + len(unchecked)


# GymImageEnv.


class Told(GymImageEnv):
    """Answers as its configuration says."""

    async def system_prompt(self):
        return self.config.get("prompt", "Go.")

    async def reset(self, seed):
        return self.config.get("reset", (self.config.get("shown", f"at {seed}"), {}))

    async def step(self, action_str):
        if self.config.get("blocks"):
            time.sleep(self.config["blocks"])
        info = self.config.get("info", {})
        return self.config.get("step", (self.config.get("end", "over"), 1.0, True, info))

    async def close(self):
        pass


def told(**config: Any):
    options = {"entry_point": f"{__name__}:Told", "kwargs": config}
    env = envs.make("GymImageEnv", options)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(
    ("text", "pictures"),
    [
        ("see <image>", {"<image>": RGB}),
        ("see <image>", {"<image>": [RGB]}),
        ("see <img>", {"<img>": [Image.fromarray(RGB)], "<image>": []}),
        ("see <image>", {"<image>": base64.b64encode(PNG.getvalue()).decode()}),
    ],
)
def test_pictures_are_taken_alone_encoded_and_under_another_name(text, pictures):
    env = told(shown={"obs_str": text, "multi_modal_input": pictures})
    observation, _ = env.reset(seed=1)
    assert observation["text"] == "see <image>"
    assert np.array_equal(observation["images"][0], RGB)


def test_pictures_of_two_names_stand_in_the_order_of_the_text():
    both = {"<image>": [RGB], "<map>": [GREY]}
    shown = {"obs_str": "map <map>, view <image>", "multi_modal_input": both}
    observation, _ = told(shown=shown).reset(seed=1)
    assert observation["text"] == "map <image>, view <image>"
    assert np.array_equal(observation["images"][1], RGB)


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ({"obs_str": "see", "multi_modal_input": {"<img>": [RGB]}}, "<img> 0 times for 1 pictures"),
        ({"obs_str": "see <image>"}, "<image> 1 times for 0 pictures"),
        ({"obs_str": "<audio>", "multi_modal_input": {"<audio>": "ping"}}, "picture at <audio>"),
        ({"obs_str": "see", "multi_modal_input": [RGB]}, "dict of placeholder"),
        ({"text": "see"}, r"Told\.reset\(\) shows .* it must be a text, or a dict of obs_str"),
        (None, r"Told\.reset\(\) shows None"),
    ],
)
def test_what_cannot_be_shown_is_refused(shown, message):
    with pytest.raises(AnswerError, match=message):
        told(shown=shown)


class Spans(Told):
    """Rewards parts of a response, as environments of VAGEN's main branch may."""

    async def step(self, action_str, response_token_ids=None, tokenizer=None):
        assert tokenizer.decode(response_token_ids, skip_special_tokens=True) == action_str
        rewards = [0.0] * len(response_token_ids)
        rewards[action_str.index("</perception>") - 1] = 0.5
        rewards[-1] += 1.0
        rewards = rewards[: self.config.get("length")]
        return "on", np.array(rewards), *self.config["ends"], {"success": True}


@pytest.mark.parametrize("ends", [(True, False), (False, True), (False, False)])
def test_rewards_of_tokens_are_placed_in_the_text(ends):
    options = {"entry_point": f"{__name__}:Spans", "reward": "vagen-new"}
    options["reward_overrides"] = {"reward": 2.0}
    env = envs.make("GymImageEnv", {**options, "kwargs": {"ends": ends}})
    env.reset(seed=0)
    said = "<perception>left</perception>"
    _, reward, *found, info = stepped_result(env, env.step(said))
    assert (reward, info["rewards"]["env"]) == (3.0, 3.0)
    assert [(said[:end], paid) for end, paid in info["placed"]] == [
        ("<perception>left", 1.0),
        (said, 2.0),
    ]
    assert found == ([True, False] if ends == (False, False) else [*ends]), "success ends it"
    env = envs.make("GymImageEnv", {**options, "kwargs": {"ends": ends, "length": 3}})
    env.reset(seed=0)
    with pytest.raises(
        AnswerError, match=r"has 3 numbers; .* for each of the 29 response_token_ids"
    ):
        env.step(said)


@pytest.mark.parametrize("placed", ["all", 1.0, [3], [(1, 2, 3)], [(1, "much")]])
def test_wrong_places_of_rewards_are_named(placed):
    env = told()
    *parts, info = env.step("go")
    with pytest.raises(AnswerError, match=r"placed is .*; it must be"):
        stepped_result(env, (*parts, {**info, "placed": placed}))


def test_the_base_class_is_found_where_the_main_branch_has_it():
    from vagen.envs._common.gym_base import GymBaseEnv
    from vagen.envs._common.gym_image import GymImageEnv as found

    assert found is GymImageEnv and issubclass(found, GymBaseEnv)


@pytest.mark.parametrize("end", [{}, None])
def test_the_end_need_not_be_shown(end):
    observation, reward, terminated, truncated, _ = told(end=end).step("go")
    assert (observation["text"], observation["images"]) == ("", ())
    assert (reward, terminated, truncated) == (1.0, True, False)


@pytest.mark.parametrize(
    ("info", "ends"),
    [
        ({}, (True, False, False)),
        ({"success": np.True_}, (True, False, True)),
        ({"truncated": True}, (False, True, False)),
    ],
)
def test_flags_of_its_info_say_how_it_ended(info, ends):
    *_, terminated, truncated, found = told(info=info).step("go")
    assert (terminated, truncated, found["success"]) == ends


def test_one_action_is_no_list_of_letters():
    for actions, read in (
        ("Left", ["Left"]),
        (["Left"], ["Left"]),
        (None, []),
        (np.array([3]), ["3"]),
    ):
        *_, found = told(info={"actions": actions}).step("go")
        assert found["parsed"]["actions"] == read


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"step": ("", float("nan"), True, {})}, r"Told\.step\(\)'s reward is nan"),
        (
            {"step": ("", 1.0, False, True, {}, 0)},
            r"Told\.step\(\) returns a tuple of 6; .*done, info",
        ),
        ({"step": ("", 1.0, "no", {})}, "done is 'no'"),
        ({"step": ("", 1.0, True, None)}, "returns None as info"),
        ({"info": {"success": "False"}}, r"info\['success'\] is 'False' .*True or False"),
        ({"info": {"traj_success": 0.25}}, r"info\['traj_success'\] is 0.25"),
        ({"info": {"metrics": None}}, r"info\['metrics'\] is None; it"),
        ({"info": {"metrics": {"turn_metrics": None}}}, r"\['turn_metrics'\] is None; it"),
        ({"info": {"actions": 3}}, r"\['actions'\] is 3 .* list"),
        ({"step": ({}, 1.0, False, {})}, r"Told\.step\(\) shows \{\}"),
    ],
)
def test_what_a_class_returns_wrongly_is_named(config, message):
    with pytest.raises(AnswerError, match=message):
        told(**config).step("go")


@pytest.mark.parametrize("answer", ["at 3", ("at 3",), ("at 3", None)])
def test_what_its_reset_returns_wrongly_is_named(answer):
    with pytest.raises(AnswerError, match=r"Told\.reset\(\) returns .*\(observation, info\)"):
        told(reset=answer)


def test_a_class_that_cannot_be_made_is_named():
    with pytest.raises(AdapterError, match=r"Unmade\(env_config\) raises KeyError: 'map'"):
        envs.make("GymImageEnv", {"entry_point": f"{__name__}:Unmade"})


class Unmade(Told):
    def __init__(self, env_config):
        raise KeyError("map")


def test_one_that_blocks_in_its_coroutine_holds_up_no_other():
    places = Environments(EnvironmentsConfig())

    async def played() -> tuple[float, list[Any]]:
        made = [
            await places.make(
                "GymImageEnv",
                {"entry_point": f"{__name__}:Told", "kwargs": {"blocks": blocks}, "timeout": 0.5},
            )
            for blocks in (3, 0.2, 0.2, 0.2, 0.2)
        ]
        for env in made:
            await env.reset(seed=0)
        started = time.monotonic()
        results = await asyncio.gather(*(env.step("go") for env in made), return_exceptions=True)
        await asyncio.gather(*(env.close() for env in made))
        return time.monotonic() - started, results

    took, (hung, *others) = asyncio.run(played())
    assert isinstance(hung, EnvironmentRaised) and "took more than 0.5 s" in str(hung)
    assert all(answer[1] == 1.0 for answer in others) and took < 1.5


HANGS = """
import asyncio, sys
from threading import Event
from test_foreign_answers import Told
from vagen.service import environments_of

class Hangs(Told):
    def __init__(self, env_config):
        sys.argv[1] == "creation" and Event().wait()
        super().__init__(env_config)

    async def step(self, action_str):
        Event().wait()

async def play():
    options = {"entry_point": "__main__:Hangs", "timeout": 1e6}
    env = await environments_of().make("GymImageEnv", options)
    await env.reset(seed=0)
    print("plays", flush=True)
    await env.step("go")

asyncio.run(asyncio.wait_for(play(), 3))
"""


@pytest.mark.parametrize("where", ["step", "creation"])
def test_one_that_never_returns_does_not_keep_the_process(where):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here.parents[1]}:{here}"}
    command = [sys.executable, "-c", HANGS, where]
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True)
    assert "TimeoutError" in done.stderr and ("plays" in done.stdout) == (where == "step")


def test_browsergym_that_is_not_installed_is_named(monkeypatch):
    from vagen.envs.adapters.browsergym import _actions

    _actions.cache_clear()
    monkeypatch.setitem(sys.modules, "browsergym", None)
    with pytest.raises(AdapterError, match=r"BrowserGym needs browsergym.*: pip install"):
        envs.make("BrowserGym", {"task": "miniwob.click-test"})
