"""G5, G6: a PPO step of the distributed engine, phase by phase: seconds, speed, memory."""

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

from PIL import Image

from benchmarks.gpu.common import (
    GIB,
    PEAK_FLOPS,
    Meter,
    Setup,
    add_columns,
    rows_of,
    specs_of,
    written_episodes,
)
from benchmarks.gpu.engines import one_rank
from benchmarks.gpu.rollout import engine_of, missing
from vagen.config import ExperimentConfig
from vagen.config.schema import has_reference
from vagen.models.processor import load_processor
from vagen.plan.memory import CONTEXT, gpu_memory
from vagen.plan.shape import ModelShape, read_shape
from vagen.plan.sizes import measure
from vagen.rollout.types import TokenRow

REFERENCE_GPU_SECONDS = {"concat": 356, "no_concat": 856}
"""VAGEN's 3 B PPO with critic, 5-turn Sokoban, 128 trajectories, on A100-class GPUs."""
SERVERLESS = "none"
"""In `--rollouts`: answers are written at random, and no server is started."""
NO_SERVERS = ("local", SERVERLESS)


def speed(setup: Setup) -> dict[str, Any]:
    """G6. Passes if a step takes fewer GPU-seconds than VAGEN's, which has 3 B and these sizes."""
    steps = {context: _step(setup, context) for context in REFERENCE_GPU_SECONDS}
    passed = all(steps[c]["gpu_seconds"] <= most for c, most in REFERENCE_GPU_SECONDS.items())
    return {"passed": passed, "reference_gpu_seconds": REFERENCE_GPU_SECONDS, "steps": steps}


def memory(setup: Setup) -> dict[str, Any]:
    """G5. Passes if the peaks are those of the plan, by a quarter up or down."""
    found = _step(setup, "concat")
    config = setup.experiment()
    servers = "torch" if found["rollout"] == SERVERLESS else found["rollout"]
    infra = setup.infra(f"verl.rollout={servers}")
    path = config.actor_rollout_ref.model.path
    rollout, update = gpu_memory(config, infra, read_shape(path, config), measure(config, path))
    planned = {"rollout": sum(rollout.values()), "update": sum(update.values())}
    phases = found["phases"]
    if found["rollout"] == SERVERLESS:  # the plan counts a server's weights beside the ranks
        needs = phases["update"].get("allocated_gib", phases["update"]["used_gib"])
        measured = {"update": needs + CONTEXT / GIB}
        planned = {"update": planned["update"] - rollout["rollout weights"]}
    else:
        measured = {name: phases[name]["used_gib"] for name in ("rollout", "update")}
    ratios = {name: gib * GIB / planned[name] for name, gib in measured.items()}
    return {
        "passed": all(0.75 <= ratio <= 1.25 for ratio in ratios.values()),
        "planned_gib": {name: planned[name] / GIB for name in measured},
        "measured_gib": measured,
        "measured_over_planned": ratios,
        "step": found,
    }


def _step(setup: Setup, context: str) -> dict[str, Any]:
    """The phases of a step, with the first rollout at hand as servers."""
    config = setup.experiment(f"rollout_manager.context={context}")
    kinds = [r for r in reversed(setup.rollouts) if r not in NO_SERVERS and not missing(r)]
    rollout = kinds[0] if kinds else SERVERLESS
    meter = Meter(setup.device)
    if rollout == SERVERLESS:
        with one_rank(config, setup.infra()) as engine:
            trajectories, images = written_episodes(setup, config)
            rows = _learn(setup, engine, rows_of(trajectories), images, meter)
    else:
        options = {"sampling": config.actor_rollout_ref.rollout, "split": "train"}
        specs = specs_of(config)
        with engine_of(setup, config, rollout) as engine:
            play = partial(engine.play, specs, **options)
            trajectories, images = meter.repeat("rollout", setup.repeats, play)
            rows = _learn(setup, engine, rows_of(trajectories), images, meter)
    seconds = {name: meter.median(name) for name in meter.seconds}
    seconds["actor update"] = max(seconds["update"] - seconds.get("critic update", 0.0), 0.0)
    tokens = sum(len(row.input_ids) for row in rows)
    once = sum(value for name, value in seconds.items() if name != "update")
    operations = _operations(config, rows, images)
    return {
        "rollout": rollout,
        "rows": len(rows),
        "tokens": tokens,
        "sampled": sum(int(row.loss_mask.sum()) for row in rows),
        "phases": meter.report(),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "step_seconds": once,
        "gpu_seconds": once * setup.gpus,
        "tokens_per_second": {name: tokens / s for name, s in seconds.items() if s},
        "petaflop": {name: x / 1e15 for name, x in operations.items()},
        "mfu": _mfu(setup, operations, seconds),
    }


