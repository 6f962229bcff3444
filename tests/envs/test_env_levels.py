"""Levels: disjoint splits, the same in every process, distinct lists."""

import json
import os
import subprocess
import sys

import pytest

from vagen import envs
from vagen.envs import distinct_levels
from vagen.envs.levels import SPLITS, LevelError, content_hash, split_of

NAMES = sorted(envs.ENVIRONMENTS)
EPISODES = """
import hashlib, json, sys
from vagen.envs import SPLITS, distinct_levels, make
name, options = json.loads(sys.argv[1])
for split in SPLITS:
    for ref in distinct_levels(name, options, split, 3):
        env = make(name, options, split)
        shown, info = env.reset(seed=ref.seed)
        assert info["level_hash"] == ref.level_hash
        for _ in range(3):
            pictures = [hashlib.sha256(image.tobytes()).hexdigest() for image in shown["images"]]
            print(split, ref.seed, ref.level_hash, shown["text"], info["state"], pictures)
            shown, _, terminated, truncated, info = env.step(env.expert_response())
            if terminated or truncated:
                break
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        ("Blackjack", {}),
        ("FrozenLake", {"is_slippery": True}),
        ("Household", {}),
        ("Navigation", {}),
        ("Navigation", {"tasks": "long_horizon", "render_mode": "text"}),
        ("PrimitiveSkill", {"task": "PutAppleInDrawer"}),
        ("Sokoban", {}),
        ("Sokoban", {"dim_room": [8, 8], "num_boxes": 2}),
        ("SVG", {"difficulty": [1, 5]}),
        ("Web", {}),
    ],
    ids=str,
)
def test_episodes_are_the_same_in_every_process_and_hash_seed(case):
    def printed(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", EPISODES, json.dumps(case)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    first = printed("0")
    assert all(first.count(f"{split} ") >= 3 for split in SPLITS)
    assert printed("random") == first


KNOWN = [
    ("496665a04c7b", "d5048963bfcc"),
    ("8784b80f8fb4", "3b95a04cc95b"),
    ("d1d66f1ac021", "490a04f6be66"),
]


def test_known_levels_stay_what_they_are():
    # Changing these breaks the comparability of every stored run.
    assert [
        (
            envs.make("FrozenLake", {}, split).reset(seed=0)[1]["level_hash"][:12],
            envs.make("Sokoban", {}, split).reset(seed=0)[1]["level_hash"][:12],
        )
        for split in SPLITS
    ] == KNOWN


def test_no_sokoban_room_is_in_two_splits():
    rooms = {split: set() for split in SPLITS}
    for split in SPLITS:
        env = envs.make("Sokoban", {"render_mode": "text"}, split)
        for seed in range(150):
            state = env.reset(seed=seed)[1]["state"]
            rooms[split].add((str(state["walls"]), str(state["targets"])))
    assert not rooms["train"] & rooms["test"]
    assert not rooms["train"] & rooms["val"]
    assert not rooms["val"] & rooms["test"]


def test_split_shares():
    splits = [split_of(content_hash(str(number))) for number in range(5000)]
    assert splits.count("test") == pytest.approx(500, abs=80)
    assert splits.count("val") == pytest.approx(500, abs=80)


@pytest.mark.parametrize("name", NAMES)
def test_reset_options_override_the_split(name):
    env = envs.make(name, {"render_mode": "text"}, "train")
    own = {"render_mode": "text"} if name == "Web" else {}  # its pictures need a browser
    _, info = env.reset(seed=5, options={"split": "test"})
    assert info["level_hash"] == envs.make(name, own, "test").reset(seed=5)[1]["level_hash"]
    _, info = env.reset(seed=5)
    assert info["level_hash"] == envs.make(name, own, "train").reset(seed=5)[1]["level_hash"]


@pytest.mark.parametrize("name", NAMES)
def test_distinct_levels_are_distinct_and_grow_by_appending(name):
    refs = distinct_levels(name, {}, "train", 60)
    assert len({ref.level_hash for ref in refs}) == len({ref.seed for ref in refs}) == 60
    assert distinct_levels(name, {}, "train", 20) == refs[:20]
    assert distinct_levels(name, {}, "train", 0) == []


def test_the_number_of_levels_found_is_told_if_too_many_are_wanted():
    lake = {"size": 2, "p_frozen": 1.0}  # 4 x 3 starts and targets in all, over three splits
    with pytest.raises(LevelError, match=r"50 distinct levels wanted, but only \d+ were found"):
        distinct_levels("FrozenLake", lake, "train", 50)


def test_impossible_options_are_told():
    with pytest.raises(LevelError, match="widen min_distance"):
        envs.make("FrozenLake", {"size": 3, "min_distance": 9}).reset(seed=0)
    with pytest.raises(LevelError, match="lower min_solution_length"):
        envs.make("Sokoban", {"dim_room": [4, 4], "min_solution_length": 40}).reset(seed=0)
