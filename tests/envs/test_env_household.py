"""Household: rules of the home, tasks, what is seen, the expert that searches."""

import json
from random import Random

import numpy as np
import pytest
from env_cases import episode, wins
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vagen import envs
from vagen.envs.household.expert import next_action, plan, remaining
from vagen.envs.household.homes import HouseholdConfig, sample_level
from vagen.envs.household.world import (
    _COMMANDS,
    HALL,
    LAMP_PLACES,
    OBJECTS,
    PLACES,
    Goal,
    World,
    kind_of,
    read_command,
)
from vagen.envs.levels import split_of

TASKS = ("put", "clean", "heat", "cool", "examine", "two")


def home(task="heat", name="mug", place="diningtable", **changes):
    world = World(
        goal=Goal(task, name, place),
        rooms={
            "kitchen": ["countertop 1", "fridge 1", "microwave 1", "sink 1", "diningtable 1"],
            "living room": ["desk 1"],
        },
        where={"apple 1": "fridge 1", "mug 1": "countertop 1", "mug 2": "desk 1"},
        lamps={"desklamp 1": "desk 1"},
    )
    for key, value in changes.items():
        setattr(world, key, value)
    return world


def do(world, *commands):
    return [world.do(command) for command in commands]


def test_what_is_closed_is_neither_seen_nor_reached():
    world = home(at="fridge 1")
    assert world.visible() == []
    assert do(world, "take apple 1 from fridge 1", "close fridge 1") == [False, False]
    assert do(world, "open fridge 1") == [True] and world.visible() == ["apple 1"]
    assert do(world, "open fridge 1", "take apple 1 from fridge 1") == [False, True]
    assert do(world, "close fridge 1", "put apple 1 in fridge 1") == [True, False]
    assert world.holding == "apple 1" and "apple 1" not in world.where


def test_one_thing_is_held_and_only_what_is_here_is_taken():
    world = home(at="countertop 1")
    assert do(world, "take mug 2 from desk 1", "take mug 1 from countertop 1") == [False, True]
    assert do(world, "go to desk 1", "take mug 2 from desk 1") == [True, False]
    assert do(world, "go to desk 1", "put mug 1 on countertop 1") == [False, False]
    assert do(world, "put mug 1 on desk 1") == [True]
    assert world.contents("desk 1") == ["mug 1", "mug 2"]


def test_hot_and_cold_exclude_each_other_and_clean_stays():
    world = home(holding="apple 1", at="sink 1")
    del world.where["apple 1"]
    assert do(world, "clean apple 1 with sink 1", "heat apple 1 with microwave 1") == [True, False]
    assert do(world, "go to microwave 1", "heat apple 1 with microwave 1") == [True, True]
    assert world.conditions["apple 1"] == {"clean", "hot"}
    assert do(world, "cool apple 1 with microwave 1") == [False]
    assert do(world, "go to fridge 1", "cool apple 1 with fridge 1") == [True, True]
    assert world.conditions["apple 1"] == {"clean", "cold"}
    world.holding = "book 1"
    assert not world.do("cool book 1 with fridge 1")


