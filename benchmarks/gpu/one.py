"""One engine, started once: seconds, speed, memory, agreement, synchronisation, checkpoint.

Gives what is known after every phase, so that a run that is cut off loses one phase. A phase that
fails is named in `failed`, and the next one begins.
"""

import importlib.util
import io
import math
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.gpu.common import (
    GIB,
    PEAK_FLOPS,
    Meter,
    Setup,
    add_columns,
    agreement,
    difference,
    rows_of,
    specs_of,
    used_bytes,
    written_episodes,
)
from benchmarks.gpu.engines import local_engine, one_rank, started
from vagen.config import ExperimentConfig
from vagen.config.schema import has_reference
from vagen.metrics import PROBABILITY_CORRELATION, RATIO_MEAN
from vagen.models.processor import load_processor
from vagen.plan.memory import needs
from vagen.plan.shape import WIDTH, ModelShape, read_shape
from vagen.plan.sizes import measure
from vagen.rollout.types import TokenRow

REFERENCE_GPU_SECONDS = {"concat": 356, "no_concat": 856}
"""VAGEN's 3 B PPO with critic, 5-turn Sokoban, 128 trajectories, on A100-class GPUs."""
LEAST_CORRELATION, MOST_RATIO_ERROR = 0.995, 0.02
LEAST_MOVED = 0.02
"""Mean change of log-probabilities by the update; less would show no stale cache."""
WRITTEN = "none"
"""In `--rollouts`: answers are written at random, and no server is started."""
ONCE = ("rollout", "logprobs", "reference", "values", "critic update", "actor update")
ONCE += ("wake and synchronise", "sleep")
"""What a training step has of the phases."""


def missing(rollout: str) -> str:
    """Why a rollout cannot be had here; empty if it can."""
    needed = {"vllm": ("verl", "ray", "vllm"), "torch": ("verl", "ray"), WRITTEN: ("verl",)}
    return ", ".join(n for n in needed.get(rollout, ()) if importlib.util.find_spec(n) is None)


