"""Measures the quality of a judge on generated statements with known truth."""

from typing import Any

from vagen.envs.registry import get_environment
from vagen.judge.calibration.claims import claim_writer
from vagen.judge.calibration.writer import Scene, Text, TextKind, Writer

__all__ = ["Scene", "Text", "TextKind", "Writer", "writer_of"]

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "FrozenLake": ({"prompt_detail": "brief"}, {"state_objects": "near"}, {"size": 6}),
    "Household": ({"rooms": 2, "objects": 12},),
    "Navigation": (
        {"prompt_detail": "brief", "tasks": ["base", "long_horizon"]},
        {"tasks": ["complex_instruction", "visual_appearance"]},
    ),
    "PrimitiveSkill": tuple(
        {"task": task} for task in ("PlaceTwoCube", "StackThreeCube", "PutAppleInDrawer")
    ),
    "Sokoban": ({"dim_room": [7, 7], "num_boxes": 2},),
}
"""Further options to calibrate in each notation, by environment name."""


def writer_of(env_name: str) -> type[Writer] | None:
    """The writer of statements about an environment; None if it declares no claims."""
    env = get_environment(env_name).load()
    return claim_writer(env_name, env, VARIANTS.get(env_name, ())) if env.claims else None
