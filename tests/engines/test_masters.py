"""Float32 masters of bfloat16 weights, recomputed activations, recorded decode steps."""

import copy

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vagen.config.infra import LocalConfig
from vagen.engines.local.engine import LocalEngine
from vagen.engines.local.generation import LocalPolicy
from vagen.engines.local.graphs import rounded
from vagen.engines.local.masters import MasterWeights
from vagen.engines.local.packing import ImageCache
from vagen.engines.local.supervised import learn_from_experts
from vagen.models.loading import load_model
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import play
from vagen.rollout.types import TokenRow
from vagen.stages.build import load_levels

BFLOAT16 = torch.bfloat16


@pytest.fixture
def make(warm_runs, make_experiment):
    """A fresh engine with options of `infra.local` and a type."""

    def engine(*overrides: str, dtype=torch.float32, **options: bool) -> LocalEngine:
        return LocalEngine(
            make_experiment(*overrides, model="tiny:vl"),
            warm_runs["tiny:vl"].warm_start / "policy",
            device=torch.device("cpu"),
            dtype=dtype,
            options=LocalConfig(**options),
        )

    return engine


def rows_of(batch) -> list[TokenRow]:
    return [row for trajectory in batch.trajectories for row in trajectory.rows]


def test_small_steps_reach_the_weights():
    """A hundred steps of AdamW at a rate of 1e-6."""
    torch.manual_seed(0)
    exact = torch.nn.Linear(64, 64)
    start = exact.weight.detach().clone()
    networks = {"plain": copy.deepcopy(exact).to(BFLOAT16), "masters": exact.to(BFLOAT16)}
    masters = MasterWeights(networks["masters"])
    optimizers = {
        "plain": torch.optim.AdamW(networks["plain"].parameters(), 1e-6),
        "masters": torch.optim.AdamW(masters.parameters, 1e-6),
    }
    begun = masters.named["weight"].detach().clone()
    inputs = torch.randn(100, 8, 64, dtype=BFLOAT16)
    for given in inputs:
        for name, network in networks.items():
            network(given).square().mean().backward()
            optimizers[name].step()
            optimizers[name].zero_grad(set_to_none=True)
        masters.publish()
    moved = (masters.named["weight"] - begun).abs()
    assert (moved > 1e-6).float().mean() > 0.95
    assert (networks["plain"].weight != start.to(BFLOAT16)).float().mean() < 0.2
    assert torch.equal(networks["masters"].weight, masters.named["weight"].to(BFLOAT16))
    assert networks["masters"].weight.grad is None


def test_gradients_are_summed_in_float32():
    layer = torch.nn.Linear(1, 1, bias=False).to(BFLOAT16)
    masters = MasterWeights(layer)
    for value in (256.0, 1.0, 1.0):  # 257 is no bfloat16 number
        layer(torch.tensor([[value]], dtype=BFLOAT16)).backward()
    assert masters.named["weight"].grad.item() == 258.0


def test_float32_weights_are_their_own_masters(make):
    engine = make()
    assert not engine.learners["actor"].masters.copies
    own = dict(engine.actor.model.named_parameters())
    assert all(own[n] is p for n, p in engine.learners["actor"].masters.named.items())


def test_bfloat16_learns_what_float32_learns(make, batch):
    """The masters move as float32's weights do, and the value head stays float32."""
    rows, images = rows_of(batch), batch.images
    changes = []
    for dtype in (torch.float32, BFLOAT16):
        engine = make(dtype=dtype)
        learner = engine.learners["actor"]
        start = {name: value.detach().clone() for name, value in learner.masters.named.items()}
        metrics = engine.update(copy.deepcopy(rows), images, seed=5)
        assert np.isfinite(metrics["actor/grad_norm"])
        change = [(v.detach() - start[n]).flatten() for n, v in learner.masters.named.items()]
        changes.append(torch.cat(change))
    assert torch.cosine_similarity(*changes, dim=0) > 0.7