class Measurement:
    """The phases of one engine, and what is known of them."""

    def __init__(self, setup: Setup):
        self.setup, self.meter = setup, Meter(setup.device)
        absent = {kind: lacks for kind in setup.rollouts if (lacks := missing(kind))}
        self.rollout = [kind for kind in setup.rollouts if kind not in absent][-1]
        hidden = read_shape(str(setup.model_path())).hidden
        adapters = any("lora_rank" in option for option in setup.options)
        # A learning rate with which an update moves the policy visibly.
        rate = f"actor_rollout_ref.actor.optim.lr={1e-3 if adapters else 0.1 / hidden}"
        self.config = setup.experiment(rate)
        self.found: dict[str, Any] = {
            "rollout": self.rollout,
            "absent": absent,
            "context": self.config.rollout_manager.context,
            "checks": {},
            "failed": {},
        }
        self.rows: list[TokenRow] = []
        self.images: Any = {}
        self.logprobs: list[Any] = []

    def engine(self) -> AbstractContextManager[Any]:
        """The engine of the kind of rollout."""
        if self.rollout == "local":
            return local_engine(self.config, self.setup.infra("engine=local"))
        if self.rollout == WRITTEN:
            return one_rank(self.config, self.setup.infra())
        return started(self.config, self.setup.infra(f"verl.rollout={self.rollout}"))

    def phases(self, engine: Any) -> Iterator[tuple[str, Callable[[], None]]]:
        """Names and work, in order."""
        yield "rollout", partial(self._play, engine)
        yield "logprobs", partial(self._logprobs, engine)
        if self.rollout != WRITTEN:
            yield "agreement", partial(self._agree, "before updates")
        if has_reference(self.config):
            yield "reference", lambda: engine.logprobs(self.rows, self.images, reference=True)
        if engine.learns_values:
            yield "values", partial(self._values, engine)
            yield "critic update", partial(self._update, engine, actor=False)
        yield "update", partial(self._update, engine, actor=True)
        if self.rollout in ("torch", "vllm"):
            yield "wake and synchronise", partial(self._synchronise, engine)
            yield "sleep", partial(self._sleep, engine)
        if self.rollout != WRITTEN:
            yield "rollout after updates", partial(self._play, engine)
        yield "logprobs after updates", partial(self._logprobs, engine)
        if self.rollout != WRITTEN:
            yield "agreement after updates", partial(self._agree, "after updates")
        yield "checkpoint: copy", partial(self._copy, engine)
        yield "checkpoint: write and hash", lambda: self._finish()
        yield "checkpoint: read", lambda: engine.load(self.folder, version="read")
        yield "checkpoint: compared", partial(self._compare, engine)

    def run(self) -> Iterator[dict[str, Any]]:
        """Starts the engine and measures; gives what is known after every phase."""
        begun = time.perf_counter()
        repeated = ("rollout", "logprobs", "reference", "values", "critic update", "update")
        repeated += ("wake and synchronise",)
        with self.engine() as engine:
            self.found["start_seconds"] = round(time.perf_counter() - begun, 2)
            for name, work in self.phases(engine):
                times = 1 + self.setup.repeats if name in repeated else 1
                for cold in (name in repeated and number == 0 for number in range(times)):
                    try:
                        with self.meter.phase(f"{name}, cold" if cold else name):
                            work()
                    except Exception as error:
                        self.found["failed"][name] = "".join(traceback.format_exception(error))
                        break
                self._sum_up()
                yield self.found
                if not self.rows:
                    return

    def _play(self, engine: Any) -> None:
        if self.rollout == WRITTEN:
            trajectories, self.images = written_episodes(self.setup, self.config)
        else:
            trajectories, self.images = engine.play(
                specs_of(self.config), sampling=self.config.actor_rollout_ref.rollout, split="train"
            )
        self.rows = rows_of(trajectories)
        self.found |= {
            "rows": len(self.rows),
            "tokens": sum(len(row.input_ids) for row in self.rows),
            "sampled": sum(int(row.loss_mask.sum()) for row in self.rows),
            "frames": len(self.images),
        }

    def _logprobs(self, engine: Any) -> None:
        self.logprobs = engine.logprobs(self.rows, self.images)
        add_columns(self.rows, self.logprobs, None)

    def _values(self, engine: Any) -> None:
        add_columns(self.rows, self.logprobs, engine.values(self.rows, self.images)[0])

    def _agree(self, when: str) -> None:
        figures = agreement(self.logprobs, self.rows)
        self.found.setdefault("rollout against trainer", {})[when] = figures
        self.found["checks"][f"rollout and trainer agree {when}"] = bool(
            figures.get(PROBABILITY_CORRELATION, 0) >= LEAST_CORRELATION
            and abs(figures[RATIO_MEAN] - 1) <= MOST_RATIO_ERROR
        )

    def _update(self, engine: Any, *, actor: bool) -> None:
        engine.update(self.rows, self.images, seed=0, actor=actor)
        if actor and "moved" not in self.found:
            changed = engine.logprobs(self.rows, self.images)
            changes = [
                (after - before)[row.loss_mask]
                for after, before, row in zip(changed, self.logprobs, self.rows, strict=True)
            ]
            self.found["moved"] = float(np.abs(np.concatenate(changes)).mean())
            self.found["checks"]["an update moves the policy"] = self.found["moved"] >= LEAST_MOVED

    def _synchronise(self, engine: Any) -> None:
        engine.groups.weights_changed()
        engine.groups.synchronize()

    def _sleep(self, engine: Any) -> None:
        awake = used_bytes(self.setup.device)
        engine.groups.make_room()
        self.found["freed_by_sleep_gib"] = (awake - used_bytes(self.setup.device)) / GIB

    @property
    def folder(self) -> Path:
        """The checkpoint's."""
        return self.setup.scratch / "checkpoint"

    def _copy(self, engine: Any) -> None:
        """The training waits for no more than this."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._finish = engine.begin_save(self.folder)

    def _compare(self, engine: Any) -> None:
        apart = difference(engine.logprobs(self.rows, self.images), self.logprobs, self.rows)
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        self.found["checkpoint"] = {"gb": size / 1e9, "difference_after_reading": apart}
        self.found["checks"]["a checkpoint says what it said"] = apart["max"] == 0.0
        shutil.rmtree(self.folder)

    def _sum_up(self) -> None:
        """Speeds and the plan, of what is measured."""
        setup, found = self.setup, self.found
        seconds = {name: self.meter.median(name) for name in self.meter.seconds}
        if "update" in seconds:
            seconds["actor update"] = max(seconds["update"] - seconds.get("critic update", 0), 0)
        step = sum(seconds.get(name, 0.0) for name in ONCE)
        found |= {
            "phases": self.meter.report(),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "step_seconds": step,
            "gpu_seconds": step * setup.gpus,
            "reference_gpu_seconds": REFERENCE_GPU_SECONDS.get(found["context"]),
        }
        if self.rows:
            operations = operations_of(self.config, self.rows, self.images)
            served = {name: value for name, value in operations.items() if seconds.get(name)}
            found["petaflop"] = {name: value / 1e15 for name, value in operations.items()}
            found["tokens_per_second"] = {n: found["tokens"] / seconds[n] for n in served}
            found["mfu"] = self._mfu(served, seconds)
        if sync := seconds.get("wake and synchronise"):
            weights = read_shape(str(setup.model_path())).parameters
            found["synchronised_gb_per_second"] = WIDTH[setup.dtype] * weights / 1e9 / sync
        if "checkpoint" in found:
            found["checkpoint"]["gb_per_second"] = {
                name: found["checkpoint"]["gb"] / seconds[name]
                for name in seconds
                if name.startswith("checkpoint: ") and name != "checkpoint: compared"
            }
        if setup.device == "cuda":
            self._compare_plan()
        found["passed"] = not found["failed"] and all(found["checks"].values())

    def _compare_plan(self) -> None:
        """Peaks on the GPU against the plan's."""
        path = self.config.actor_rollout_ref.model.path
        kind = "vllm" if self.rollout == "vllm" else "torch"
        engine = "local" if self.rollout == "local" else "verl"
        infra = self.setup.infra(f"verl.rollout={kind}", f"engine={engine}")
        shape, sizes = read_shape(path, self.config), measure(self.config, path)
        for need in needs(self.config, infra, shape, sizes):
            phase = need.what.rpartition(" in the ")[2]
            if phase in ("update", "rollout") and phase in self.meter.used:
                self.found.setdefault("memory_gib", {})[phase] = {
                    "planned": need.total / GIB,
                    "measured": self.meter.used[phase] / GIB,
                }

    def _mfu(
        self, operations: dict[str, float], seconds: dict[str, float]
    ) -> dict[str, float] | None:
        """Share of what the GPUs could do; None where that is not known."""
        import torch

        name = torch.cuda.get_device_name() if self.setup.device == "cuda" else ""
        peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
        if peak is None:
            return None
        most = peak * self.setup.gpus
        return {phase: count / (seconds[phase] * most) for phase, count in operations.items()}


def check(setup: Setup) -> Iterator[dict[str, Any]]:
    """Passes if no phase fails, rollout and trainer agree before and after an update that moves the
    policy, and a checkpoint says the same when it is read.
    """
    yield from Measurement(setup).run()


def operations_of(
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
        size = Image.open(io.BytesIO(images[digest])).size
        grids[digest] = math.prod(processor.shape_of(size).grid)
    patches = sum(grids[digest] for row in rows for digest in row.images)
    tokens = sum(len(row.input_ids) for row in rows)
    pairs = sum(len(row.input_ids) ** 2 for row in rows)
    sampled = sum(int(row.loss_mask.sum()) for row in rows)
    head = 2.0 * shape.vocabulary * shape.hidden * sampled
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
