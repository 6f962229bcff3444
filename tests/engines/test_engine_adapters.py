"""The local engine with adapters: frozen base, shared weights, merged export, going on exactly."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_engine import WHOLE, rows_of, same, weights

from vagen.engines.local.engine import LocalEngine
from vagen.models import ModelError
from vagen.models.loading import load_model, value_model_from
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.episodes import training_specs
from vagen.rollout.play import play
from vagen.run.run import Run
from vagen.stages.advantage import advantage
from vagen.stages.build import load_levels
from vagen.stages.judge import judge
from vagen.stages.weights import engine_at

pytestmark = pytest.mark.slow

MODELS = ("tiny:vl", "tiny:text")
ACTOR = ("actor_rollout_ref.model.lora_rank=4",)
CRITIC = ("critic.model.lora_rank=4",)
BOTH = (*ACTOR, *CRITIC, "actor_rollout_ref.actor.optim.lr=0.01")


def adapters(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if ".lora_" in name}


def base(state: dict[str, torch.Tensor], network: str) -> dict[str, torch.Tensor]:
    """Weights that are neither adapters nor the value head."""
    return {
        name: value
        for name, value in state.items()
        if name.startswith(f"{network}.") and ".lora_" not in name and ".head." not in name
    }


def learnt(state: dict[str, torch.Tensor], network: str) -> dict[str, torch.Tensor]:
    left = base(state, network)
    return {k: v for k, v in state.items() if k.startswith(f"{network}.") and k not in left}


@pytest.mark.parametrize("model", MODELS)
def test_an_update_changes_adapters_and_value_head_alone(make_engine, batch_dirs, model):
    batch = TrajectoryBatch.load(batch_dirs[model])
    engine = make_engine(*BOTH, model=model)
    before = weights(engine)
    assert adapters(before)
    # The critic's head says 0 and B is 0: A has a gradient only after two steps, and an update is
    # two steps.
    for seed in (1, 2):
        engine.update(rows_of(batch), batch.images, seed=seed)
    after = weights(engine)
    for network in ("actor", "critic"):
        assert same(base(after, network), base(before, network))
        moved = learnt(after, network)
        still = [name for name in moved if torch.equal(moved[name], before[name])]
        assert not still, still
    trained = sum(p.numel() for p in engine.actor.model.parameters() if p.requires_grad)
    inside = sum(
        p.numel()
        for group in engine.learners["actor"].optimizer.param_groups
        for p in group["params"]
    )
    assert inside == trained < 0.1 * sum(p.numel() for p in engine.actor.model.parameters())


@pytest.mark.parametrize(
    ("overrides", "frozen", "moving"), [(ACTOR, "actor", "critic"), (CRITIC, "critic", "actor")]
)
def test_each_network_has_its_own_choice(make_engine, batch, overrides, frozen, moving):
    engine = make_engine(*overrides)
    before = weights(engine)
    engine.update(rows_of(batch), batch.images, seed=1)
    after = weights(engine)
    assert same(base(after, frozen), base(before, frozen))
    assert not same(learnt(after, frozen), learnt(before, frozen))
    assert not adapters(learnt(after, moving))
    assert not same(base(after, moving), base(before, moving))


def test_networks_with_adapters_hold_the_base_once(make_engine):
    def places(module) -> set[int]:
        return {p.data_ptr() for n, p in module.named_parameters() if ".lora_" not in n}

    engine = make_engine(*BOTH)
    actor = places(engine.actor.model)
    assert places(engine.reference.model) == actor
    assert places(engine.critic.backbone) < actor
    engine = make_engine(*ACTOR)
    assert places(engine.reference.model) == places(engine.actor.model)
    assert not places(engine.critic.backbone) & places(engine.actor.model)
    engine = make_engine(*CRITIC)
    assert not places(engine.critic.backbone) & places(engine.actor.model)


def test_the_reference_is_the_base_without_adapters(make_engine, batch):
    rows = rows_of(batch)[:4]
    plain = make_engine().logprobs(rows, batch.images)
    engine = make_engine(*BOTH)
    for _ in range(2):
        reference = engine.logprobs(rows, batch.images, reference=True)
        assert all(np.array_equal(a, b) for a, b in zip(plain, reference, strict=True))
        engine.update(rows, batch.images, seed=1)
    moved = engine.logprobs(rows, batch.images)
    assert max(np.abs(a - b).max() for a, b in zip(plain, moved, strict=True)) > 0.05


def test_the_ratio_is_one_at_the_first_mini_batch(make_engine, batch):
    engine = make_engine(WHOLE, *BOTH)
    rows = rows_of(batch)
    for row in rows:
        row.columns["old_logprobs"] = engine.logprobs([row], batch.images)[0]
    metrics = engine.update(rows, batch.images, seed=3)
    assert metrics["actor/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/ratio_max"] == pytest.approx(1, abs=1e-5)
    second = engine.update(rows, batch.images, seed=3)
    assert abs(second["actor/ratio_max"] - 1) > 1e-2


@pytest.mark.parametrize("model", MODELS)
def test_generation_uses_the_adapted_weights(make_engine, batch_dirs, warm_runs, model):
    """Rollout log-probabilities are the trainer's, and not those of the base."""
    batch = TrajectoryBatch.load(batch_dirs[model])
    engine = make_engine(*BOTH, model=model)
    engine.update(rows_of(batch), batch.images, seed=1)
    run = warm_runs[model]
    trajectories, images = play(
        run.experiment,
        training_specs(run.experiment, load_levels(run), 2),
        policy=engine.policy(slots=4),
        processor=engine.processor,
        sampling=run.experiment.actor_rollout_ref.rollout,
        split="train",
    )
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    found = engine.logprobs(rows, images)
    untouched = engine.logprobs(rows, images, reference=True)
    masks = [row.loss_mask for row in rows]
    of_rollout = [row.rollout_logprobs for row in rows]

    def largest(one: list[np.ndarray], other: list[np.ndarray]) -> float:
        return max(np.abs(a - b)[m].max() for a, b, m in zip(one, other, masks, strict=True))

    assert largest(found, of_rollout) <= 1e-4
    assert largest(untouched, of_rollout) > 0.05


