"""What two ranks compute is what `transformers` computes of each row alone.

Both families, rows packed and padded, in shares of which one shows no picture at all: every rank
has to call every part of the network all the same.
"""

import itertools
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from verl_stories import rows_of, spawn, with_columns, without_pictures

from vagen.engines.verl.rows import to_batch
from vagen.envs.images import decode_png
from vagen.experiment.load import load_infra
from vagen.models.processor import Processor, load_processor
from vagen.rollout.types import TokenRow

pytestmark = pytest.mark.slow

FAMILIES = ("qwen3_vl", "qwen2_5_vl")
ATTENTIONS = ("packed", "sdpa")
STEP = {
    **{"lr": 1e-3, "grad_clip": 1.0, "grad_norm_threshold": 1e9},
    **{"denominator": 50.0, "entropy_coeff": 0.001},
}


def plain_logprobs(model: Any, row: TokenRow, images: Any, processor: Processor) -> np.ndarray:
    """Log-probabilities [T] of a row's tokens from `transformers` itself, 0 for the first.

    Those of banned tokens are -inf, where ours are very low.
    """
    ids = torch.from_numpy(row.input_ids).long()
    shown = [processor.process_image(Image.fromarray(decode_png(images[i]))) for i in row.images]
    pictures = {}
    if shown:
        pictures = {
            "pixel_values": torch.from_numpy(np.concatenate([i.pixel_values for i in shown])),
            "image_grid_thw": torch.tensor([i.grid for i in shown]),
            "mm_token_type_ids": (ids == processor.image_token_id).int()[None],
        }
    with torch.no_grad():
        logits = model(input_ids=ids[None], **pictures).logits[0]
    logits[:, processor.banned_ids] = -torch.inf
    found = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return np.concatenate([[np.float32(0)], found.numpy()])


def after_the_first(row: TokenRow) -> np.ndarray:
    """All tokens that can be predicted."""
    return np.arange(len(row.input_ids)) > 0


