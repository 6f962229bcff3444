"""Navigation's pictures: MiniWorld shows what the truth says."""

import importlib.util
import math
import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from vagen import envs
from vagen.envs.navigation.config import NavigationConfig
from vagen.envs.navigation.levels import sample_level
from vagen.envs.navigation.rooms import AGENT_RADIUS
from vagen.envs.navigation.world import RAYS, SEEN_RAYS, Pose, World

pytestmark = pytest.mark.slow
SIDE = 255
LEAST_PIXELS = SIDE**2 * SEEN_RAYS // RAYS**2


@pytest.fixture(scope="module")
def renderer():
    from vagen.envs.navigation.miniworld import MiniWorldMissingError, renderer

    try:
        return renderer(SIDE, 100.0)
    except MiniWorldMissingError as error:
        if importlib.util.find_spec("miniworld") is None:
            raise  # a dependency: its absence is a fault
        pytest.skip(f"no OpenGL here: {error}")


def level(style, seed):
    return sample_level(NavigationConfig(tasks=(style,)), seed, "train")


def mask_of(renderer, plan, pose, index, whole):
    """Pixels that a thing covers: those that change if it is taken away."""
    things = (*plan.things[:index], *plan.things[index + 1 :])
    without = renderer.first_person(replace(plan, things=things), pose)
    return (np.abs(whole.astype(int) - without) > 2).any(-1)


@pytest.mark.parametrize("style", ["base", "complex_instruction", "long_horizon"])
def test_what_is_in_view_is_in_the_picture_and_where_it_is(renderer, style):
    agreed = compared = 0
    overlaps = []
    rng = Random(0)
    for seed in range(6):
        plan = level(style, seed).plan
        world = World(plan)
        pose = replace(level(style, seed).start, horizon=rng.choice((0, 0, 30)))
        whole, hits = renderer.first_person(plan, pose), world.hits(pose)
        seen = world.in_view(pose)
        rows = np.arange(SIDE) * RAYS // SIDE
        for index in range(len(plan.things)):
            mask = mask_of(renderer, plan, pose, index, whole)
            if abs(mask.sum() - LEAST_PIXELS) > LEAST_PIXELS / 2:  # neither seen nor hidden clearly
                compared += 1
                agreed += (index in seen) == (mask.sum() > LEAST_PIXELS)
            cast = (hits == index)[np.ix_(rows, rows)]
            if cast.sum() > 2_000 and plan.things[index].spec.mesh is None:
                overlaps.append((mask & cast).sum() / (mask | cast).sum())
    assert compared > 40 and agreed / compared > 0.97
    assert len(overlaps) >= 4 and min(overlaps) > 0.6 and np.mean(overlaps) > 0.8


@pytest.mark.parametrize("style", ["base", "long_horizon"])
def test_collisions_are_those_of_miniworld(renderer, style):
    rng = Random(1)
    free = 0
    for seed in range(4):
        plan = level(style, seed).plan
        world, shown = World(plan), renderer._world
        renderer.first_person(plan, Pose(0.0, 0.0, 0))
        rooms = plan.rooms
        for _ in range(300):
            x = rng.uniform(min(r.west for r in rooms), max(r.east for r in rooms))
            z = rng.uniform(min(r.south for r in rooms), max(r.north for r in rooms))
            hit = shown.intersect(shown.agent, np.array([x, 0.0, -z]), AGENT_RADIUS)
            assert world.is_free(x, z) == (not hit)
            free += not hit
    assert 200 < free < 1100


def test_the_field_of_view_is_a_hundred_degrees(renderer):
    """A wall at a known distance ends where the angle says."""
    found = level("base", 0)
    world, room = World(found.plan), found.plan.rooms[0]
    eye = Pose((room.west + room.east) / 2, room.south + 0.5, 0)
    plan = replace(found.plan, things=())
    picture = renderer.first_person(plan, eye)
    ahead, aside = room.north - eye.z, room.east - eye.x
    column = SIDE / 2 * (1 + aside / ahead / math.tan(math.radians(50)))
    middle = picture[SIDE // 2].astype(int)
    edges = np.abs(np.diff(middle, axis=0)).sum(-1)
    assert abs(edges.argmax() - column) < 3 or abs(edges.argmax() - (SIDE - column)) < 3
    assert world.field_of_view == 100.0


def test_environments_of_one_process_do_not_disturb_each_other():
    one, two = (envs.make("Navigation", {"tasks": style}) for style in ("base", "long_horizon"))
    first, _ = one.reset(seed=1)
    other, _ = two.reset(seed=1)
    again = one.picture()
    assert first["images"][0].shape == (SIDE, SIDE, 3)
    assert np.array_equal(again, first["images"][0])
    assert not np.array_equal(other["images"][0], again)
    turned, *_ = one.step(one.expert_response())
    assert not np.array_equal(turned["images"][0], again)
    assert turned["text"].count("<image>") == 1
    large = envs.make("Navigation", {"picture_size": 128})
    assert large.reset(seed=1)[0]["images"][0].shape == (128, 128, 3)


def test_a_machine_without_a_driver_is_told_what_to_install():
    program = "from vagen import envs\nenvs.make('Navigation', {}).reset(seed=0)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "MiniWorldMissingError: Navigation's pictures need MiniWorld and EGL" in last


def test_what_is_missing_is_said(monkeypatch):
    from vagen.envs.navigation import miniworld

    monkeypatch.setitem(sys.modules, "miniworld.miniworld", None)
    miniworld._world_class.cache_clear()
    with pytest.raises(
        miniworld.MiniWorldMissingError, match="libegl1 libgl1-mesa-dri libglu1-mesa"
    ):
        miniworld.Renderer(64, 100.0)
    miniworld._world_class.cache_clear()
