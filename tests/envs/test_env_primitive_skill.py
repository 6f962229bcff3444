"""PrimitiveSkill: its actions, levels, success tests, rewards, texts, physics and pictures."""

import json
import os
import subprocess
import sys
from collections import Counter
from random import Random

import numpy as np
import pytest
from env_cases import wins

from vagen import envs
from vagen.envs.base import IMAGE_PLACEHOLDER
from vagen.envs.primitive_skill import tasks
from vagen.envs.primitive_skill.level import SkillLevel, Thing, sample_level
from vagen.envs.primitive_skill.primitives import HOME, Primitive, nominal, read_primitive
from vagen.envs.primitive_skill.tasks import TASKS

TEXT = {"render_mode": "text", "prompt_format": "no_think"}


def make(task, **options):
    return envs.make("PrimitiveSkill", {"task": task, **TEXT, **options})


def state(task, goal, held=None, **objects):
    places = {name.replace("_", " "): list(place) for name, place in objects.items()}
    return {
        "env_name": "PrimitiveSkill",
        "task": task,
        "goal": goal,
        "objects": places,
        "held": held,
        "gripper": list(HOME),
    }


def is_near(said, true):
    """Whether a state is another within the judge's tolerance."""
    return said["held"] == true["held"] and all(
        abs(a[0] - b[0]) <= 7 and abs(a[1] - b[1]) <= 7 and abs(a[2] - b[2]) <= 10
        for a, b in ((said["objects"][name], true["objects"][name]) for name in true["objects"])
    )


# Actions.


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("pick(10,-20,30)", "pick(10,-20,30)"),
        (" PICK ( +10 , -20,30 ) ", "pick(10,-20,30)"),
        ("place(0,0,5)", "place(0,0,10)"),
        ("place(-500,999,10000)", "place(-100,200,200)"),
        ("push(1,2,30,4,5,60)", "push(1,2,30,4,5,60)"),
    ],
)
def test_a_primitive_is_read_in_its_canonical_form_within_the_workspace(text, read):
    assert str(read_primitive(text)) == read
    assert str(read_primitive(read)) == read


@pytest.mark.parametrize(
    "text",
    ["", "pick", "pick()", "pick(1,2)", "pick(1,2,3,4)", "push(1,2,3)", "pick(1.5,2,3)",
     "pick(1,2,3", "pick(1,2,three)", "pick(nan,2,3)", "pick(1,2,3);", "pick((1,2,3))",
     "grab(1,2,3)", "pick(1,2,999999)", "pick(1,2,³)", "pick(1,,3)", "pick[1,2,3]",
     "pick(1,2,3)pick(1,2,3)", "pick(- 1,2,3)", "pick(1e2,2,3)", "pick(٣,2,3)"],
)  # fmt: skip
def test_anything_else_is_no_primitive(text):
    assert read_primitive(text) is None


# Levels.


