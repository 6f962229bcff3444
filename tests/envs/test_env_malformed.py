"""Responses that a model may come up with and nobody wants: no parser raises, none is rewarded."""

import string
import sys
from collections.abc import Callable
from random import Random

import pytest
from env_cases import CASES, NAMES

from vagen import envs

COUNT = 10_000
STEPPED = 300
HUGE = 300_000
SIMULATORS = {"miniworld", "pyglet", "mujoco", "mani_skill", "ai2thor"}


class Malformer:
    """Makes responses that are wrong by construction, most of them out of a right one."""

    def __init__(self, right: str, seed: int):
        self.right = right
        self.rng = Random(seed)
        self.makers: list[Callable[[], str]] = [
            self.random_bytes,
            self.random_text,
            self.cut_short,
            self.something_around,
            self.said_twice,
            self.injected_tag,
            self.nested_tags,
            self.look_alike,
            self.wrong_answer,
            self.odd_numbers,
        ]
        self.rare = [self.huge_text, self.huge_tags, self.huge_answer]

    def make(self) -> str:
        rare = self.rng.random() < 0.002
        return self.rng.choice(self.rare if rare else self.makers)()

    def random_bytes(self) -> str:
        data = self.rng.randbytes(self.rng.randrange(400))
        return data.decode(self.rng.choice(["latin-1", "utf-8"]), "replace")

    def random_text(self) -> str:
        """Any code points, halves of surrogate pairs included."""
        count = self.rng.randrange(200)
        return "".join(chr(self.rng.randrange(0x110000)) for _ in range(count))

    def cut_short(self) -> str:
        return self.right[: self.rng.randrange(len(self.right))]

    def something_around(self) -> str:
        word = self.rng.choice(
            ["x", "Sure!", "<", "</", "&lt;", "```", "\N{ZERO WIDTH SPACE}", "<|"]
        )
        return self.rng.choice([f"{word}{self.right}", f"{self.right}\n{word}"])

    def said_twice(self) -> str:
        return self.right + self.rng.choice([" ", "\n", ""]) + self.right

    def injected_tag(self) -> str:
        """A tag more, before the answer."""
        place = self.rng.randrange(self.right.index("<answer>"))
        names = ["think", "answer", "observation", "image", "reward", "tool_call", "svg", "a"]
        tag = self.rng.choice(["<{}>", "</{}>", "<{}/>", "<{0}></{0}>"])
        return self.right[:place] + tag.format(self.rng.choice(names)) + self.right[place:]

    def nested_tags(self) -> str:
        name, depth = self.rng.choice(["think", "answer", "b"]), self.rng.randrange(1, 300)
        return f"<{name}>" * depth + self.right + f"</{name}>" * self.rng.randrange(depth + 1)

    def look_alike(self) -> str:
        """Tags written with other characters, or with nothing visible inside."""
        old, new = self.rng.choice(
            [
                ("<", "\N{FULLWIDTH LESS-THAN SIGN}"),
                ("<answer>", "<\N{CYRILLIC SMALL LETTER A}nswer>"),
                ("</answer>", "</ans\N{ZERO WIDTH JOINER}wer>"),
                ("<answer>", "<ANSWER>"),
                ("<answer>", "<answer >" if self.rng.random() < 0.5 else "<answer id='1'>"),
                ("</answer>", "<answer>"),
                ("</answer>", "\0"),
            ]
        )
        return self.right.replace(old, new)

    def wrong_answer(self) -> str:
        letters = (
            string.printable.replace("<", "").replace(">", "") + "\u202e\u00df\u0130\U0001f680"
        )
        junk = "".join(self.rng.choices(letters, k=self.rng.randrange(1, 60)))
        return self.answered(f"{junk}#")

    def odd_numbers(self) -> str:
        number = self.rng.choice(
            ["9" * 5000, "1e309", "nan", "-inf", "0x10", "\N{ARABIC-INDIC DIGIT ONE}", "1_0", "--1"]
        )
        act = self.rng.choice(
            ["pick({0},0,20)", "push({0},{0},{0},1,1,1)", "go to shelf {0}", "{0}"]
        )
        return self.answered(act.format(number))

    def huge_text(self) -> str:
        return self.rng.choice(["x", " ", "<", "\n", "é", "("]) * HUGE

    def huge_tags(self) -> str:
        return self.rng.choice(["<think>", "</answer>", "<answer>Up</answer>", "<a"]) * (HUGE // 8)

    def huge_answer(self) -> str:
        return self.answered(
            self.rng.choice(["Up,", "|", "~~", "pick(", "((((", "?"]) * (HUGE // 4)
        )

    def answered(self, answer: str) -> str:
        """The right response with this for an answer."""
        start = self.right.index("<answer>") + len("<answer>")
        return f"{self.right[:start]}{answer}{self.right[self.right.rindex('</answer>') :]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(envs.ENVIRONMENTS))
def test_no_parser_raises_or_accepts(name):
    """Also those of simulators, which are not loaded for it."""
    loaded = SIMULATORS & set(sys.modules)
    env = envs.make(name)
    parser, right = env._parser, env.example_response()
    assert parser.parse(right).format_correct, "what is made wrong below is right"
    malformer = Malformer(right, seed=7)
    for _ in range(COUNT):
        response = malformer.make()
        assert not parser.parse(response).format_correct, response[:500]
    assert SIMULATORS & set(sys.modules) == loaded


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "Navigation"])
def test_no_environment_rewards_them(name):
    env = envs.make(name, CASES[name].options if name in CASES else {"render_mode": "text"})
    malformer = Malformer(env.example_response(), seed=8)
    env.reset(seed=0)
    for seed in range(STEPPED):
        response = malformer.make()
        _, reward, terminated, truncated, info = env.step(response)
        assert reward <= 0 and info["rewards"]["format"] == 0, response[:500]
        assert not info["parsed"]["format_correct"] and not info["success"]
        if terminated or truncated:
            env.reset(seed=seed)
