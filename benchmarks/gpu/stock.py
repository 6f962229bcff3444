"""G7: the policy's update by our networks and by verl's own, on the same rows, side by side.

Both run in verl's worker, as the only rank, each in a process of its own. verl's get their pixels
ready-made, ours read the frames. verl's critic is not compared: it has none for these models
without the packages trl and flash-attn. Without flash-attn verl's rows are padded, too.
"""

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import ROOT, Meter, Setup, add_columns, rows_of, written_episodes
from benchmarks.gpu.engines import join_alone, one_rank

MOST = 1.1
"""How much longer than verl's own ours may take."""


def check(setup: Setup) -> dict[str, Any]:
    """Passes if our update and log-probabilities take at most `MOST` times as long."""
    found: dict[str, Any] = {}
    for name in ("ours", "verl"):
        given, answer = (setup.scratch / f"stock-{name}-{part}.pkl" for part in ("in", "out"))
        setup.model_path()
        given.write_bytes(pickle.dumps(setup))
        command = [sys.executable, "-m", "benchmarks.gpu.stock", name, str(given), str(answer)]
        subprocess.run(command, cwd=ROOT, check=True)
        found[name] = pickle.loads(answer.read_bytes())
    ratios = {
        part: found["ours"]["phases"][part]["seconds"] / found["verl"]["phases"][part]["seconds"]
        for part in ("logprobs", "update")
    }
    passed = max(ratios.values()) <= MOST
    return {"passed": passed, "ours_over_verl": ratios, "threshold": MOST, **found}


def _ours(setup: Setup, config: Any, rows: Sequence[Any], images: Any) -> dict[str, Any]:
    meter = Meter(setup.device)
    with one_rank(config, setup.infra()) as engine:
        found = meter.repeat("logprobs", setup.repeats, lambda: engine.logprobs(rows, images))
        add_columns(rows, found, None)

        def update() -> dict[str, float]:
            return engine.update(rows, images, seed=0)

        metrics = meter.repeat("update", setup.repeats, update)
    return {
        "attention": "packed",
        "phases": meter.report(),
        "grad_norm": metrics["actor/grad_norm"],
    }


def _verl(setup: Setup, config: Any, rows: Sequence[Any], images: Any) -> dict[str, Any]:
    os.environ.pop("VERL_ENGINE_VENDOR")  # whose networks are taken: verl's
    join_alone()
    from omegaconf import OmegaConf, open_dict
    from verl.utils import tensordict_utils
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from vagen.engines.verl.config import verl_config

    flash = importlib.util.find_spec("flash_attn") is not None
    attention = "flash_attention_2" if flash else "sdpa"
    size = config.actor_rollout_ref.actor.ppo_mini_batch_size
    options = verl_config(config, setup.infra("verl.attention=sdpa"), str(setup.model_path()))
    OmegaConf.resolve(options)
    policy = options.actor_rollout_ref
    with open_dict(policy):
        policy.model.override_config.attn_implementation = attention
        policy.model.use_remove_padding = flash
        policy.actor.ppo_mini_batch_size = size
        policy.actor.entropy_coeff = config.actor_rollout_ref.actor.entropy_coeff
    worker: Any = ActorRolloutRefWorker(policy, role="actor")
    worker.init_model()
    add_columns(rows, [np.zeros(len(row.input_ids), np.float32) for row in rows], None)
    batch = _batch(setup, config, rows, images)
    meter = Meter(setup.device)

    def ask(**options: Any) -> Any:
        data = batch.clone()
        tensordict_utils.assign_non_tensor(data, **options)
        return data

    def infer() -> Any:
        data = ask(calculate_entropy=False, compute_loss=False)
        return worker.compute_log_prob(data)

    def update() -> Any:
        mini = {"mini_batch_size": size, "global_batch_size": size, "epochs": 1, "seed": 0}
        data = ask(calculate_entropy=True, compute_loss=True, **mini)
        return worker.update_actor(data)

    meter.repeat("logprobs", setup.repeats, infer)
    metrics = tensordict_utils.get(meter.repeat("update", setup.repeats, update), "metrics")
    norm = float(np.mean(metrics["grad_norm"]))
    return {"attention": attention, "phases": meter.report(), "grad_norm": norm}


def _batch(setup: Setup, config: Any, rows: Sequence[Any], images: Any) -> Any:
    """The rows as verl's trainer gives them to its workers."""
    import torch
    from PIL import Image
    from tensordict import lazy_stack
    from tensordict.tensorclass import NonTensorData
    from torch.nn.utils.rnn import pad_sequence
    from verl.utils import tensordict_utils

    from vagen.engines.verl.rows import ACTIONS, jagged, to_batch
    from vagen.envs.images import decode_png
    from vagen.models.processor import load_processor

    processor = load_processor(config.actor_rollout_ref.model.path)
    temperature = config.actor_rollout_ref.rollout.temperature
    batch = to_batch(
        rows, images, processor, action_mask=lambda row: row.loss_mask, temperature=temperature
    )
    starts = [int(np.flatnonzero(row.loss_mask)[0]) for row in rows]
    ids = [torch.from_numpy(row.input_ids).long() for row in rows]
    batch["prompts"] = jagged([x[:start] for x, start in zip(ids, starts, strict=True)])
    batch["responses"] = jagged([x[start:] for x, start in zip(ids, starts, strict=True)])

    def answers(column: Any) -> Any:
        parts = [torch.from_numpy(column(row)[at:]) for row, at in zip(rows, starts, strict=True)]
        return pad_sequence(parts, batch_first=True)

    batch["response_mask"] = batch[ACTIONS] = answers(lambda row: row.loss_mask)
    batch["old_log_probs"] = answers(lambda row: row.columns["old_logprobs"])
    batch["advantages"] = answers(lambda row: row.columns["advantages"])
    pixels = []
    for row in rows:
        shown = [
            processor.process_image(Image.fromarray(decode_png(images[d]))) for d in row.images
        ]
        values = np.concatenate([image.pixel_values for image in shown])
        pixels.append(
            {
                "pixel_values": torch.from_numpy(values).to(setup.device),
                "image_grid_thw": torch.tensor([i.grid for i in shown], device=setup.device),
            }
        )
    # pyrefly: ignore[bad-specialization]
    batch["multi_modal_inputs"] = lazy_stack([NonTensorData(entry) for entry in pixels])
    longest = batch["response_mask"].shape[1]
    tensordict_utils.assign_non_tensor(batch, max_response_len=longest)
    return batch


def _child(name: str, given: Path, answer: Path) -> None:
    from vagen.engines.verl.env_vars import configure

    setup: Setup = pickle.loads(given.read_bytes())
    configure(cpu=setup.device == "cpu")
    levels = max(setup.trajectories // 2, 1)
    config = setup.experiment(  # neither critic nor reference
        "algorithm.adv_estimator=grpo",
        "algorithm.kl_ctrl.kl_coef=0",
        "rollout_manager.n_trajectory=2",
        f"data.train_batch_size={levels}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={min(32, 2 * levels)}",
    )
    trajectories, images = written_episodes(setup, config)
    measure = {"ours": _ours, "verl": _verl}[name]
    answer.write_bytes(pickle.dumps(measure(setup, config, rows_of(trajectories), images)))


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