def test_levels_need_no_simulator_and_do_not_depend_on_the_process():
    code = (
        "import sys\n"
        "from vagen.envs import distinct_levels\n"
        "print([distinct_levels('PrimitiveSkill', {'task': t}, 'val', 3) for t in"
        " ('AlignTwoCube', 'PlaceTwoCube', 'StackThreeCube', 'PutAppleInDrawer')])\n"
        "assert 'mujoco' not in sys.modules\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = [envs.distinct_levels("PrimitiveSkill", {"task": task}, "val", 3) for task in TASKS]
    assert printed == f"{here}\n"


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_disjoint_and_no_level_is_done_at_its_start(task):
    seen = {}
    for split in envs.SPLITS:
        for seed in range(60):
            level = sample_level(task, seed, split)
            assert seen.setdefault(level.level_hash, split) == split
            assert envs.split_of(level.level_hash) == split
            start = start_of(level)
            assert tasks.stages(start) == 0 and not tasks.is_solved(start)
    assert len(seen) == 180


def start_of(level):
    objects = {t.name: [t.x, t.y, 24 if t.name == "apple" else 20] for t in level.things}
    if level.drawer is not None:
        objects["drawer"] = [*level.drawer, 34]
    return {**state(level.task, [t.name for t in level.things]), "objects": objects}


def test_the_order_of_the_things_says_nothing_of_their_roles():
    levels = [sample_level("StackThreeCube", seed, "train") for seed in range(600)]
    first = Counter([t.name for t in level.things].index(level.order[0]) for level in levels)
    assert all(150 < first[role] < 250 for role in range(3))
    colours = Counter(level.things[0].name for level in levels)
    assert len(colours) == 5 and all(80 < count < 160 for count in colours.values())


# Success, stages, distance: read from the state alone.


@pytest.mark.parametrize(("x", "solved"), [(10, True), (-10, True), (11, False), (-11, False)])
def test_align_needs_both_within_ten_millimetres(x, solved):
    end = state("AlignTwoCube", ["a", "b"], a=(0, 100, 20), b=(x, -100, 20))
    assert tasks.is_solved(end) == solved
    assert tasks.primitives_left(end) == (0 if solved else 2)


@pytest.mark.parametrize(
    ("place", "held", "solved"),
    [
        ((80, 100, 20), None, True),
        ((110, 140, 20), None, True),
        ((111, 140, 20), None, False),
        ((80, -100, 20), None, False),
        ((80, 100, 20), "b", False),
    ],
)
def test_place_needs_each_cube_at_its_own_target_and_let_go(place, held, solved):
    end = state("PlaceTwoCube", ["a", "b"], held, a=(60, -90, 20), b=place)
    assert tasks.is_solved(end) == solved
    swapped = state("PlaceTwoCube", ["b", "a"], a=(80, -100, 20), b=(80, 100, 20))
    assert tasks.stages(swapped) == 0


@pytest.mark.parametrize(
    ("top", "held", "solved"),
    [
        ((0, 0, 100), None, True),
        ((12, 15, 100), None, True),
        ((0, 20, 100), None, False),
        ((0, 0, 80), None, False),
        ((0, 0, 100), "c", False),
    ],
)
def test_stack_needs_each_cube_on_the_one_below(top, held, solved):
    end = state("StackThreeCube", ["a", "b", "c"], held, a=(0, 0, 20), b=(0, 0, 60), c=top)
    assert tasks.is_solved(end) == solved
    other = state("StackThreeCube", ["b", "a", "c"], a=(0, 0, 20), b=(0, 0, 60), c=(0, 0, 100))
    assert not tasks.is_solved(other)


@pytest.mark.parametrize(
    ("apple", "drawer", "held", "solved"),
    [
        ((-105, 10, 34), (-110, 0, 34), None, True),
        ((-105, 10, 34), (-102, 0, 34), None, True),
        ((-100, 10, 34), (-101, 0, 34), None, False),
        ((20, 10, 24), (-110, 0, 34), None, False),
        ((-105, 10, 90), (-110, 0, 34), None, False),
        ((-105, 10, 34), (-110, 0, 34), "apple", False),
    ],
)
def test_the_drawer_must_be_closed_with_the_apple_in_it(apple, drawer, held, solved):
    end = state("PutAppleInDrawer", ["apple"], held, apple=apple, drawer=drawer)
    assert tasks.is_solved(end) == solved


def test_stages_count_what_is_gripped_and_what_is_done():
    cubes = {"a": (50, -50, 20), "b": (50, 100, 20)}
    goal = ["a", "b"]
    assert tasks.stages(state("AlignTwoCube", goal, **cubes)) == 0
    assert tasks.stages(state("AlignTwoCube", goal, "b", **cubes)) == 1
    cubes["a"] = (5, -50, 20)
    assert tasks.stages(state("AlignTwoCube", goal, **cubes)) == 2
    assert tasks.stages(state("AlignTwoCube", goal, "b", **cubes)) == 3
    base = {"a": (0, 0, 20), "b": (50, 100, 20), "c": (-60, 0, 20)}
    gripped_base = state("StackThreeCube", ["a", "b", "c"], "a", **base)
    assert tasks.stages(gripped_base) == 0 and tasks.primitives_left(gripped_base) == 5


def test_a_state_is_not_changed_by_what_is_predicted_from_it():
    before = state("AlignTwoCube", ["a", "b"], a=(50, -50, 20), b=(50, 100, 20))
    copy = json.loads(json.dumps(before))
    nominal(before, Primitive("pick", (50, -50, 20)))
    nominal(before, Primitive("push", (50, -120, 20), (50, 0, 20)))
    assert before == copy


# Texts.


def test_the_prompts_example_is_legal_and_comes_true_in_the_simulator():
    env = envs.make("PrimitiveSkill", {"render_mode": "text"})
    parsed = env._parser.parse(env.example_response())
    assert parsed.format_correct and parsed.actions == env.example_actions
    assert env.example_response() in env.system_prompt()
    things = tuple(
        Thing(n, *env.example_state["objects"][n][:2]) for n in env.example_state["goal"]
    )
    env._load_level(SkillLevel("AlignTwoCube", things, ("green cube", "red cube"), None, ""), 0)
    assert env._read_state() == {**env.example_state, "gripper": env._table.gripper}
    for action in parsed.actions:
        env._move(action)
    after = env._after(env.example_state, parsed.actions)
    assert is_near(after, env._read_state())
    assert parsed.prediction == env.state_text(after)


def test_texts_in_both_notations():
    things = {"red cube": (5, -6, 20), "blue cube": (0, 1, 200)}
    now = state("AlignTwoCube", list(things), "blue cube", **things)
    env = envs.make("PrimitiveSkill", {})
    text = "red cube at (5, -6, 20) . blue cube at (0, 1, 200) . blue cube held"
    assert env.state_text(now) == text
    env = envs.make("PrimitiveSkill", {"prompt_format": "grounding_structured"})
    record = {name: list(place) for name, place in things.items()}
    assert json.loads(env.state_text(now)) == {**record, "held": "blue cube"}
    with pytest.raises(ValueError, match="cannot be written as symbolic"):
        envs.make("PrimitiveSkill", {"prompt_format": "grounding_symbolic"})


def test_the_text_view_names_things_and_where_they_are():
    env = make("StackThreeCube")
    observation, info = env.reset(seed=1)
    assert tasks.instruction("StackThreeCube", info["state"]["goal"]) in observation["text"]
    for name, (x, y, z) in info["state"]["objects"].items():
        assert f"{name} at ({x}, {y}, {z})" in observation["text"]
    assert observation["images"] == ()
    brief = make("StackThreeCube", prompt_detail="brief")
    assert len(brief.system_prompt().split()) <= 25
    assert len(brief.reset(seed=1)[0]["text"]) < len(observation["text"])


# Episodes in the simulator.


def play(env, seed, turns=20):
    _, info = env.reset(seed=seed)
    log = []
    for _ in range(turns):
        before = info["state"]
        actions = env._plan(env.config.expert_actions_per_turn)
        predicted = env._after(env.state(), actions)
        _, _, terminated, truncated, info = env.step(env.expert_response())
        log.append((before, predicted, info))
        if terminated or truncated:
            break
    return log


@pytest.mark.parametrize("per_turn", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_succeeds_and_predicts_what_comes(task, per_turn):
    env = make(task, expert_actions_per_turn=per_turn)
    for seed in range(2):
        log = play(env, seed)
        assert log[-1][2]["success"]
        assert all(is_near(predicted, info["state"]) for _, predicted, info in log)
        assert all(info["metrics"]["action_is_effective"] for *_, info in log)
        left = [tasks.primitives_left(before) for before, *_ in log]
        assert left == sorted(left, reverse=True)
        assert tasks.primitives_left(log[-1][2]["state"]) == 0
        rewards = sum(info["rewards"]["env"] for *_, info in log)
        count = sum(len(info["parsed"]["actions"]) for *_, info in log)
        assert rewards == pytest.approx(10 - 0.1 * count)


def test_the_newer_preset_pays_stages_and_success_once():
    log = play(make("AlignTwoCube", reward="vagen-new"), 3)
    assert [info["rewards"]["env"] for *_, info in log] == pytest.approx([2, 2, 2, 10])
    assert {info["rewards"]["format"] for *_, info in log} == {0.1}


def test_a_stage_that_is_undone_and_done_again_is_paid_once():
    env = make("AlignTwoCube")
    _, info = env.reset(seed=4)
    name = info["state"]["goal"][0]
    paid = []
    for _ in range(3):
        x, y, z = info["state"]["objects"][name]
        *_, info = env.step(f"<answer>pick({x},{y},{z})|place({x},{y},{z})</answer>")
        paid.append(info["rewards"]["env"])
    assert paid == pytest.approx([2 - 0.2, -0.2, -0.2])


def test_things_are_gripped_by_contact_and_only_where_the_fingers_are():
    env = make("AlignTwoCube")
    _, info = env.reset(seed=0)
    before = info["state"]
    name = before["goal"][0]
    x, y, z = before["objects"][name]
    *_, info = env.step(f"<answer>pick({x},{y},{z + 60})</answer>")
    assert info["state"] == before  # closed in the air
    *_, info = env.step(f"<answer>place({x},{y},{z})</answer>")
    assert info["state"] == before  # nothing was held
    *_, info = env.step(f"<answer>pick({x - 6},{y + 8},{z})</answer>")
    held = info["state"]["objects"][name]
    assert info["state"]["held"] == name and held[2] > 180
    assert abs(held[0] - x) <= 3 and abs(held[1] - (y + 8)) <= 3  # the fingers centre it along y


def test_a_cube_is_dropped_from_above_and_falls_to_what_is_below():
    env = make("StackThreeCube")
    _, info = env.reset(seed=2)
    low, upper, _ = info["state"]["goal"]
    x, y, _ = info["state"]["objects"][low]
    a, b, c = info["state"]["objects"][upper]
    *_, info = env.step(f"<answer>pick({a},{b},{c})|place({x},{y},75)</answer>")
    assert abs(info["state"]["objects"][upper][2] - 60) <= 2
    assert tasks.stages(info["state"]) == 2


def test_a_push_moves_what_is_in_its_way():
    env = make("AlignTwoCube")
    _, info = env.reset(seed=0)
    name = info["state"]["goal"][0]
    x, y, _ = info["state"]["objects"][name]
    start, step = (x - 50, 80) if x < 50 else (x + 50, -80)
    *_, info = env.step(f"<answer>push({start},{y},20,{start + step},{y},20)</answer>")
    moved = info["state"]["objects"][name]
    assert abs(moved[0] - x) > 30 and abs(moved[1] - y) < 15


# With pictures, many seeds and other processes.


@pytest.mark.slow
def test_observations_with_pictures():
    env = envs.make("PrimitiveSkill", {"task": "StackThreeCube", "image_size": 128})
    observation, info = env.reset(seed=3)
    (image,) = observation["images"]
    assert image.shape == (128, 128, 3) and observation["text"].count(IMAGE_PLACEHOLDER) == 1
    assert env.observation_space.contains(observation)
    places = list(info["state"]["objects"].values())
    assert all(f"({x}, {y}, {z})" in observation["text"] for x, y, z in places)
    assert " at (" not in observation["text"].replace("are at,", "")  # no names beside them
    hidden = envs.make("PrimitiveSkill", {"task": "StackThreeCube", "vision_only": True})
    text = hidden.reset(seed=3)[0]["text"]
    assert not any(f"({x}, {y}, {z})" in text for x, y, z in places)


CAMERA_AT, UP = np.array([660.0, 0.0, 580.0]), np.array([-0.6115, 0.0, 0.791])


def pixel(point, size=300):
    """Where the camera sees a point: row, column."""
    forward = np.array([-0.791, 0.0, -0.6115])
    way = np.array(point, float) - CAMERA_AT
    scale = size / 2 / np.tan(np.radians(37 / 2)) / (way @ forward)
    return round(size / 2 - (way @ UP) * scale), round(size / 2 + way[1] * scale)


@pytest.mark.slow
def test_the_truth_agrees_with_the_picture():
    """Where the truth has a cube, the picture has its colour; held and stacked ones too."""
    looks = {
        "red": lambda r, g, b: r > 2 * g and r > 2 * b,
        "green": lambda r, g, b: g > 1.7 * r and g > 1.7 * b,
        "blue": lambda r, g, b: b > 1.7 * r and b > 1.7 * g,
        "yellow": lambda r, g, b: r > 2 * b and g > 2 * b,
        "purple": lambda r, g, b: r > 1.5 * g and b > 1.5 * g,
    }
    checked = 0
    for seed in range(6):
        env = envs.make("PrimitiveSkill", {"task": "StackThreeCube"})
        observation, info = env.reset(seed=seed)
        over = False
        while not over:
            (image,) = observation["images"]
            for name, (x, y, z) in info["state"]["objects"].items():
                row, column = pixel((x + 20, y, z))  # the middle of its front
                assert looks[name.split()[0]](*image[row, column].astype(float)), (seed, name)
                checked += 1
            observation, _, over, _, info = env.step(env.expert_response())
    assert checked == 6 * 4 * 3


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_solves_its_levels_and_chance_does_not(task):
    env = make(task, expert_actions_per_turn=2)
    logs = [play(env, seed) for seed in range(30)]
    solved = [log[-1][2]["success"] for log in logs]
    predicted = [is_near(predicted, info["state"]) for log in logs for _, predicted, info in log]
    assert np.mean(solved) >= 0.95 and np.mean(predicted) >= 0.95
    rng = Random(5)

    def chance():
        point = f"{rng.randint(-100, 150)},{rng.randint(-200, 200)},{rng.choice((20, 60))}"
        return f"<answer>{rng.choice(('pick', 'place'))}({point})</answer>"

    assert wins(env, range(12), chance) <= 1


@pytest.mark.slow
def test_text_mode_needs_no_graphics_library_and_pictures_say_what_is_missing():
    code = (
        "import ctypes, ctypes.util\n"
        "load, find = ctypes.CDLL.__init__, ctypes.util.find_library\n"
        "def refuse(self, name=None, *rest, **options):\n"
        "    if name and ('EGL' in str(name) or 'OSMesa' in str(name) or 'GL.' in str(name)):\n"
        "        raise OSError(f'{name}: not here')\n"
        "    load(self, name, *rest, **options)\n"
        "ctypes.CDLL.__init__ = refuse\n"
        "ctypes.util.find_library = lambda n: None if 'GL' in n or 'OSM' in n else find(n)\n"
        "from vagen import envs\n"
        "env = envs.make('PrimitiveSkill', {'render_mode': 'text'})\n"
        "env.reset(seed=0)\n"
        "print(env.step(env.expert_response())[4]['state']['held'])\n"
        "try:\n"
        "    envs.make('PrimitiveSkill', {}).reset(seed=0)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    held, error = done.stdout.splitlines()
    assert held.endswith("cube") and "install EGL" in error
