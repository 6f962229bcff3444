"""What a vision tower takes, and what `freeze_vision_tower` saves of an iteration, on a CPU.

    python -m benchmarks.frozen_tower [--repeats 3]

Log-probabilities, reference, values and both updates of Sokoban's episodes by one rank, with a
Qwen2.5-VL of 39 M parameters that has the proportions of the published 3B: with the tower at every
call, and with its features computed once. Seconds are of the CPU, whatever else it does meanwhile.
Also what a frame weighs, at published sizes as well.
Written as section `frozen_tower` of benchmarks/results/verl-cpu.json.

Section `tower`: calls of attention and seconds of four blocks of the published tower of
Qwen2.5-VL-3B for frames of 252 x 252, as `transformers` loops over its windows and in batches.
"""

import argparse
import copy
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode

from benchmarks.gpu.common import Setup, add_columns, rows_of, written_episodes
from benchmarks.gpu.engines import one_rank
from benchmarks.gpu.model import MODELS, QWEN3, QWEN25, Cut
from benchmarks.machine import write_verl_cpu
from vagen.config.schema import ExperimentConfig
from vagen.engines.verl.env_vars import configure
from vagen.envs.images import decode_png
from vagen.models.processor import load_processor
from vagen.models.published import PUBLISHED
from vagen.models.vision import prepare_vision

SMALL = Cut(
    QWEN25,
    "sokoban-qwen25vl-3b",
    text={
        **{"hidden_size": 512, "intermediate_size": 2752, "num_hidden_layers": 6},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096},
    },
    vision={
        **{"depth": 6, "hidden_size": 320, "intermediate_size": 864, "num_heads": 4},
        "out_hidden_size": 512,
    },
)
"""About four weights of the decoder's layers for one of the tower's."""
BLOCKS = 4
"""Of the published tower; the last one attends to whole frames."""
FROZEN = "actor_rollout_ref.model.freeze_vision_tower=true"
SIDES = {QWEN25: 224, QWEN3: 256}
"""Pixels of a frame at which both families take 64 tokens for it."""


def iterations(
    setup: Setup, config: ExperimentConfig, rows: Any, images: Any, *, remembers: bool
) -> list[float]:
    """CPU seconds of all that the networks compute of rows that are sent anew."""
    from vagen.engines.verl.networks import Learner

    hands_on = Learner._pass_on_features
    if not remembers:
        Learner._pass_on_features = lambda self: False
    seconds = []
    with one_rank(config, setup.infra("verl.max_token_len_per_gpu=4096")) as engine:
        if not remembers:
            engine._rows.encode = None
        for _ in range(setup.repeats + 1):
            engine._rows._stored, engine._rows._features = {}, {}
            begun = time.process_time()
            logprobs = engine.logprobs(rows, images)
            engine.logprobs(rows, images, reference=True)
            values, _ = engine.values(rows, images)
            add_columns(rows, logprobs, values)
            engine.update(rows, images, seed=0)
            seconds.append(round(time.process_time() - begun, 2))
    Learner._pass_on_features = hands_on
    return seconds[1:]  # the first one warms up


