"""What a player wins who reads the text and never looks at the picture."""

import math
import re
from random import Random

import pytest

from vagen import envs
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.levels import sample_level
from vagen.envs.navigation.world import World
from vagen.envs.primitive_skill.tasks import DRAWER_CLOSED, DRAWER_FRONT, TARGETS

BLIND = 0.15
STYLES = ("base", "common_sense", "complex_instruction", "visual_appearance")
MOVES = ("moveahead", "moveright", "moveleft", "moveback", "rotateright")


def wins(config, levels, plan):
    """Which levels a plan wins that looks at nothing."""
    found = []
    for level in levels:
        world, target, pose = World(level.plan), level.plan.things[level.target], level.start
        limit = config.max_steps
        if config.spare_moves is not None:
            limit = min(limit, level.moves + config.spare_moves)
        won = False
        for move in plan[:limit]:
            pose = world.after(pose, move, config.move_metres)
            won |= math.hypot(pose.x - target.x, pose.z - target.z) < config.goal_metres
        found.append(won)
    return found


def best_plan(config, levels, length):
    """The plan that wins most, found leg by leg of three moves (a wall holds each back)."""
    plan: tuple[str, ...] = ()
    legs = [(move,) * 3 for move in MOVES[:4]] + [("rotateright", "moveahead", "moveahead")]
    while len(plan) < length:
        ahead = [(one, two) for one in legs for two in legs]
        best = max(ahead, key=lambda pair: sum(wins(config, levels, (*plan, *pair[0], *pair[1]))))
        plan += best[0]
    return plan


@pytest.mark.slow
def test_navigation_needs_eyes_where_starts_are_anywhere():
    for options, least, most in (
        ({}, 0.4, 0.9),  # VAGEN's starts: walking on
        ({"starts": "anywhere", "spare_moves": 3, "success_distance": 1.0}, 0.0, BLIND),
    ):
        config = NavigationConfig(tasks=STYLES, **options)
        drawn = [sample_level(config, seed, "train") for seed in range(40)]
        plan = best_plan(config, drawn, 12)
        held_out = [sample_level(config, seed, "test") for seed in range(100)]
        share = sum(wins(config, held_out, plan)) / len(held_out)
        assert least <= share <= most, (options, plan, share)


def read(observation):
    return [
        tuple(map(int, place))
        for place in re.findall(
            r"\((-?\d+), (-?\d+), (-?\d+)\)", observation["text"].partition("order: ")[2]
        )
    ]


class Reader:
    """Plays PrimitiveSkill by the listed places, one primitive at a time; guesses all names."""

    def __init__(self, env, seed):
        self.env, self.rng = env, Random(seed)
        observation, info = env.reset(seed=seed)
        self.places, self.won, self.over = read(observation), False, False
        self.task = info["state"]["task"]

    def do(self, action):
        """Whether a thing was lifted, for all that the list tells."""
        if self.over:
            return False
        observation, _, terminated, truncated, info = self.env.step(
            f"<think>x</think><answer>{action}</answer>"
        )
        self.over, self.won = terminated or truncated, info["success"]
        self.places = read(observation)
        return any(z > 150 for *_, z in self.places)

    def lifted(self, candidates):
        """Tries places until something is held; where it was."""
        for x, y, z in candidates:
            if self.do(f"pick({x},{y},{z})"):
                return x, y, z
            if self.over:
                break
        return None

    def play(self):
        candidates = self.rng.sample(self.places, len(self.places))
        getattr(self, self.task)(candidates)
        return self.won

    def AlignTwoCube(self, left):
        while not self.over and (found := self.lifted(left)):
            left = left[left.index(found) + 1 :]
            self.do(f"place(0,{found[1]},20)")

    def PlaceTwoCube(self, left):
        for x, y in self.rng.sample(TARGETS, 2):
            if found := self.lifted(left):
                left = left[left.index(found) + 1 :]
                self.do(f"place({x},{y},20)")

    def StackThreeCube(self, left):
        x, y, _ = left[0]
        rest = left[1:]
        for z in (60, 100):
            if found := self.lifted(rest):
                rest = rest[rest.index(found) + 1 :]
                self.do(f"place({x},{y},{z})")

    def PutAppleInDrawer(self, left):
        apples, drawers = ([p for p in left if p[2] == z] for z in (24, 34))
        if self.lifted(apples):
            x, y, z = drawers[0]
            self.do(f"place({x},{y},{z})")
            end = DRAWER_CLOSED + DRAWER_FRONT + 7
            self.do(f"push({min(x + 90, 150)},{y},40,{end},{y},40)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "named", "most"),
    [
        ("AlignTwoCube", 0.9, 6),
        ("PlaceTwoCube", 0.3, 6),
        ("StackThreeCube", 0.0, 6),
        ("PutAppleInDrawer", 0.8, 4),
    ],
)
def test_decoys_take_the_names_from_the_list(task, named, most):
    shares = []
    for decoys, limit in ((0, 10), (10, most)):
        env = envs.make(
            "PrimitiveSkill",
            {
                "task": task,
                "decoys": decoys,
                "max_steps": limit,
                "image_size": 64,
                "prompt_format": "free_think",
            },
        )
        shares.append(sum(Reader(env, seed).play() for seed in range(30)) / 30)
        env.close()
    assert shares[0] >= named and shares[1] <= BLIND, shares