@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_holds_the_merged_model(make_engine, batch_dirs, tmp_path, model):
    batch = TrajectoryBatch.load(batch_dirs[model])
    rows = rows_of(batch)
    engine = make_engine(*BOTH, model=model)
    engine.update(rows, batch.images, seed=1)
    adapted = engine.logprobs(rows, batch.images)
    values, _ = engine.values(rows, batch.images)
    engine.save(tmp_path)
    plain = LocalEngine(
        make_engine(model=model).config, tmp_path / "policy", device=torch.device("cpu")
    )
    plain.critic.load_state_dict(load_file(tmp_path / "critic.safetensors"))
    assert not adapters(weights(plain))
    for a, b in zip(plain.logprobs(rows, batch.images), adapted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)
    for a, b in zip(plain.values(rows, batch.images)[0], values, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)


def test_going_on_from_disk_is_going_on(make_engine, batch, tmp_path):
    """Merged weights would not tell the adapters to the last bit; they are stored themselves."""
    rows = rows_of(batch)[:4]
    straight, stopped, resumed = (make_engine(*BOTH) for _ in range(3))
    for engine in (straight, stopped):
        engine.update(rows, batch.images, seed=1)
    stopped.save(tmp_path)
    resumed.load(tmp_path, version="iteration-0000")
    assert same(weights(resumed), weights(straight))
    metrics = [engine.update(rows, batch.images, seed=2) for engine in (straight, resumed)]
    assert metrics[0] == metrics[1]
    assert same(weights(resumed), weights(straight))
    assert (
        len(resumed.learners["actor"].optimizer.state)
        == len(straight.learners["actor"].optimizer.state)
        > 0
    )


def test_a_run_resumes_with_its_adapters(make_started_run):
    """Another process finds the warm start below and the adapters in the checkpoint."""
    from vagen.stages.rollout import rollout
    from vagen.stages.update import update

    run = make_started_run(*BOTH)
    for stage in (rollout, judge, advantage, update):
        stage(run, 0)
    run.await_checkpoint()
    again = engine_at(Run.open(run.path), "iteration-0000")
    assert same(weights(again), weights(run.engine))
    assert adapters(weights(again))
    exported = load_model(run.checkpoint(0) / "policy")
    assert value_model_from(exported)


def test_unknown_layers_are_refused_when_the_engine_is_made(make_engine):
    with pytest.raises(ModelError, match="has no linear layer 'wq'; there are"):
        make_engine(*ACTOR, "actor_rollout_ref.model.target_modules=wq")
    with pytest.raises(ModelError, match="has no linear layer 'lm_head'"):
        make_engine(*CRITIC, 'critic.model.target_modules=["lm_head"]')


def test_adapters_of_other_layers_are_not_taken_up(make_engine, tmp_path):
    make_engine(*ACTOR, "actor_rollout_ref.model.target_modules=q_proj").save(tmp_path)
    with pytest.raises(ValueError, match="other adapters"):
        make_engine(*ACTOR).load(tmp_path, version="x")