def compared(setup: Setup, context: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """An iteration both ways, and its frames."""
    config = setup.experiment(FROZEN, f"rollout_manager.context={context}")
    trajectories, images = written_episodes(setup, config)
    rows = rows_of(trajectories)
    shown = [digest for row in rows for digest in row.images]
    seconds = {
        name: iterations(setup, config, rows, images, remembers=remembers)
        for name, remembers in {"frames": False, "features": True}.items()
    }
    median = {name: statistics.median(found) for name, found in seconds.items()}
    result = {
        "rows": len(rows),
        "tokens": sum(len(row.input_ids) for row in rows),
        "frames_shown": len(shown),
        "frames_distinct": len(set(shown)),
        "cpu_seconds": seconds,
        "median_cpu_seconds": median,
        "speed_up": round(median["frames"] / median["features"], 3),
    }
    return result, images


def frame_costs(images: dict[str, bytes], model: Path) -> dict[str, Any]:
    """Bytes of a frame in each form, and milliseconds that a rank's CPU takes for it."""
    frames, processor = [*images.values()], load_processor(model)

    def read() -> None:
        for png in frames:
            processor.process_image(Image.fromarray(decode_png(png)))

    result: dict[str, Any] = {
        "png": {
            "side": Image.open(io.BytesIO(frames[0])).size[0],
            "bytes": round(sum(map(len, frames)) / len(frames)),
            "ms_first_time": milliseconds(read, len(frames)),
            "ms_again": milliseconds(read, len(frames)),  # decoded, its patches remembered
        }
    }
    for name, side in SIDES.items():
        vision = PUBLISHED[name].vision
        patches = (side // vision["patch_size"]) ** 2
        levels = 1 + len(vision.get("deepstack_visual_indexes", ()))
        said = [np.zeros(patches // 4 * vision["out_hidden_size"] * levels * 2, np.uint8)] * 50
        result[name] = {
            "side": side,
            "pixel_bytes_float32": patches * 6 * vision["patch_size"] ** 2 * 4,
            "feature_bytes_bfloat16": said[0].nbytes,
            "ms_copied": milliseconds(lambda said=said: np.concatenate(said), len(said)),
        }
    return result


class AttentionCalls(TorchFunctionMode):
    """Counts calls of torch's attention."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.nn.functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def tower_in_batches(repeats: int) -> dict[str, Any]:
    """Calls of attention, and seconds forwards and with the backward pass, loop beside batches."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel as Tower,
    )

    vision = PUBLISHED[QWEN25].config().vision_config
    vision.depth, vision.fullatt_block_indexes = BLOCKS, [BLOCKS - 1]
    grid = (1, 252 // vision.patch_size, 252 // vision.patch_size)
    torch.manual_seed(0)
    loop = Tower._from_config(vision, attn_implementation="sdpa")
    batches = Tower._from_config(copy.deepcopy(vision), attn_implementation="sdpa")
    batches.load_state_dict(loop.state_dict())
    prepare_vision(SimpleNamespace(model=SimpleNamespace(visual=batches), modules=batches.modules))
    result: dict[str, Any] = {"blocks": vision.depth, "side": 252, "repeats": repeats}
    for frames in (1, 4):
        pixels = torch.randn(frames * grid[1] * grid[2], 6 * vision.patch_size**2)
        outputs = []
        for name, tower in (("loop", loop), ("batches", batches)):
            seconds: dict[str, list[float]] = {"forward": [], "forward_backward": []}
            with AttentionCalls() as calls, torch.no_grad():
                tower(pixels, grid_thw=torch.tensor([grid] * frames))
            for _ in range(repeats):
                begun = time.perf_counter()
                output = tower(pixels, grid_thw=torch.tensor([grid] * frames)).pooler_output
                seconds["forward"].append(time.perf_counter() - begun)
                output.square().mean().backward()
                seconds["forward_backward"].append(time.perf_counter() - begun)
            outputs.append(output.detach())
            result[f"{frames} frames, {name}"] = {
                "attention_calls": calls.count,
                **{key: round(statistics.median(value), 3) for key, value in seconds.items()},
            }
        difference = float((outputs[0] - outputs[1]).abs().max())
        result[f"{frames} frames, largest difference"] = difference
    return result


def milliseconds(work: Callable[[], Any], count: int) -> float:
    """What it takes for each of so many."""
    begun = time.perf_counter()
    work()
    return round(1000 * (time.perf_counter() - begun) / count, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    configure(cpu=True)
    MODELS["small"] = SMALL
    sizes = {"trajectories": 4, "turns": 3, "response": 48, "repeats": repeats}
    result: dict[str, Any] = dict(sizes)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup("small", "cpu", 1, **sizes, rollouts=("none",), scratch=Path(folder))
        for context in ("concat", "no_concat"):
            result[context], images = compared(setup, context)
        result["frame"] = frame_costs(images, setup.model_path())
    write_verl_cpu(result, "frozen_tower")
    write_verl_cpu(tower_in_batches(repeats), "tower")


if __name__ == "__main__":
    main()
