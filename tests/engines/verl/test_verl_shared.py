"""Rows with equal beginnings: read once by every network, with what they say of rows apart.

Two ranks, the first with siblings of one episode and the second with rows of several, so that
their micro batches must be made equally many.
"""

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_stories import rows_of, spawn, with_columns

from vagen.engines.verl.rows import balanced, to_batch
from vagen.experiment.load import load_infra
from vagen.models.processor import load_processor

FAMILIES = ("qwen3_vl", "qwen2_5_vl")
STEP: dict[str, Any] = {
    **{"lr": 1e-3, "grad_clip": 1.0, "grad_norm_threshold": 1e9, "denominator": 50.0},
    **{"entropy_coeff": 0.001, "value_shift": 0.0, "cliprange_value": 0.5, "temperature": 0.7},
}


def sibling(row: Any, shift: int) -> Any:
    """An episode with the same prompt and other answers."""
    ids = row.input_ids.copy()
    ids[row.loss_mask] = np.roll(ids[row.loss_mask], shift)
    return replace(row, input_ids=ids, columns={})


def learn(rank: int, ranks: int, folder: Path) -> None:
    """What both networks say before and after a step, with rows apart and together."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from vagen.engines.local import packing

    given = torch.load(folder / "given.pt", weights_only=False)
    least = packing.MIN_SHARED_SAVING
    for family in FAMILIES:
        for together in (False, True):
            packing.MIN_SHARED_SAVING = least if together else 2.0  # more than there is
            found = told(given, family, rank)
            torch.save(found, folder / f"{family}-{together}-{rank}.pt")


def told(given: dict[str, Any], family: str, rank: int) -> dict[str, Any]:
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.groups import _critic_config
    from vagen.engines.verl.rows import at_tokens
    from vagen.engines.verl.workers import CriticWorker, PolicyWorker, policy_loss, value_loss

    experiment, source = given["experiment"], str(given["models"][family])
    infra = ["engine=verl", "device=cpu", "verl.n_gpus_per_node=2"]
    infra += ["verl.max_token_len_per_gpu=620"]
    config = verl_config(experiment, load_infra(None, infra), source)
    OmegaConf.resolve(config)
    policy = PolicyWorker(config.actor_rollout_ref, role="actor")
    policy.init_model()
    policy.set_loss_fn(partial(policy_loss, config=experiment.actor_rollout_ref.actor))
    critic = CriticWorker(_critic_config(config))
    critic.reset()
    critic.set_loss_fn(value_loss)
    read: Counter[str] = Counter()

    def count(name: str, inputs: dict[str, Any]) -> None:
        read[name] += inputs["input_ids"].numel()

    workers = {"policy": policy.actor, "critic": critic}
    for name, worker in workers.items():
        worker.engine.module.register_forward_pre_hook(
            lambda _, __, inputs, name=name: count(name, inputs), with_kwargs=True
        )
    processor = load_processor(source)
    batch = partial(
        to_batch,
        given["shares"][rank],
        given["images"],
        processor,
        action_mask=lambda row: row.loss_mask,
        **STEP,
    )
    found: dict[str, Any] = {}
    for name, output, columns in (
        ("policy", "log_probs", ("old_logprobs", "advantages")),
        ("critic", "values", ("values", "returns", "critic_mask")),
    ):
        worker = workers[name]
        ask = batch(compute_loss=False, calculate_entropy=False)
        found[f"{name} before"] = at_tokens(worker.infer_batch(ask)[output])
        found[f"{name} read"] = read[name]
        metrics = worker.train_batch(batch(columns=columns, calculate_entropy=True))["metrics"]
        found[f"{name} norm"] = [np.array([metrics["grad_norm"], metrics["loss"]])]
        ask = batch(compute_loss=False, calculate_entropy=False)
        found[f"{name} after"] = at_tokens(worker.infer_batch(ask)[output])
    return found


@pytest.fixture(scope="module")
def stories(make_experiment, family_dirs, vl_batch, tmp_path_factory) -> dict[Any, Any]:
    """By family, whether prefixes were shared, and rank."""
    folder = tmp_path_factory.mktemp("shared")
    rows = [row for row in rows_of(vl_batch) if row.images][:4]
    shares = [
        [sibling(rows[0], shift) for shift in range(4)],
        [rows[1], sibling(rows[1], 3), *rows[2:4]],
    ]
    shares = [[with_columns(row, row.rollout_logprobs) for row in share] for share in shares]
    given = {"shares": shares, "models": family_dirs, "images": vl_batch.images}
    torch.save(given | {"experiment": make_experiment()}, folder / "given.pt")
    spawn(learn, 2, folder)
    return {"shares": shares} | {
        (family, together, rank): torch.load(
            folder / f"{family}-{together}-{rank}.pt", weights_only=False
        )
        for family in FAMILIES
        for together in (False, True)
        for rank in range(2)
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_networks_say_the_same_of_rows_together_and_read_less(stories, family):
    for rank, share in enumerate(stories["shares"]):
        apart, together = stories[family, False, rank], stories[family, True, rank]
        for key, expected in apart.items():
            if key.endswith("read"):
                continue
            for a, b in zip(together[key], expected, strict=True):
                # Adam's first step divides gradients by themselves: those next to nothing differ.
                atol = 1e-3 if key.endswith("after") else 1e-5
                np.testing.assert_allclose(a, b, atol=atol, rtol=1e-4, err_msg=key)
        tokens = sum(len(row.input_ids) for row in share)
        assert apart["critic read"] == tokens
        assert apart["policy read"] <= tokens  # what follows the last sampled token is left out
        for network in ("policy", "critic"):
            assert together[f"{network} read"] < apart[f"{network} read"]
    # The four siblings fit into one micro batch, which is halved since the other rank needs two.
    prompt = int(stories["shares"][0][0].loss_mask.argmax())
    for network in ("policy", "critic"):
        apart, together = (stories[family, both, 0][f"{network} read"] for both in (False, True))
        assert apart - together == 2 * prompt


def test_ranks_get_rows_with_the_same_prompt_together(vl_batch, family_dirs):
    from vagen.engines.local.packing import whole_row

    image = load_processor(family_dirs["qwen2_5_vl"]).image_ids
    rows = [row for row in rows_of(vl_batch) if row.images][:4]
    groups = [[sibling(row, shift) for shift in range(3)] for row in rows]
    mixed = [groups[i % 4][i // 4] for i in range(12)]
    order = balanced([whole_row(row, image) for row in mixed], 2)
    assert sorted(order) == list(range(12))
    for share in (order[:6], order[6:]):
        openings = {whole_row(mixed[i], image).opening for i in share}
        assert len(openings) == 2
    # A family larger than a share is divided; no family goes before equal shares.
    order = balanced([whole_row(row, image) for row in [*mixed[:1] * 5, mixed[1]]], 2)
    assert sorted(order) == list(range(6))
