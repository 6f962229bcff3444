"""Hybrid sharding: groups of ranks with a copy each compute what ranks with one copy do."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_stories import rows_of, spawn

from vagen.engines.verl.rows import to_batch
from vagen.experiment.load import load_infra
from vagen.models.processor import load_processor

pytestmark = pytest.mark.slow

STEP = {
    **{"lr": 1e-3, "grad_clip": 1.0, "grad_norm_threshold": 1e9},
    **{"denominator": 50.0, "entropy_coeff": 0.001},
}
LAYOUTS = {"whole": "null", "hybrid": "1"}
"""`fsdp_size` on two ranks."""


def learn(rank: int, ranks: int, folder: Path) -> None:
    """A step, a checkpoint, and a second step: from the own checkpoint and the other layout's."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.workers import PolicyWorker, policy_loss

    given = torch.load(folder / "given.pt", weights_only=False)
    source, experiment = str(given["source"]), given["experiment"]
    found: dict[Any, Any] = {}
    workers = {}
    for layout, size in LAYOUTS.items():
        words = ["engine=verl", "device=cpu", "verl.n_gpus_per_node=2", f"verl.fsdp_size={size}"]
        config = verl_config(experiment, load_infra(None, words), source)
        OmegaConf.resolve(config)
        worker = workers[layout] = PolicyWorker(config.actor_rollout_ref, role="actor")
        worker.init_model()
        worker.set_loss_fn(partial(policy_loss, config=experiment.actor_rollout_ref.actor))

    def step(worker: Any) -> Any:
        data = to_batch(
            given["rows"][rank::ranks],
            given["images"],
            load_processor(source),
            action_mask=lambda row: row.loss_mask,
            columns=("old_logprobs", "advantages"),
            temperature=1.0,
            calculate_entropy=True,
            **STEP,
        )
        metrics = worker.actor.train_batch(data)["metrics"]
        return metrics["loss"], metrics["grad_norm"]

    for layout, worker in workers.items():
        weight = next(worker.actor.engine.module.parameters())
        held = weight.to_local().numel() / weight.numel()
        found[layout] = {"held": held, "first": step(worker)}
        worker.save_checkpoint(str(folder / layout / "actor"))
    torch.distributed.barrier()
    for layout, worker in workers.items():
        for origin in LAYOUTS:
            worker.load_checkpoint(str(folder / origin / "actor"))
            found[layout, origin] = step(worker)
    if rank == 0:
        torch.save(found, folder / "found.pt")


def test_groups_with_a_copy_each_are_one_group(make_experiment, vl_dir, vl_batch, tmp_path):
    rows = rows_of(vl_batch)[:4]
    given = {"source": vl_dir, "rows": rows, "images": vl_batch.images}
    torch.save(given | {"experiment": make_experiment()}, tmp_path / "given.pt")
    spawn(learn, 2, tmp_path)
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    assert (found["whole"]["held"], found["hybrid"]["held"]) == (0.5, 1.0)
    assert found["hybrid"]["first"] == pytest.approx(found["whole"]["first"], rel=1e-4)
    second = found["whole", "whole"]
    assert second != pytest.approx(found["whole"]["first"], rel=1e-4)
    for layout in LAYOUTS:
        for origin in LAYOUTS:
            assert found[layout, origin] == pytest.approx(second, rel=1e-3), (layout, origin)
