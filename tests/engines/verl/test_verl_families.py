"""What two ranks compute of families that read images in tiles is what `transformers` computes.

One rank's rows show no picture: it has to call every part of the network all the same.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_families import FRAMES, conversation, plain_inputs, write_family
from verl_stories import spawn

from vagen.config import ConfigError
from vagen.engines.verl.rows import to_batch
from vagen.envs.images import png_bytes
from vagen.experiment.load import load_infra
from vagen.models.processor import load_processor

FAMILIES = ("smolvlm", "internvl")
IMAGES = {name: png_bytes(frame) for name, frame in FRAMES.items()}
STEP = {
    **{"lr": 1e-3, "grad_clip": 1.0, "grad_norm_threshold": 1e9},
    **{"denominator": 50.0, "entropy_coeff": 0.001},
}


def shares(processor: Any) -> list[list[Any]]:
    """The rows of each rank."""
    silent = [conversation(processor, name, [name, "ab"]) for name in ("ab", "no")]
    shown = [
        conversation(processor, "a", ["ab", "no"], "0", "wide"),
        conversation(processor, "b", ["yes"], "0"),
    ]
    for row in (*silent, *shown):
        row.columns |= {n: np.ones(len(row.input_ids), np.float32) for n in ("advantages",)}
        row.columns["old_logprobs"] = np.full(len(row.input_ids), -3, np.float32)
    return [silent, shown]


def learn(rank: int, ranks: int, folder: Path) -> None:
    """The policy before and after a step on this rank's rows."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.rows import at_tokens, before_tokens
    from vagen.engines.verl.workers import PolicyWorker, policy_loss

    experiment = torch.load(folder / "given.pt", weights_only=False)
    for name in FAMILIES:
        processor = load_processor(folder / name)
        infra = ["engine=verl", "device=cpu", "verl.rollout=torch", "verl.n_gpus_per_node=2"]
        config = verl_config(experiment, load_infra(None, infra), str(folder / name))
        OmegaConf.resolve(config)
        policy = PolicyWorker(config.actor_rollout_ref, role="actor")
        policy.init_model()
        policy.set_loss_fn(partial(policy_loss, config=experiment.actor_rollout_ref.actor))
        rows = shares(processor)[rank]
        mask = {"action_mask": lambda row: row.loss_mask}
        batch = partial(to_batch, rows, IMAGES, processor, temperature=1.0, **mask)
        data = batch(compute_loss=False, calculate_entropy=False)
        before = before_tokens(at_tokens(policy.compute_log_prob(data)["log_probs"]))
        data = batch(columns=("old_logprobs", "advantages"), calculate_entropy=True, **STEP)
        metrics = policy.actor.train_batch(data)["metrics"]
        torch.save((before, metrics), folder / f"{name}-{rank}.pt")


@pytest.fixture(scope="module")
def folder(make_experiment, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiles")
    for name in FAMILIES:
        write_family(name, folder / name)
    torch.save(make_experiment(), folder / "given.pt")
    spawn(learn, 2, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_log_probabilities_are_those_of_transformers(folder, name):
    from transformers import AutoModelForImageTextToText

    processor = load_processor(folder / name)
    plain = AutoModelForImageTextToText.from_pretrained(folder / name).eval()
    for rank, rows in enumerate(shares(processor)):
        found, metrics = torch.load(folder / f"{name}-{rank}.pt", weights_only=False)
        assert metrics["grad_norm"] > 1e-3
        for row, logprobs in zip(rows, found, strict=True):
            with torch.no_grad():
                inputs = plain_inputs(processor, row.input_ids, list(row.images))
                logits = plain(**inputs).logits[0]
            logits[:, processor.banned_ids] = -torch.inf
            ids = torch.from_numpy(row.input_ids).long()
            expected = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
            asked = np.flatnonzero(row.loss_mask)
            np.testing.assert_allclose(logprobs[asked], expected[asked - 1], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "rollout", "reason"),
    [
        ("smolvlm", "vllm", "infra.verl.rollout: .* set it to torch"),
        ("smolvlm", "torch", None),
        ("llava_onevision", "torch", "infra.engine: verl cannot train llava_onevision"),
        ("glm4v", "torch", "infra.engine: verl cannot train glm4v"),
        ("gemma3", "torch", "infra.engine: verl cannot train gemma3"),
    ],
)
def test_what_verl_cannot_train_is_refused_at_the_start(name, rollout, reason, tmp_path):
    from vagen.engines.verl.launch import check_family

    path = write_family(name, tmp_path / name)
    infra = load_infra(None, ["engine=verl", f"verl.rollout={rollout}"])
    if reason is None:
        check_family(infra, path)
    else:
        with pytest.raises(ConfigError, match=reason):
            check_family(infra, path)