@pytest.mark.parametrize(
    ("task", "commands", "done_after"),
    [
        (
            "put",
            [
                *("take mug 1 from countertop 1", "go to diningtable 1"),
                "put mug 1 on diningtable 1",
            ],
            3,
        ),
        (
            "heat",
            [
                *("take mug 1 from countertop 1", "go to diningtable 1"),
                *("put mug 1 on diningtable 1", "take mug 1 from diningtable 1"),
                *("go to microwave 1", "heat mug 1 with microwave 1"),
                *("go to diningtable 1", "put mug 1 on diningtable 1"),
            ],
            8,
        ),
        (
            "two",
            [
                *("take mug 1 from countertop 1", "go to diningtable 1"),
                *("put mug 1 on diningtable 1", "go to desk 1", "take mug 2 from desk 1"),
                *("go to diningtable 1", "put mug 2 on diningtable 1"),
            ],
            7,
        ),
        ("examine", ["go to desk 1", "use desklamp 1", "take mug 2 from desk 1"], 3),
        ("examine", ["take mug 1 from countertop 1", "go to desk 1", "use desklamp 1"], 3),
    ],
)  # fmt: skip
def test_a_task_is_done_when_its_last_condition_holds_and_not_before(task, commands, done_after):
    world = home(task, place="desklamp" if task == "examine" else "diningtable", at="countertop 1")
    for count, command in enumerate(commands, 1):
        assert not world.is_done() and world.do(command)
        assert world.is_done() == (count == done_after)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("go to fridge 1", "go to fridge 1"),
        ("  GO  to\tFridge 1 ", "go to fridge 1"),
        ("put mug 1 in desk 1", "put mug 1 on desk 1"),
        ("put mug 12 in/on cabinet 3", "put mug 12 in cabinet 3"),
        ("use desklamp 1", "use desklamp 1"),
        ("look", "look"),
        ("look around", None),
        ("go to mug 1", None),
        ("go to fridge", None),
        ("go to fridge 0", None),
        ("take fridge 1 from mug 1", None),
        ("use fridge 1", None),
        ("put mug 1 under desk 1", None),
        ("go to fridge 1 and open it", None),
        ("dance", None),
        ("", None),
    ],
)
def test_commands_are_read_strictly(text, canonical):
    assert read_command(text) == canonical


@given(st.text(max_size=200))
def test_reading_any_text_gives_a_command_or_none(text):
    command = read_command(text)
    assert command is None or read_command(command) == command


def test_the_listed_commands_are_exactly_those_with_an_effect():
    """Every command of the home's things is tried in states of random play."""
    rng = Random(0)
    level = sample_level(HouseholdConfig(rooms=1, objects=5), 3, "train")
    world = World.from_state(level.state)
    names = sorted(world.where)
    every = {"look"}
    for place in world.places:
        every |= {f"go to {place}", f"open {place}", f"close {place}"}
        for name in names:
            every |= {f"take {name} from {place}", read_command(f"put {name} in {place}")}
            every |= {f"{verb} {name} with {place}" for verb in ("heat", "cool", "clean")}
    every |= {f"use {lamp}" for lamp in world.lamps}
    assert {command.split(" ")[0] for command in every} == set(_COMMANDS)
    for _ in range(40):
        listed = set(world.commands())
        assert listed == {command for command in every if world.copy().do(command)}
        for command in listed - {"look"}:
            other = world.copy()
            other.do(command)
            assert {**other.to_state(), "seen": 0} != {**world.to_state(), "seen": 0}
        world.do(rng.choice(sorted(listed)))


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_does_each_task_without_knowing_what_it_has_not_seen(task):
    env = envs.make("Household", {"tasks": [task], "prompt_format": "no_think"})
    for seed in range(12):
        for before, (*_, info) in episode(env, seed):
            # The same plan where everything unseen lies elsewhere: the expert cannot have looked.
            world = World.from_state({k: v for k, v in before.items() if k != "env_name"})
            hidden = [place for place in world.places if place not in world.seen]
            other = world.copy()
            for name, place in world.where.items():
                if place in hidden:
                    other.where[name] = hidden[0]
            if not other.is_done():
                assert next_action(other) == next_action(world)
            assert info["metrics"]["action_is_effective"]
        assert info["success"]


@pytest.mark.slow
def test_the_expert_solves_nearly_all_homes_and_chance_hardly_any():
    env = envs.make("Household", {"prompt_format": "no_think"})
    rng = Random(0)

    def chance():
        return f"<answer>{rng.choice(env._world.commands())}</answer>"

    assert wins(env, range(200), split="test") >= 190
    assert wins(env, range(200), chance, split="test") <= 20


def test_distances_are_lengths_of_informed_plans():
    assert remaining(home(at="countertop 1")) == 5.0
    done = home("put", at="diningtable 1", where={"mug 1": "diningtable 1"})
    assert remaining(done) == 0.0
    lost = home("put")
    lost.where = {"apple 1": "fridge 1"}
    assert remaining(lost) is None
    env = envs.make("Household", {})
    _, info = env.reset(seed=0)
    start = info["state"]
    assert env.potential(start, start) == 0.0
    while not info.get("success"):
        *_, info = env.step(env.expert_response())
    assert env.potential(info["state"], start) == 1.0