def count_states(states: list[int], head: Any, given: Any, logits: torch.Tensor) -> None:
    """Hook of the output layer: notes at how many states it computes logits."""
    states.append(logits.numel() // logits.shape[-1])


def learn(rank: int, ranks: int, folder: Path) -> None:
    """Each network before and after a step on this rank's share."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from omegaconf import OmegaConf

    from vagen.engines.verl.config import verl_config
    from vagen.engines.verl.groups import _critic_config
    from vagen.engines.verl.rows import at_tokens, before_tokens
    from vagen.engines.verl.workers import CriticWorker, PolicyWorker, policy_loss, value_loss

    given = torch.load(folder / "given.pt", weights_only=False)
    images, experiment = given["images"], given["experiment"]
    for family, attention in itertools.product(FAMILIES, ATTENTIONS):
        source = given["models"][family]
        infra = ["engine=verl", "device=cpu", f"verl.attention={attention}"]
        infra += ["verl.n_gpus_per_node=2", "verl.max_token_len_per_gpu=320"]
        config = verl_config(experiment, load_infra(None, infra), str(source))
        OmegaConf.resolve(config)
        policy = PolicyWorker(config.actor_rollout_ref, role="actor")
        policy.init_model()
        policy.set_loss_fn(partial(policy_loss, config=experiment.actor_rollout_ref.actor))
        critic = CriticWorker(_critic_config(config))
        critic.reset()
        critic.set_loss_fn(value_loss)
        batch = partial(
            to_batch,
            given["shares"][family][rank],
            images,
            load_processor(source),
            action_mask=lambda row: row.loss_mask,
            temperature=1.0,
        )

        def said(compute: Any, name: str, batch: Any = batch, **mask: Any) -> list[np.ndarray]:
            data = batch(compute_loss=False, calculate_entropy=False, **mask)
            return before_tokens(at_tokens(compute(data)[name]))

        states: list[int] = []
        head = policy.actor.engine.module.get_output_embeddings()
        head.register_forward_hook(partial(count_states, states))
        found: dict[str, Any] = {
            "before": said(policy.compute_log_prob, "log_probs", action_mask=after_the_first),
            "sampled": said(policy.compute_log_prob, "log_probs"),
        }
        columns = ("old_logprobs", "advantages")
        data = batch(columns=columns, calculate_entropy=True, **STEP)
        found["actor"] = policy.actor.train_batch(data)["metrics"]
        found["logits"] = sum(states)
        found["after"] = said(policy.compute_log_prob, "log_probs", action_mask=after_the_first)
        columns = ("values", "returns", "critic_mask")
        data = batch(columns=columns, value_shift=0.0, cliprange_value=0.5, **STEP)
        found["critic"] = critic.train_batch(data)["metrics"]
        found["values"] = said(critic.infer_batch, "values")
        torch.save(found, folder / f"{family}-{attention}-{rank}.pt")


@pytest.fixture(scope="module")
def stories(family_dirs, vl_batch, make_experiment, tmp_path_factory) -> dict[Any, Any]:
    """What was found by family, attention and rank; expected log-probabilities are the rows'."""
    from transformers import AutoModelForImageTextToText

    folder = tmp_path_factory.mktemp("networks")
    processor = load_processor(family_dirs["qwen3_vl"])
    seen = [row for row in rows_of(vl_batch) if row.images][:4]
    words = [without_pictures(row, processor.banned_ids) for row in seen]
    shares = {}
    for family, source in family_dirs.items():
        model = AutoModelForImageTextToText.from_pretrained(source)
        shares[family] = [
            [with_columns(row, plain_logprobs(model, row, vl_batch.images, processor)) for row in s]
            for s in (words[:3], [*seen[:3], words[3]])
        ]
        shares[family][0].append(shares[family][0][0])
    given = {"shares": shares, "models": family_dirs, "images": vl_batch.images}
    torch.save(given | {"experiment": make_experiment()}, folder / "given.pt")
    spawn(learn, 2, folder)
    found = {
        key: torch.load(folder / f"{'-'.join(map(str, key))}.pt", weights_only=False)
        for key in itertools.product(FAMILIES, ATTENTIONS, range(2))
    }
    return {"shares": shares, **found}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_log_probabilities_are_those_of_transformers(stories, family, attention):
    for rank in range(2):
        rows = stories["shares"][family][rank]
        found = stories[family, attention, rank]["before"]
        assert any(row.images for row in rows) is bool(rank)
        for row, logprobs in zip(rows, found, strict=True):
            expected = row.columns["expected"]
            possible = np.isfinite(expected)
            np.testing.assert_allclose(logprobs[possible], expected[possible], atol=1e-4)
            assert (logprobs[~possible] < -1e8).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_logits_are_computed_where_a_sampled_token_follows(stories, family, attention):
    """The same log-probabilities as with logits everywhere, and nothing for other tokens."""
    for rank in range(2):
        rows, found = stories["shares"][family][rank], stories[family, attention, rank]
        for row, few, all_of_them in zip(rows, found["sampled"], found["before"], strict=True):
            expected = np.where(row.loss_mask, all_of_them, 0)
            np.testing.assert_allclose(few, expected, atol=1e-5)
        everywhere = sum(len(row.input_ids) - 1 for row in rows)
        sampled = sum(row.loss_mask.sum() for row in rows)
        # Once everywhere; then for log-probabilities and for a step.
        assert found["logits"] == everywhere + 2 * sampled
        assert 2 * sampled < everywhere


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_on_packed_rows_is_one_on_padded_rows(stories, family):
    for rank in range(2):
        packed, padded = (stories[family, attention, rank] for attention in ATTENTIONS)
        for network in ("actor", "critic"):
            for metric in ("loss", "grad_norm"):
                found, expected = packed[network][metric], padded[network][metric]
                assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), (network, metric)
            assert packed[network]["grad_norm"] > 1e-3
        for name in ("after", "values"):
            for a, b in zip(packed[name], padded[name], strict=True):
                np.testing.assert_allclose(a, b, atol=1e-3)
        moved = zip(packed["before"], packed["after"], strict=True)
        assert max(np.abs(a - b).max() for a, b in moved) > 1e-2
        assert max(np.abs(values).max() for values in packed["values"]) > 1e-3
