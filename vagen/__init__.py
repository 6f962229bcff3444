"""Training vision-language agents by multi-turn reinforcement learning."""

import gc
import os
from importlib import import_module
from typing import Any

# Torch's threads otherwise spin at every barrier; if another process uses a core, a training step
# then takes five times as long. Torch reads this on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# By default Python collects garbage every 700 new objects, which takes a fifth of the time to
# import torch, transformers and verl.
gc.set_threshold(50_000, 10, 10)

_HOMES = {
    "InfraConfig": "vagen.config.infra",
    "add_columns": "vagen.engines.columns",
    "build_tiny_policy": "vagen.models.tiny_policy",
    "draw_levels": "vagen.rollout.levels",
    "learn": "vagen.engines.learn",
    "load_experiment": "vagen.experiment.load",
    "make_engine": "vagen.engines.make",
    "score": "vagen.judge.batch",
    "training_specs": "vagen.rollout.episodes",
}
"""Modules of the public names: `from vagen import load_experiment` loads what it needs."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vagen' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
