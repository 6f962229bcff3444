"""The local engine on a batch that it played itself."""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

from vagen.engines.local.engine import LocalEngine
from vagen.engines.objectives import CRITIC_MASK
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import TokenRow

WHOLE = "actor_rollout_ref.actor.ppo_mini_batch_size=6"
SMALL_MICRO = "actor_rollout_ref.actor.ppo_max_token_len=320"


def rows_of(batch: TrajectoryBatch) -> list[TokenRow]:
    return [row for trajectory in batch.trajectories for row in trajectory.rows]


def weights(engine: LocalEngine) -> dict[str, torch.Tensor]:
    found = {f"actor.{k}": v.clone() for k, v in engine.actor.model.state_dict().items()}
    if engine.critic is not None:
        found |= {f"critic.{k}": v.clone() for k, v in engine.critic.state_dict().items()}
    return found


def moments(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    names = {parameter: name for name, parameter in module.named_parameters()}
    return {names[p]: state["exp_avg"].clone() for p, state in optimizer.state.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def part(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if key.startswith(prefix)}


@pytest.mark.parametrize("model", ["tiny:vl", "tiny:text"])
@pytest.mark.parametrize("overrides", [(), (SMALL_MICRO,)])
def test_logprobs_are_the_rollouts(make_engine, batch_dirs, model, overrides):
    batch = TrajectoryBatch.load(batch_dirs[model])
    rows = rows_of(batch)
    engine = make_engine(*overrides, model=model)
    for row, found in zip(rows, engine.logprobs(rows, batch.images), strict=True):
        assert found.dtype == np.float32 and found.shape == row.input_ids.shape
        difference = np.abs(found - row.rollout_logprobs)[row.loss_mask]
        assert difference.max() <= 1e-4
        assert not found[~row.loss_mask].any()
        assert (found[row.loss_mask] < 0).all()


def test_logprobs_are_at_the_rollouts_temperature(make_engine, batch):
    rows = rows_of(batch)
    warm = make_engine().logprobs(rows, batch.images)
    cold = make_engine("actor_rollout_ref.rollout.temperature=0.5").logprobs(rows, batch.images)
    mask = [row.loss_mask for row in rows]
    assert max(np.abs(a - b)[m].max() for a, b, m in zip(warm, cold, mask, strict=True)) > 0.1


def test_without_the_loss_mask_every_token_it_could_sample_counts(make_engine, batch):
    engine = make_engine("rollout_manager.use_loss_mask=false")
    rows = rows_of(batch)
    for row, found in zip(rows, engine.logprobs(rows, batch.images), strict=True):
        banned = np.isin(row.input_ids, engine.processor.banned_ids)
        assert not found[banned].any() and found[0] == 0
        assert (found[1:][~banned[1:]] < 0).all() and np.isfinite(found).all()
        np.testing.assert_allclose(
            found[row.loss_mask], row.rollout_logprobs[row.loss_mask], atol=1e-4
        )
    rows[0].loss_mask[:] = False
    assert not engine.action_mask(rows[0]).any(), "a row without answers is learnt from nowhere"


def test_the_reference_stays_where_it_began(make_engine, batch):
    engine = make_engine()
    rows = rows_of(batch)
    before = engine.logprobs(rows, batch.images, reference=True)
    for a, row in zip(before, rows, strict=True):
        np.testing.assert_allclose(a, row.columns["old_logprobs"], atol=1e-4)
    engine.update(rows, batch.images, seed=1)
    after = engine.logprobs(rows, batch.images, reference=True)
    moved = engine.logprobs(rows, batch.images)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(before, moved, strict=True))


def test_values_come_before_their_token(make_engine, batch):
    """Entry t is what the critic says after token t - 1, the last one after the whole row."""
    engine = make_engine()
    torch.nn.init.normal_(engine.critic.head.weight, generator=torch.Generator().manual_seed(1))
    rows = rows_of(batch)
    values, last = engine.values(rows, batch.images)
    row = rows[0]
    cut = len(row.input_ids) - 5
    shorter = copy.deepcopy(row)
    for name in ("input_ids", "loss_mask", "turn_index", "rollout_logprobs"):
        setattr(shorter, name, getattr(row, name)[:cut])
    short_values, short_last = engine.values([shorter], batch.images)
    assert values[0].shape == row.input_ids.shape and values[0][0] == 0
    np.testing.assert_allclose(short_values[0], values[0][:cut], atol=1e-4)
    assert short_last[0] == pytest.approx(values[0][cut], abs=1e-4)
    assert last.shape == (len(rows),) and len(set(last.tolist())) == len(rows)


def test_the_ratio_is_one_at_the_first_mini_batch(make_engine, batch):
    engine = make_engine(WHOLE, SMALL_MICRO)
    metrics = engine.update(rows_of(batch), batch.images, seed=3)
    assert metrics["actor/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == 0
    second = engine.update(rows_of(batch), batch.images, seed=3)
    assert abs(second["actor/ratio_max"] - 1) > 1e-2, "the weights moved"


def test_the_losses_are_means_over_all_sampled_tokens_of_the_mini_batch(make_engine, batch):
    """At ratio 1 the policy's loss is minus the mean advantage; the critic has not moved yet."""
    rows = rows_of(batch)
    for row in rows:
        row.columns["advantages"] += np.float32(1)
    engine = make_engine(WHOLE, SMALL_MICRO, "actor_rollout_ref.actor.entropy_coeff=0")
    metrics = engine.update(rows, batch.images, seed=3)
    masks = [row.loss_mask for row in rows]

    def mean(column: str, power: int = 1) -> float:
        parts = [row.columns[column][mask] for row, mask in zip(rows, masks, strict=True)]
        return float(np.mean(np.concatenate(parts).astype(np.float64) ** power))

    assert metrics["actor/loss"] == pytest.approx(-mean("advantages"), abs=1e-5)
    assert metrics["critic/loss"] == pytest.approx(0.5 * mean("returns", 2), rel=1e-5)


@pytest.mark.parametrize(
    "mode",
    [
        ("actor_rollout_ref.actor.loss_agg_mode=token-mean",),
        pytest.param(
            ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",), marks=pytest.mark.slow
        ),
        pytest.param(
            ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",), marks=pytest.mark.slow
        ),
        (
            "actor_rollout_ref.actor.use_kl_loss=true",
            "actor_rollout_ref.actor.kl_loss_coef=0.5",
            "actor_rollout_ref.actor.entropy_coeff=0.1",
        ),
        (
            "actor_rollout_ref.actor.tis_imp_ratio_cap=1.1",
            "actor_rollout_ref.actor.clip_ratio_c=3",
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        ),
        pytest.param(("rollout_manager.use_loss_mask=false",), marks=pytest.mark.slow),
    ],
)
def test_micro_batches_add_up_to_the_mini_batch(make_engine, batch, mode):
    """The gradient (a tenth of it is Adam's first moment) and the weights after the step."""
    rows = rows_of(batch)
    rng = np.random.Generator(np.random.Philox(4))
    for row in rows:  # as if the weights had moved since
        row.columns["ref_logprobs"] += rng.normal(0, 0.3, len(row.input_ids)).astype(np.float32)
        row.columns["values"] += np.float32(0.3)
        row.rollout_logprobs += rng.normal(0, 0.3, len(row.input_ids)).astype(np.float32)
    engines = [make_engine(WHOLE, *mode), make_engine(WHOLE, SMALL_MICRO, *mode)]
    metrics = [engine.update(rows, batch.images, seed=5) for engine in engines]
    for name, value in metrics[0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    modules = [
        [(e.learners["actor"].optimizer, e.actor.model), (e.learners["critic"].optimizer, e.critic)]
        for e in engines
    ]
    for one, other in zip(*modules, strict=True):
        gradients, others = moments(*one), moments(*other)
        largest = max(float(g.abs().max()) for g in gradients.values())
        assert largest > 1e-4
        state = dict(other[1].named_parameters())
        for name, weight in one[1].named_parameters():
            gradient = gradients[name]
            torch.testing.assert_close(others[name], gradient, atol=1e-5 * largest, rtol=1e-3)
            clear = gradient.abs() > 1e-2 * largest
            torch.testing.assert_close(state[name][clear], weight[clear], atol=1e-5, rtol=0)


def test_an_update_goes_where_the_advantages_point(make_engine, batch):
    rows = rows_of(batch)
    engine = make_engine("actor_rollout_ref.actor.entropy_coeff=0", "critic.ppo_epochs=4")
    before_errors = _value_error(engine, rows, batch)
    engine.update(rows, batch.images, seed=1)
    after = engine.logprobs(rows, batch.images)
    gain = sum(
        float(
            ((new - row.columns["old_logprobs"]) * row.columns["advantages"])[row.loss_mask].sum()
        )
        for new, row in zip(after, rows, strict=True)
    )
    assert gain > 0
    assert _value_error(engine, rows, batch) < before_errors


def _value_error(engine: LocalEngine, rows: list[TokenRow], batch: TrajectoryBatch) -> float:
    values, _ = engine.values(rows, batch.images)
    errors = [
        (value - row.columns["returns"])[row.columns[CRITIC_MASK] != 0]
        for value, row in zip(values, rows, strict=True)
    ]
    return float(np.mean(np.concatenate(errors) ** 2))


def test_what_masked_tokens_carry_changes_nothing(make_engine, batch):
    rows = rows_of(batch)[:4]
    plain, marked = make_engine(), make_engine()
    plain.update(rows, batch.images, seed=1)
    for row in rows:
        for column in row.columns.values():
            if column is not row.columns[CRITIC_MASK]:
                column[~row.loss_mask] = 1e3
    marked.update(rows, batch.images, seed=1)
    assert same(weights(plain), weights(marked))


def test_the_same_seed_gives_the_same_update(make_engine, batch):
    rows = rows_of(batch)
    engines = [make_engine() for _ in range(3)]
    for engine, seed in zip(engines, (1, 1, 2), strict=True):
        engine.update(rows, batch.images, seed=seed)
    assert same(weights(engines[0]), weights(engines[1]))
    assert not same(weights(engines[0]), weights(engines[2])), "another order of mini batches"


def test_a_step_with_an_exploding_gradient_is_skipped_and_counted(make_engine, batch):
    engine = make_engine(
        "actor_rollout_ref.actor.grad_norm_threshold=1e-9", "critic.grad_norm_threshold=1e-9"
    )
    before = weights(engine)
    metrics = engine.update(rows_of(batch), batch.images, seed=1)
    assert metrics["actor/skipped_steps"] == 2 == metrics["critic/skipped_steps"]
    assert same(part(weights(engine), "actor"), part(before, "actor"))
    assert (
        not engine.learners["actor"].optimizer.state
        and not engine.learners["critic"].optimizer.state
    )
    assert engine.updates == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(make_engine, batch, bad):
    """Only the mini batch that holds it; the other one steps."""
    rows = rows_of(batch)
    rows[2].columns["advantages"][np.flatnonzero(rows[2].loss_mask)[0]] = bad
    rows[2].columns["returns"][np.flatnonzero(rows[2].loss_mask)[0]] = bad
    engine = make_engine("critic.center_values=true")
    before = weights(engine)
    metrics = engine.update(rows, batch.images, seed=1)
    assert metrics["actor/skipped_steps"] == 1 == metrics["critic/skipped_steps"]
    after = weights(engine)
    assert all(torch.isfinite(value).all() for value in after.values())
    assert not same(part(after, "actor"), part(before, "actor"))
    steps = {int(state["step"]) for state in engine.learners["actor"].optimizer.state.values()}
    assert steps == {1}
    assert np.isfinite(metrics["actor/grad_norm"])


def test_gradients_are_clipped(make_engine, batch):
    """Adam's first step does not depend on the scale, but its first moment does."""
    engine = make_engine(WHOLE, "actor_rollout_ref.actor.grad_clip=0.001")
    metrics = engine.update(rows_of(batch), batch.images, seed=1)
    clipped = torch.cat(
        [
            m.flatten()
            for m in moments(engine.learners["actor"].optimizer, engine.actor.model).values()
        ]
    )
    assert float(clipped.norm()) == pytest.approx(0.1 * 0.001, rel=1e-2)
    assert metrics["actor/grad_norm"] > 0.01, "the norm is reported as it was"


def test_in_the_critics_warm_up_the_policy_stays(make_engine, batch):
    engine = make_engine()
    before = weights(engine)
    metrics = engine.update(rows_of(batch), batch.images, seed=1, actor=False)
    after = weights(engine)
    assert same(part(after, "actor"), part(before, "actor"))
    assert not same(part(after, "critic"), part(before, "critic"))
    assert not any(name.startswith("actor/") for name in metrics)


def test_progress_counts_every_row_of_every_pass(make_engine, batch):
    seen: list[int] = []
    engine = make_engine("actor_rollout_ref.actor.ppo_epochs=2", SMALL_MICRO)
    rows = rows_of(batch)
    engine.update(rows, batch.images, seed=1, on_progress=seen.append)
    assert sum(seen) == len(rows) * (2 + 1)


def test_the_learning_rate_warms_up_over_updates(make_engine, batch):
    engine = make_engine("actor_rollout_ref.actor.optim.lr_warmup_steps=2")
    rows = rows_of(batch)[:1]
    rates = [engine.update(rows, batch.images, seed=i)["actor/lr"] for i in range(3)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3])


def test_the_learning_rate_falls_along_a_cosine_after_its_warm_up(make_engine, batch):
    optim = "actor_rollout_ref.actor.optim"
    engine = make_engine(
        f"{optim}.lr_warmup_steps=1",
        f"{optim}.lr_scheduler_type=cosine",
        f"{optim}.min_lr_ratio=0.1",
        "trainer.total_training_steps=3",
    )
    rows = rows_of(batch)[:1]
    updates = [engine.update(rows, batch.images, seed=i) for i in range(4)]
    rates = [metrics["actor/lr"] for metrics in updates]
    assert rates == pytest.approx([1e-3, 1e-3, 0.55e-3, 0.1e-3])
    assert updates[2]["critic/lr"] == updates[0]["critic/lr"], "the critic's is its own"


def test_without_a_critic_there_is_none(make_engine, batch, tmp_path):
    engine = make_engine(
        "preset=grpo_mask",
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=3",
        "rollout_manager.n_trajectory=2",
    )
    assert engine.critic is None
    metrics = engine.update(rows_of(batch)[:1], batch.images, seed=1)
    assert not any(name.startswith("critic/") for name in metrics)
    engine.save(tmp_path)
    assert not list(tmp_path.glob("critic*"))
    engine.load(tmp_path, version="again")


def test_without_any_kl_there_is_no_reference(make_engine):
    assert make_engine("algorithm.kl_ctrl.kl_coef=0").reference is None
    assert make_engine("algorithm.kl_ctrl.kl_coef=0.1").reference is not None


ADAPTIVE = (
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.kl_coef=0.5",
    "algorithm.kl_ctrl.target_kl=0.01",
    "algorithm.kl_ctrl.horizon=20",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=3",
    "actor_rollout_ref.actor.entropy_ctrl.target=9",
)


@pytest.mark.slow
def test_going_on_from_disk_is_going_on(make_engine, batch, tmp_path):
    """Two updates in a row are an update, a save, a load into a new engine and an update."""
    rows = rows_of(batch)[:4]
    for row in rows:
        row.columns["ref_logprobs"] = row.columns["old_logprobs"] - np.float32(0.2)
    straight, stopped, resumed = (make_engine(*ADAPTIVE) for _ in range(3))
    for engine in (straight, stopped):
        engine.update(rows, batch.images, seed=1)
    stopped.save(tmp_path)
    resumed.load(tmp_path, version="iteration-0000")
    assert resumed.version == "iteration-0000" and resumed.updates == 1
    assert resumed.kl_coef == straight.kl_coef > 0.5
    assert resumed.entropy_coeff == straight.entropy_coeff == 0.001 + 0.005
    assert same(weights(resumed), weights(straight))
    metrics = [engine.update(rows, batch.images, seed=2) for engine in (straight, resumed)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["actor/entropy_coeff"] == 0.001 + 0.005
    assert same(weights(resumed), weights(straight))
    assert resumed.kl_coef == straight.kl_coef
    for of in (_actor_state, _critic_state):
        assert same(of(straight), of(resumed))


def _actor_state(engine: LocalEngine) -> dict[str, torch.Tensor]:
    return moments(engine.learners["actor"].optimizer, engine.actor.model)


def _critic_state(engine: LocalEngine) -> dict[str, torch.Tensor]:
    return moments(engine.learners["critic"].optimizer, engine.critic)


@pytest.mark.slow
def test_the_optimizers_memory_matters(make_engine, batch, tmp_path):
    """A new optimizer at the same weights takes another step."""
    rows = rows_of(batch)[:4]
    straight, forgetful = make_engine(), make_engine()
    straight.update(rows, batch.images, seed=1)
    straight.save(tmp_path)
    forgetful.load(tmp_path, version="x")
    forgetful.learners["actor"].optimizer.state.clear()
    straight.update(rows, batch.images, seed=2)
    forgetful.update(rows, batch.images, seed=2)
    assert not same(part(weights(straight), "actor"), part(weights(forgetful), "actor"))


@pytest.mark.slow
def test_loading_an_early_checkpoint_forgets_later_moments(make_engine, batch, tmp_path):
    """After a critic warm-up the actor's optimizer has no state; loading it leaves none."""
    rows = rows_of(batch)[:4]
    engine, fresh = make_engine(), make_engine()
    engine.update(rows, batch.images, seed=1, actor=False)
    engine.save(tmp_path)
    engine.update(rows, batch.images, seed=2)
    assert engine.learners["actor"].optimizer.state
    for one in (engine, fresh):
        one.load(tmp_path, version="iteration-0000")
        assert not one.learners["actor"].optimizer.state and one.learners["critic"].optimizer.state
        one.update(rows, batch.images, seed=3)
    assert same(weights(engine), weights(fresh))


def test_a_checkpoint_is_plain_data(make_engine, batch, tmp_path):
    engine = make_engine()
    engine.update(rows_of(batch)[:1], batch.images, seed=1)
    engine.save(tmp_path)
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds <= {".json", ".safetensors", ".jinja"}
    assert json.loads((tmp_path / "engine.json").read_text())["updates"] == 1


def test_a_load_that_fails_leaves_no_engine_under_an_old_name(make_engine, tmp_path):
    engine: Any = make_engine()
    engine.save(tmp_path)
    (tmp_path / "critic.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        engine.load(tmp_path, version="iteration-0003")
    assert engine.version not in ("initial", "iteration-0003")


def test_centred_values_still_learn(make_engine, batch):
    """Moving all values at once is no reason for the value clip to hold them back."""
    rows = rows_of(batch)
    for row in rows:
        row.columns["returns"] += np.float32(10)
    engine = make_engine("critic.center_values=true", "critic.cliprange_value=0.5")
    before = engine.critic.head.weight.detach().clone()
    metrics = engine.update(rows, batch.images, seed=1)
    assert float(engine.critic.head.bias.detach()) > 8
    assert not torch.equal(engine.critic.head.weight, before)
    assert metrics["critic/vf_clipfrac"] < 0.9


@pytest.mark.slow
def test_a_critic_that_warms_up_makes_more_passes_and_is_not_clipped(make_engine, batch):
    """Returns far from its first values: with the clip it hardly moves."""
    rows = rows_of(batch)
    for row in rows:
        row.columns["returns"] += np.float32(10)
    errors = {}
    for actor in (True, False):
        engine = make_engine(
            "trainer.critic_warmup=1", "critic.warmup_epochs=3", "critic.cliprange_value=0.01"
        )
        passes = []
        metrics = engine.update(rows, batch.images, seed=1, actor=actor, on_progress=passes.append)
        assert sum(passes) == (2 if actor else 3) * len(rows), "one of the actor, one of the critic"
        assert ("actor/loss" in metrics) == actor
        assert (metrics["critic/vf_clipfrac"] > 0) == actor
        errors[actor] = _value_error(engine, rows, batch)
    assert errors[False] < errors[True]


TIS = "actor_rollout_ref.actor.tis_imp_ratio_cap"
NO_BONUS = "actor_rollout_ref.actor.entropy_coeff=0"


def test_a_token_weighs_what_the_trainer_gives_it_over_the_rollout(make_engine, batch):
    """At ratio 1 the policy's loss is minus the mean of weight times advantage."""
    rows = rows_of(batch)
    rng = np.random.Generator(np.random.Philox(6))
    weights = []
    for row in rows:
        row.columns["advantages"] += np.float32(1)
        noise = rng.normal(0, 0.7, len(row.input_ids)).astype(np.float32)
        row.rollout_logprobs = row.columns["old_logprobs"] - noise
        weights.append(np.minimum(np.exp(noise[row.loss_mask].astype(np.float64)), 1.5))
    engine = make_engine(WHOLE, SMALL_MICRO, NO_BONUS, f"{TIS}=1.5")
    metrics = engine.update(rows, batch.images, seed=3)
    gains = [row.columns["advantages"][row.loss_mask] for row in rows]
    weight, gain = np.concatenate(weights), np.concatenate(gains)
    assert metrics["actor/loss"] == pytest.approx(-float((weight * gain).mean()), abs=1e-5)
    assert metrics["actor/tis_mean"] == pytest.approx(weight.mean(), rel=1e-5)
    assert metrics["actor/tis_capped"] == pytest.approx((weight == 1.5).mean())
    assert 0.1 < metrics["actor/tis_capped"] < 0.5


def test_where_rollout_and_trainer_agree_weights_change_nothing(make_engine, batch):
    rows = rows_of(batch)[:4]
    for row in rows:
        row.rollout_logprobs = row.columns["old_logprobs"].copy()
    plain, weighted = make_engine(), make_engine(f"{TIS}=2")
    before = plain.update(rows, batch.images, seed=1)
    after = weighted.update(rows, batch.images, seed=1)
    assert after["actor/tis_mean"] == 1.0 and after["actor/tis_capped"] == 0.0
    assert "actor/tis_mean" not in before
    assert same(weights(plain), weights(weighted))


def test_without_the_loss_mask_the_policy_loss_reads_observations(make_engine, batch):
    """Every token the model could sample counts, each with the advantage the estimator gave it.

    Only sampled tokens have a rollout log-probability: the others weigh 1.
    """
    engine = make_engine(
        WHOLE, SMALL_MICRO, NO_BONUS, "rollout_manager.use_loss_mask=false", f"{TIS}=1.5"
    )
    rows = rows_of(batch)
    rng = np.random.Generator(np.random.Philox(6))
    gains, weights = [], []
    for row, old in zip(rows, engine.logprobs(rows, batch.images), strict=True):
        row.columns["old_logprobs"] = old
        noise = np.where(row.loss_mask, rng.normal(0, 0.7, len(old)), 0).astype(np.float32)
        row.rollout_logprobs = np.where(row.loss_mask, old - noise, 0).astype(np.float32)
        row.columns["advantages"] = rng.normal(1, 1, len(old)).astype(np.float32)
        read = engine.action_mask(row)
        assert read.sum() > row.loss_mask.sum() + 5
        gains.append(row.columns["advantages"][read])
        weights.append(np.minimum(np.exp(noise[read]), 1.5))
    metrics = engine.update(rows, batch.images, seed=3)
    expected = -float((np.concatenate(weights) * np.concatenate(gains)).mean())
    assert metrics["actor/loss"] == pytest.approx(expected, abs=1e-4)
    assert metrics["actor/ratio_max"] == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_a_controlled_bonus_is_one_of_the_weight_that_it_has_come_to(make_engine, batch, tmp_path):
    """None in the first update, that of the next step in the second."""
    rows = rows_of(batch)[:4]
    control = "actor_rollout_ref.actor.entropy_ctrl"
    held = make_engine(NO_BONUS, f"{control}.target=9", f"{control}.step=0.05")
    free, fixed = make_engine(NO_BONUS), make_engine("actor_rollout_ref.actor.entropy_coeff=0.05")
    for engine in (held, free):
        engine.update(rows, batch.images, seed=1)
    assert same(weights(held), weights(free))
    free.save(tmp_path)
    fixed.load(tmp_path, version="iteration-0000")
    found = [engine.update(rows, batch.images, seed=2) for engine in (held, fixed, free)]
    assert found[0].pop("actor/entropy_coeff") == 0.05
    assert found[0] == found[1] and same(weights(held), weights(fixed))
    assert not same(weights(held), weights(free))
    held.update(rows, batch.images, seed=3, actor=False)
    assert held.entropy_coeff == 0.1, "the critic's warm-up says nothing of entropy"


def test_where_no_advantage_differs_from_zero_the_policy_stays(make_engine, batch):
    """The entropy bonus alone is no reason to move, except where its weight follows the entropy."""
    rows = rows_of(batch)
    for row in rows:
        row.columns["advantages"][:] = 0.0
    controlled = "actor_rollout_ref.actor.entropy_ctrl.target=5"
    for overrides, stays in (((), True), ((controlled,), False)):
        engine = make_engine("actor_rollout_ref.actor.entropy_coeff=0.05", *overrides)
        before = {k: v.clone() for k, v in engine.actor.model.state_dict().items()}
        metrics = engine.update(rows, batch.images, seed=1)
        assert same(before, engine.actor.model.state_dict()) is stays
        assert metrics["actor/entropy"] > 0
    engine = make_engine("actor_rollout_ref.actor.entropy_coeff=0.05")
    rows[0].columns["advantages"][:] = 1.0
    engine.update(rows, batch.images, seed=1)
    assert not same(before, engine.actor.model.state_dict())


def test_an_update_without_rows_counts_and_changes_nothing_else(make_engine, batch):
    engine = make_engine(*ADAPTIVE)
    before, coefficients = weights(engine), (engine.kl_coef, engine.entropy_coeff)
    assert engine.update([], batch.images, seed=1) == {}
    assert engine.updates == 1
    assert (engine.kl_coef, engine.entropy_coeff) == coefficients
    assert same(weights(engine), before)
    metrics = engine.update(rows_of(batch), batch.images, seed=2)
    assert metrics["actor/lr"] == pytest.approx(1e-3 * 2 / 3), "the warm-up goes on"
