"""The same stored batch and weights give the same numbers in both engines, for both families."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vagen.engines.local.engine import LocalEngine

pytestmark = pytest.mark.slow

OVERRIDES = (
    "actor_rollout_ref.actor.ppo_mini_batch_size=6",
    "algorithm.kl_ctrl.kl_coef=0.05",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
    "critic.center_values=true",
    "actor_rollout_ref.actor.entropy_coeff=0.05",
    "actor_rollout_ref.actor.entropy_ctrl.target=9",
)
"""One optimizer step per network, with every term that a loss can have."""
LOSS_MODE = {
    "qwen3_vl": ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo_turn",),
    "qwen2_5_vl": (
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
        "actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.1",
        "actor_rollout_ref.actor.policy_loss.clip_cov_lb=0.05",
    ),
}


@pytest.fixture(scope="module", params=LOSS_MODE)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model_dir(family, family_dirs):
    return family_dirs[family]


@pytest.fixture(scope="module")
def engines(make_experiment, make_verl_engine, model_dir, family):
    words = (*OVERRIDES, *LOSS_MODE[family])
    local = LocalEngine(make_experiment(*words), model_dir, device=torch.device("cpu"))
    return local, make_verl_engine(model_dir, *words)


def rows_of(batch):
    return [row for trajectory in batch.trajectories for row in trajectory.rows]


def with_reference(rows, logprobs):
    """The rows, played by models near the one whose log-probabilities these are."""
    for row, values in zip(rows, logprobs, strict=True):
        draws = np.random.default_rng(len(row.input_ids))
        for name in ("old_logprobs", "ref_logprobs"):
            noise = draws.normal(0, 0.1, len(values)).astype(np.float32)
            row.columns[name] = np.where(row.loss_mask, values + noise, np.float32(0))
    return rows


def test_log_probabilities_and_values_agree(engines, batch):
    local, distributed = engines
    rows = rows_of(batch)
    for reference in (False, True):
        for ours, theirs in zip(
            local.logprobs(rows, batch.images, reference=reference),
            distributed.logprobs(rows, batch.images, reference=reference),
            strict=True,
        ):
            np.testing.assert_allclose(theirs, ours, atol=1e-4)
    values, last = local.values(rows, batch.images)
    found, found_last = distributed.values(rows, batch.images)
    for ours, theirs in zip(values, found, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    np.testing.assert_allclose(found_last, last, atol=1e-4)
    assert max(np.abs(v).max() for v in local.logprobs(rows, batch.images)) > 0.1


def weights_after(engine, folder):
    """Weights of the policy as its checkpoint holds them."""
    folder.mkdir()
    engine.save(folder)
    return load_file(folder / "policy" / "model.safetensors")


def test_one_update_gives_the_same_losses_and_weights(engines, batch, model_dir, tmp_path):
    local, distributed = engines
    rows = with_reference(rows_of(batch), local.logprobs(rows_of(batch), batch.images))
    ours = local.update(rows, batch.images, seed=3)
    theirs = distributed.update(rows, batch.images, seed=3)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert theirs[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    before = [v.copy() for v in local.logprobs(rows, batch.images)]
    for mine, found in zip(before, distributed.logprobs(rows, batch.images), strict=True):
        np.testing.assert_allclose(found, mine, atol=1e-3)
    assert torch.isfinite(torch.tensor(list(theirs.values()))).all()
    mine, found = (
        weights_after(local, tmp_path / "local"),
        weights_after(distributed, tmp_path / "d"),
    )
    start = load_file(model_dir / "model.safetensors")
    assert mine.keys() == found.keys()
    for name, weight in mine.items():
        # Adam takes whole steps by the sign of gradients next to nothing, as those of keys' biases.
        most = 1e-3 * weight.norm() + 0.05 * (weight - start[name]).norm()
        assert (found[name] - weight).norm() <= most, name
    moved = sum(float((mine[name] - start[name]).norm()) for name in mine)
    difference = sum(float((mine[name] - found[name]).norm()) for name in mine)
    assert difference < 0.05 * moved