def _learn(
    setup: Setup, engine: Any, rows: list[TokenRow], images: Any, meter: Meter
) -> list[TokenRow]:
    """Log-probabilities, reference, values, update; each repeated, from whatever weights."""
    repeats = setup.repeats
    logprobs = meter.repeat("logprobs", repeats, lambda: engine.logprobs(rows, images))
    if has_reference(engine.config):
        meter.repeat("reference", repeats, lambda: engine.logprobs(rows, images, reference=True))
    values = None
    if engine.learns_values:
        values, _ = meter.repeat("values", repeats, lambda: engine.values(rows, images))
    add_columns(rows, logprobs, values)

    def update(actor: bool) -> Any:
        return engine.update(rows, images, seed=0, actor=actor)

    if engine.learns_values:
        meter.repeat("critic update", repeats, lambda: update(False))
    meter.repeat("update", repeats, lambda: update(True))
    return rows


def _operations(
    config: ExperimentConfig, rows: Sequence[TokenRow], images: Any
) -> dict[str, float]:
    """Floating-point operations of each phase: two per weight and token forward, three times that
    with the backward pass; what is computed again for want of memory does not count, nor does
    attention inside pictures.
    """
    path = config.actor_rollout_ref.model.path
    shape, processor = read_shape(path), load_processor(path)
    grids: dict[str, int] = {}
    for digest in {digest for row in rows for digest in row.images}:
        t, h, w = processor.image_grid(Image.open(io.BytesIO(images[digest])).size)
        grids[digest] = t * h * w
    patches = sum(grids[digest] for row in rows for digest in row.images)
    tokens = sum(len(row.input_ids) for row in rows)
    pairs = sum(len(row.input_ids) ** 2 for row in rows)
    head = 2.0 * shape.vocabulary * shape.hidden * tokens
    backbone = (
        2.0 * tokens * _layers(shape)
        + 2.0 * shape.layers * shape.heads * shape.head_dim * pairs
        + 2.0 * patches * _vision(shape)
    )
    return {
        "logprobs": backbone + head,
        "reference": backbone + head,
        "values": backbone,
        "critic update": 3 * backbone,
        "actor update": 3 * (backbone + head),
    }


def _layers(shape: ModelShape) -> int:
    """Weights of the decoder's layers."""
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim * shape.hidden
    return shape.layers * (attention + 3 * shape.hidden * shape.intermediate)


def _vision(shape: ModelShape) -> int:
    """Weights of the vision tower's layers, their MLP taken as two matrices."""
    inside = 4 * shape.vision_hidden + 2 * shape.vision_intermediate
    return shape.vision_layers * shape.vision_hidden * inside


def _mfu(
    setup: Setup, operations: dict[str, float], seconds: dict[str, float]
) -> dict[str, float] | None:
    """Share of what the GPUs could do; None where that is not known."""
    import torch

    name = torch.cuda.get_device_name() if setup.device == "cuda" else ""
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    if peak is None:
        return None
    return {
        phase: count / (seconds[phase] * peak * setup.gpus)
        for phase, count in operations.items()
        if seconds.get(phase)
    }