@pytest.mark.slow
def test_going_on_from_disk_in_bfloat16_is_going_on(make, batch, tmp_path):
    straight = make(dtype=BFLOAT16)
    rows, images = rows_of(batch), batch.images
    straight.update(copy.deepcopy(rows), images, seed=1)
    straight.begin_save(tmp_path)()
    resumed = make(dtype=BFLOAT16)
    resumed.load(tmp_path, version="1")
    for engine in (straight, resumed):
        engine.update(copy.deepcopy(rows), images, seed=2)
    for name in ("actor", "critic"):
        one, other = (engine.learners[name].masters.named for engine in (straight, resumed))
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_masters_of_another_network_are_refused():
    masters = MasterWeights(torch.nn.Linear(2, 2).to(BFLOAT16))
    with pytest.raises(ValueError, match="another network: bias is not in both"):
        masters.load({"weight": torch.zeros(2, 2)})


@pytest.mark.slow
def test_the_warm_start_in_bfloat16_takes_small_steps(warm_runs, batch):
    """Steps of 1e-5 move weights over which bfloat16 numbers are further apart."""
    rows = [row for row in rows_of(batch) if row.loss_mask.any()]
    run = warm_runs["tiny:vl"]
    model = load_model(run.warm_start / "policy", dtype=BFLOAT16)
    images = ImageCache(model.processor).shown_by(rows, batch.images)
    config = run.experiment.warm_start.model_copy(update={"steps": 40, "lr": 1e-5})
    before = {n: p.detach().clone() for n, p in model.model.named_parameters()}
    losses = learn_from_experts(model, lambda _: (rows, images), config)
    assert losses[-1] < losses[0]
    moved = [(p != before[n]).float().mean() for n, p in model.model.named_parameters()]
    assert torch.stack(moved).mean() > 0.1


def test_recomputed_activations_give_the_same_update(make, batch, monkeypatch):
    rows, images = rows_of(batch), batch.images
    found, calls, lines = [], [], []
    monkeypatch.setattr("vagen.engines.local.engine.SLICE", 16)
    for recompute in (False, True):
        calls.append(0)
        engine = make(gradient_checkpointing=recompute)
        layer = engine.actor.model.model.language_model.layers[0].self_attn

        def count(*_):
            calls[-1] += 1

        layer.register_forward_hook(count)
        engine.actor.model.lm_head.register_forward_hook(lambda *hook: lines.append(len(hook[2])))
        engine.update(copy.deepcopy(rows), images, seed=5)
        found.append({n: p.detach() for n, p in engine.actor.model.named_parameters()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, atol=1e-6, rtol=1e-5)
    assert calls[1] == 2 * calls[0] > 0
    assert max(lines) > 16 and max(lines[-6:]) <= 16, "logits are made a slice at a time"


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
def test_recorded_steps_answer_as_others(warm_runs, vl_model, text_model, model):
    run, language_model = warm_runs[model], vl_model if model == "tiny:vl" else text_model
    specs = training_specs(run.experiment, load_levels(run), 1)
    answers = []
    for recorded in (False, True):
        trajectories, _ = play(
            run.experiment,
            specs,
            policy=LocalPolicy(language_model, slots=5, length=32, recorded=recorded),
            processor=language_model.processor,
            sampling=run.experiment.actor_rollout_ref.rollout,
            split="train",
            concurrency=5,
        )
        answers.append([t.rows[0] for t in trajectories])
    for one, other in zip(*answers, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        np.testing.assert_allclose(one.rollout_logprobs, other.rollout_logprobs, atol=1e-4)


def test_shapes_are_rounded_up():
    assert [rounded(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
    assert rounded(3, 256) == 256


def test_the_output_layer_makes_no_tensor_of_a_list(vl_model):
    """A list as index becomes a tensor in every step: 150,000 ids took 20 ms."""

    names = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    hidden = torch.zeros(2, vl_model.text_config.hidden_size)
    with torch.inference_mode():  # generation comes first, training uses what it made
        vl_model.logits(hidden)
    with Operations():
        logits = vl_model.logits(hidden)
    assert names and not [name for name in names if "lift" in name or "index_put" in name]
    assert logits.requires_grad
    logits.logsumexp(-1).sum().backward()
    vl_model.model.zero_grad(set_to_none=True)
