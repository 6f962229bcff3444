"""PrimitiveSkill in ManiSkill, where it is installed and a Vulkan driver can draw."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from vagen import envs
from vagen.envs.primitive_skill import tasks

TASKS = [task for task in tasks.TASKS if task != "PutAppleInDrawer"]


def missing() -> str | None:
    """Why ManiSkill cannot be used here."""
    if importlib.util.find_spec("mani_skill") is None:
        return 'ManiSkill is not installed: pip install "vagen[maniskill]"'
    named = os.environ.get("VK_ICD_FILENAMES", "").split(":")
    folders = [Path(folder) for folder in ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")]
    found = [Path(path) for path in named if path] or [
        path for folder in folders for path in folder.glob("*.json")
    ]
    if not any(path.is_file() for path in found):
        return "no Vulkan driver: Mesa 24.3 or newer (mesa-vulkan-drivers), or VK_ICD_FILENAMES"
    return None


def test_what_it_lacks_is_said_before_anything_is_loaded():
    with pytest.raises(ValueError, match=r"no PutAppleInDrawer.*use backend mujoco"):
        envs.make("PrimitiveSkill", {"task": "PutAppleInDrawer", "backend": "maniskill"})
    if importlib.util.find_spec("mani_skill") is None:
        with pytest.raises(ModuleNotFoundError, match=r"pip install \"vagen\[maniskill\]\""):
            envs.make("PrimitiveSkill", {"backend": "maniskill"}).reset(seed=0)


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_succeeds_in_maniskill_too(task):
    options = {"task": task, "backend": "maniskill", "image_size": 128, "prompt_format": "no_think"}
    env = envs.make("PrimitiveSkill", options)
    for seed in range(2):
        observation, info = env.reset(seed=seed)
        there = envs.make(
            "PrimitiveSkill", {**options, "backend": "mujoco", "render_mode": "text"}
        ).reset(seed=seed)[1]
        assert info["level_hash"] == there["level_hash"]
        for name, place in info["state"]["objects"].items():
            assert np.abs(np.subtract(place, there["state"]["objects"][name])).max() <= 2
        first = observation["images"][0]
        assert first.shape == (128, 128, 3) and first.std() > 20
        over = False
        while not over:
            actions = env._plan(1)
            said = env._after(env.state(), actions)
            observation, _, terminated, truncated, info = env.step(env.expert_response())
            assert said["held"] == info["state"]["held"]
            for name, place in said["objects"].items():
                off = np.abs(np.subtract(place, info["state"]["objects"][name]))
                assert (off <= [7, 7, 10]).all(), (actions, place, info["state"])
            over = terminated or truncated
        assert info["success"]
        assert np.abs(first.astype(int) - observation["images"][0]).max() > 50
    env.close()