def test_plans_end_where_something_new_is_seen():
    world = home(at=HALL)
    assert len(plan(world, 5)) == 1  # going to an open place shows what lies there
    world.do("go to countertop 1")
    assert plan(world, 9) == [
        *("take mug 1 from countertop 1", "go to microwave 1", "heat mug 1 with microwave 1"),
        *("go to diningtable 1",),
    ]
    assert world.holding is None


def test_texts_say_what_is_seen_and_no_more():
    env = envs.make("Household", {"show_commands": True, "rooms": 2})
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        state, over = info["state"], False
        assert f"Task: {Goal(**state['goal']).text()}." in observation["text"]
        for place in (place for places in state["rooms"].values() for place in places):
            assert place in observation["text"]
        assert not any(
            f"{name} " in observation["text"].split("Task")[0] for name in state["where"]
        )
        while not over:
            observation, _, terminated, truncated, info = env.step(env.expert_response())
            over, state = terminated or truncated, info["state"]
            shown = observation["text"].split("You are ")[1].split("You hold")[0]
            for name, place in state["where"].items():
                visible = place == state["at"] and not World.from_state(
                    {k: v for k, v in state.items() if k != "env_name"}
                ).is_closed(place)
                assert (
                    name in shown.replace(".", ",").replace(" (", ",").split(", ")
                ) == visible or (visible and name in shown)
            assert all(command in observation["text"] for command in env._world.commands())
            assert json.loads(json.dumps(state)) == state


def test_state_texts_are_true_and_predictions_leave_out_what_is_not_seen_yet():
    env = envs.make("Household", {})
    for seed in range(25):
        for before, (*_, info) in episode(env, seed):
            parsed, after = info["parsed"], info["state"]
            assert parsed["observation"] == env.state_text(before)
            said, true = parsed["prediction"].split(" . "), env.state_text(after).split(" . ")
            assert set(said) <= set(true)
            if after["seen"] == before["seen"]:
                assert said == true


def test_an_action_without_effect_says_so_and_look_lists_the_places():
    env = envs.make("Household", {"prompt_format": "no_think"})
    env.reset(seed=0)
    observation, reward, *_, info = env.step("<answer>open fridge 1</answer>")
    assert "Nothing happens." in observation["text"] and reward == 0.5
    assert info["metrics"] == {"action_is_valid": True, "action_is_effective": False}
    observation, *_ = env.step("<answer>go to fridge 1</answer>")
    assert (
        "fridge 1 is closed." in observation["text"] and "In the kitchen" not in observation["text"]
    )
    observation, *_ = env.step("<answer>look</answer>")
    assert "In the kitchen: countertop 1" in observation["text"]


@pytest.mark.parametrize("rooms", [1, 2, 4])
def test_homes_are_possible_distinct_and_in_their_split(rooms):
    config = HouseholdConfig(rooms=rooms)
    hashes = set()
    for split in envs.SPLITS:
        for seed in range(15):
            level = sample_level(config, seed, split)
            assert split_of(level.level_hash) == split
            hashes.add(level.level_hash)
            world = World.from_state(level.state)
            assert len(world.rooms) == rooms and "kitchen" in world.rooms
            assert not world.is_done() and remaining(world) is not None
            assert all(kind_of(place) in OBJECTS[kind_of(name)].places
                       for name, place in world.where.items())  # fmt: skip
            assert all(kind_of(place) in LAMP_PLACES for place in world.lamps.values())
            assert World.from_state(json.loads(json.dumps(level.state))).to_state() == level.state
    assert len(hashes) == 45


def test_everything_expected_somewhere_has_a_place():
    for kind in OBJECTS.values():
        assert kind.places and set(kind.places) <= set(PLACES)


def test_there_are_no_pictures_to_show():
    with pytest.raises(ValidationError, match="render_mode"):
        envs.make("Household", {"render_mode": "vision"})
    with pytest.raises(ValidationError, match="at least one"):
        envs.make("Household", {"tasks": []})
    env = envs.make("Household", {})
    observation, _ = env.reset(seed=0)
    assert observation["images"] == () and "<image>" not in observation["text"]
    assert env.picture().shape == (256, 512, 3) and (env.picture() < 128).any()
    assert env.picture().dtype == np.uint8
