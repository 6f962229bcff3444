"""G3, G4, G8: what the rollout says against the trainer, before and after the weights change."""

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from benchmarks.gpu.common import (
    GIB,
    Meter,
    Setup,
    add_columns,
    agreement,
    rows_of,
    specs_of,
    used_bytes,
)
from benchmarks.gpu.engines import local_engine, started
from vagen.config import ExperimentConfig
from vagen.metrics import PROBABILITY_CORRELATION, RATIO_MEAN
from vagen.plan.shape import WIDTH, read_shape

LEAST_CORRELATION = 0.995
MOST_RATIO_ERROR = 0.02
LEAST_MOVED = 0.02
"""Mean change of log-probabilities by the update; less would show no stale cache."""
ADAPTERS = (
    "actor_rollout_ref.model.lora_rank=16",
    "actor_rollout_ref.model.lora_alpha=64",
    "critic.model.lora_rank=16",
)
NETWORKS: dict[str, tuple[str, ...]] = {"all weights": (), "adapters": ADAPTERS}


def before_an_update(setup: Setup) -> dict[str, Any]:
    """G3. Passes if every rollout that is installed agrees with the trainer."""
    return _each(setup, {"all weights": ()}, _agree)


def after_updates(setup: Setup) -> dict[str, Any]:
    """G4. Passes if they agree after two updates as well, with all weights and with adapters."""
    # Learning rates with which one update moves the policy visibly; Adam's steps are of their size.
    fast = {"all weights": 0.1 / read_shape(str(setup.model_path())).hidden, "adapters": 1e-3}
    networks: dict[str, tuple[str, ...]] = {
        name: (*options, f"actor_rollout_ref.actor.optim.lr={fast[name]}")
        for name, options in NETWORKS.items()
    }
    return _each(setup, networks, _agree_after_updates)


def synchronisation(setup: Setup) -> dict[str, Any]:
    """G8. Passes if the servers have the policy's weights after sleep and synchronisation."""
    return _each(setup, NETWORKS, _synchronise)


def missing(rollout: str) -> str:
    """Why a rollout cannot be had here; empty if it can."""
    needed = {"local": (), "torch": ("verl", "ray"), "vllm": ("verl", "ray", "vllm")}[rollout]
    return ", ".join(name for name in needed if importlib.util.find_spec(name) is None)


def engine_of(setup: Setup, config: ExperimentConfig, rollout: str) -> AbstractContextManager[Any]:
    """The local engine, or the distributed one with a kind of rollout servers."""
    if rollout == "local":
        return local_engine(config, setup.device, setup.dtype)
    return started(config, setup.infra(f"verl.rollout={rollout}"))


def _each(
    setup: Setup,
    networks: dict[str, tuple[str, ...]],
    measure: Callable[[Setup, ExperimentConfig, Any, str], dict[str, Any]],
) -> dict[str, Any]:
    """The measurement for every rollout and kind of network."""
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for rollout in setup.rollouts:
        if lacks := missing(rollout):
            absent[rollout] = f"not installed: {lacks}"
            continue
        for name, options in networks.items():
            config = setup.experiment(*options)
            with engine_of(setup, config, rollout) as engine:
                found[f"{rollout}, {name}"] = measure(setup, config, engine, rollout)
    return {
        "passed": bool(found) and all(figures["passed"] for figures in found.values()),
        "thresholds": {
            "correlation of probabilities": LEAST_CORRELATION,
            "distance of the mean ratio from 1": MOST_RATIO_ERROR,
        },
        "rollouts": found,
        "absent": absent,
    }


def _played(engine: Any, config: ExperimentConfig) -> tuple[list[Any], Any]:
    trajectories, images = engine.play(
        specs_of(config), sampling=config.actor_rollout_ref.rollout, split="train"
    )
    return rows_of(trajectories), images


def _agree(setup: Setup, config: ExperimentConfig, engine: Any, rollout: str) -> dict[str, Any]:
    rows, images = _played(engine, config)
    figures = agreement(engine.logprobs(rows, images), rows)
    correlation = figures.get(PROBABILITY_CORRELATION)
    return figures | {
        "sampled": sum(int(row.loss_mask.sum()) for row in rows),
        "passed": correlation is not None
        and correlation >= LEAST_CORRELATION
        and abs(figures[RATIO_MEAN] - 1) <= MOST_RATIO_ERROR,
    }


def _agree_after_updates(
    setup: Setup, config: ExperimentConfig, engine: Any, rollout: str
) -> dict[str, Any]:
    """The same levels and seeds each time: what a server still has in a cache it would use."""
    stages = {"before": _agree(setup, config, engine, rollout)}
    moved = []
    for update in range(2):
        rows, images = _played(engine, config)
        before = engine.logprobs(rows, images)
        add_columns(rows, before, engine.values(rows, images)[0] if engine.learns_values else None)
        engine.update(rows, images, seed=update)
        after = engine.logprobs(rows, images)
        changes = [(a - b)[r.loss_mask] for a, b, r in zip(after, before, rows, strict=True)]
        moved.append(float(np.abs(np.concatenate(changes)).mean()))
        stages[f"after update {update + 1}"] = _agree(setup, config, engine, rollout)
    enough = min(moved) >= LEAST_MOVED
    agreed = all(stage["passed"] for stage in stages.values())
    return {"passed": agreed and enough, "moved": moved, "stages": stages}


def _synchronise(
    setup: Setup, config: ExperimentConfig, engine: Any, rollout: str
) -> dict[str, Any]:
    if rollout == "local":  # it samples from the trainer's own weights
        return {"passed": True, "nothing to synchronise": True}
    meter = Meter(setup.device)
    agreed = _agree(setup, config, engine, rollout)
    freed = 0
    for _ in range(setup.repeats):
        engine.groups.weights_changed()
        with meter.phase("wake and synchronise"):
            engine.groups.synchronize()
        awake = used_bytes(setup.device)
        with meter.phase("sleep"):
            engine.groups.make_room()
        freed = awake - used_bytes(setup.device)
    again = _agree(setup, config, engine, rollout)
    sent = WIDTH[setup.dtype] * read_shape(config.actor_rollout_ref.model.path).parameters
    return {
        "passed": agreed["passed"] and again["passed"],
        "phases": meter.report(),
        "weights_gb": sent / 1e9,
        "gb_per_second": sent / 1e9 / meter.median("wake and synchronise"),
        "freed_by_sleep_gib": freed / GIB,
        "agreement": {"before": agreed, "after": again},
    }
