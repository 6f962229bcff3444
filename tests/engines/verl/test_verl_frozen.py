"""`freeze_vision_tower` on two ranks: the tower stays, everything else learns.

And it is asked once: networks that get its features compute what they would of the frames.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_stories import rows_of, spawn, with_columns, without_pictures

from vagen.engines.verl.rows import to_batch
from vagen.experiment.load import load_infra
from vagen.models.processor import load_processor

pytestmark = pytest.mark.slow

CASES = (("qwen3_vl", "float32"), ("qwen2_5_vl", "float32"), ("qwen3_vl", "bfloat16"))
FROZEN = "actor_rollout_ref.model.freeze_vision_tower=true"
STEP: dict[str, Any] = {
    **{"lr": 1e-3, "grad_clip": 1.0, "grad_norm_threshold": 1e9},
    **{"denominator": 50.0, "entropy_coeff": 0.001, "value_shift": 0.0, "cliprange_value": 0.5},
}


def learn(rank: int, ranks: int, folder: Path) -> None:
    """Every case with features and with frames."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from vagen.engines.verl import networks

    given = torch.load(folder / "given.pt", weights_only=False)
    pass_on = networks.Learner._pass_on_features
    for family, dtype in CASES:
        for cached in (False, True):
            networks.Learner._pass_on_features = pass_on if cached else lambda self: False
            found = tell(rank, ranks, given, str(given["models"][family]), dtype, cached=cached)
            torch.save(found, folder / f"{family}-{dtype}-{cached}-{rank}.pt")


def tell(
    rank: int, ranks: int, given: dict[str, Any], source: str, dtype: str, *, cached: bool
) -> dict[str, Any]:
    """What policy, reference and critic say, and two steps of those that learn."""
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.groups import _critic_config
    from vagen.engines.verl.rows import at_tokens
    from vagen.engines.verl.workers import CriticWorker, PolicyWorker, policy_loss, value_loss

    experiment, images = given["experiment"], given["images"]
    infra = ["engine=verl", "device=cpu", f"dtype={dtype}", "verl.n_gpus_per_node=2"]
    infra += ["verl.max_token_len_per_gpu=320"]  # several micro batches
    config = verl_config(experiment, load_infra(None, infra), source)
    OmegaConf.resolve(config)
    policy = PolicyWorker(config.actor_rollout_ref, role="actor")
    policy.init_model()
    policy.set_loss_fn(partial(policy_loss, config=experiment.actor_rollout_ref.actor))
    reference = PolicyWorker(config.actor_rollout_ref, role="ref")
    reference.init_model()
    critic = CriticWorker(_critic_config(config))
    critic.reset()
    critic.set_loss_fn(value_loss)
    workers = {"actor": policy.actor, "reference": reference.ref, "critic": critic}
    found: dict[str, Any] = {"looks": dict.fromkeys(workers, 0)}

    def count(name: str) -> None:
        found["looks"][name] += 1

    for name, worker in workers.items():
        block = worker.engine.module.model.visual.blocks[0]
        block.register_forward_hook(lambda *_, name=name: count(name))
    shares = given["shares"]
    features = None
    if cached:
        digests = list(dict.fromkeys(d for share in shares for row in share for d in row.images))
        digests += digests[: -len(digests) % ranks]
        mine = digests[rank::ranks]
        seen = policy.actor.engine.features([images[digest] for digest in mine])
        parts: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(parts, dict(zip(mine, seen, strict=True)))
        features = dict(pair for part in parts for pair in part.items())
    batch = partial(
        to_batch,
        shares[rank],
        images,
        load_processor(source),
        action_mask=lambda row: row.loss_mask,
        features=features,
        temperature=1.0,
    )

    def said(worker: Any, output: str) -> list[np.ndarray]:
        data = batch(compute_loss=False, calculate_entropy=False)
        return at_tokens(worker.infer_batch(data)[output])

    found["reference"] = said(workers["reference"], "log_probs")
    for name, output, columns in (
        ("actor", "log_probs", ("old_logprobs", "advantages")),
        ("critic", "values", ("values", "returns", "critic_mask")),
    ):
        module = workers[name].engine.module
        before = {n: w.detach().full_tensor().clone() for n, w in module.named_parameters()}
        found[f"{name} before"] = said(workers[name], output)
        for _ in range(2):  # a value head that says 0 gives the rest no gradient at first
            workers[name].train_batch(batch(columns=columns, calculate_entropy=True, **STEP))
        found[f"{name} after"] = said(workers[name], output)
        weights = {n: w.detach().full_tensor() for n, w in module.named_parameters()}
        found[f"{name} moved"] = {n: (w - before[n]).numpy() for n, w in weights.items()}
        moments = workers[name].engine.optimizer.state
        found[f"{name} moments"] = [n for n, w in module.named_parameters() if w in moments]
    return found


@pytest.fixture(scope="module")
def stories(make_experiment, family_dirs, vl_batch, tmp_path_factory) -> dict[Any, Any]:
    """By case, whether there were features, and rank. The first rank's rows show nothing."""
    folder = tmp_path_factory.mktemp("frozen")
    banned = load_processor(family_dirs["qwen3_vl"]).banned_ids
    rows = [row for row in rows_of(vl_batch) if row.images][:4]
    rows = [*(without_pictures(row, banned) for row in rows[:2]), *rows[2:]]
    rows = [with_columns(row, row.rollout_logprobs) for row in rows]
    given = {"shares": [rows[:2], rows[2:]], "models": family_dirs, "images": vl_batch.images}
    torch.save(given | {"experiment": make_experiment(FROZEN)}, folder / "given.pt")
    spawn(learn, 2, folder)
    return {
        (case, cached, rank): torch.load(
            folder / f"{'-'.join(case)}-{cached}-{rank}.pt", weights_only=False
        )
        for case in CASES
        for cached in (False, True)
        for rank in range(2)
    }


@pytest.mark.parametrize("case", CASES)
def test_the_tower_of_both_networks_stays(stories, case):
    found = stories[case, True, 0]
    for network in ("actor", "critic"):
        tower = {name for name in found[f"{network} moved"] if "visual." in name}
        moved = {name for name, change in found[f"{network} moved"].items() if change.any()}
        assert tower and not tower & moved
        assert len(moved) > 5
        assert not tower & set(found[f"{network} moments"])


@pytest.mark.parametrize("case", CASES)
def test_it_is_asked_once_and_nothing_else_changes(stories, case):
    for rank in range(2):
        ours, theirs = stories[case, True, rank], stories[case, False, rank]
        assert ours["looks"] == {"actor": 1, "reference": 0, "critic": 0}
        assert all(looks > 1 for looks in theirs["looks"].values())
        said = [key for key in ours if key.endswith(("before", "after", "reference"))]
        assert len(said) == 5
        for key in said:
            for a, b in zip(ours[key], theirs[key], strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5, err_msg=key)
        for network in ("actor", "critic"):
            for name, change in ours[f"{network} moved"].items():
                expected = theirs[f"{network} moved"][name]
                np.testing.assert_allclose(change, expected, atol=1e-6, err_msg=name)
        for a, b in zip(ours["reference"], ours["actor before"], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
