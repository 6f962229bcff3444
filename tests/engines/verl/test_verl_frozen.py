"""`freeze_vision_tower` on two ranks: the tower stays, everything else learns."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_stories import rows_of, spawn

from vagen.config.load import load_infra
from vagen.engines.verl.rows import to_batch
from vagen.models.processor import load_processor

pytestmark = pytest.mark.slow

FROZEN = "actor_rollout_ref.model.freeze_vision_tower=true"
STEP = {
    **{"lr": 1e-3, "grad_clip": 1.0, "grad_norm_threshold": 1e9},
    **{"denominator": 50.0, "entropy_coeff": 0.001},
}


def learn(rank: int, ranks: int, folder: Path) -> None:
    """Two steps of each network; which of its weights moved."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.groups import _critic_config
    from vagen.engines.verl.objectives import policy_loss, value_loss
    from vagen.engines.verl.workers import CriticWorker, PolicyWorker

    given = torch.load(folder / "given.pt", weights_only=False)
    source, experiment = str(given["source"]), given["experiment"]
    infra = load_infra(None, ["engine=verl", "device=cpu", "verl.n_gpus_per_node=2"])
    config = verl_config(experiment, infra, source)
    OmegaConf.resolve(config)
    policy = PolicyWorker(config.actor_rollout_ref, role="actor")
    policy.init_model()
    policy.set_loss_fn(partial(policy_loss, config=experiment.actor_rollout_ref.actor))
    critic = CriticWorker(_critic_config(config))
    critic.reset()
    critic.set_loss_fn(value_loss)
    found: dict[str, Any] = {}
    for name, worker, columns in (
        ("actor", policy.actor, ("old_logprobs", "advantages")),
        ("critic", critic, ("values", "returns", "critic_mask")),
    ):
        data = partial(
            to_batch,
            given["rows"][rank::ranks],
            given["images"],
            load_processor(source),
            action_mask=lambda row: row.loss_mask,
            columns=columns,
            temperature=1.0,
            calculate_entropy=True,
            value_shift=0.0,
            cliprange_value=0.5,
            **STEP,
        )
        module = worker.engine.module
        before = {n: w.detach().full_tensor().clone() for n, w in module.named_parameters()}
        for _ in range(2):  # a value head that says 0 gives the rest no gradient at first
            worker.train_batch(data())
        found[name] = {
            n: not torch.equal(w.detach().full_tensor(), before[n])
            for n, w in module.named_parameters()
        }
        moments = worker.engine.optimizer.state
        found[f"{name} moments"] = [n for n, w in module.named_parameters() if w in moments]
    if rank == 0:
        torch.save(found, folder / "found.pt")


def test_the_tower_of_both_networks_stays(make_experiment, vl_dir, vl_batch, tmp_path):
    rows = rows_of(vl_batch)[:4]
    given = {"source": vl_dir, "rows": rows, "images": vl_batch.images}
    torch.save(given | {"experiment": make_experiment(FROZEN)}, tmp_path / "given.pt")
    spawn(learn, 2, tmp_path)
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    for network in ("actor", "critic"):
        tower = {name for name in found[network] if "visual." in name}
        moved = {name for name, changed in found[network].items() if changed}
        assert tower and not tower & moved
        assert len(moved) > 5
        assert not tower & set(found[f"{network} moments"])
