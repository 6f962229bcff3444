"""Policy, value and entropy losses against plain loops, and how micro batches add up."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.learning import (
    COVARIANCE_MODES,
    LossMode,
    aggregate,
    combine_metrics,
    covarying_tokens,
    entropy_from_logits,
    loss_denominator,
    policy_loss,
    value_loss,
)
from vagen.learning.losses import covariances

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
few = settings(max_examples=60, deadline=None)
numbers = st.floats(-3, 3, allow_nan=False, width=32)


@st.composite
def padded(draw, *, channels: int = 3):
    """[B, T] float64 tensors and a mask; rows without a single counted token occur."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    n = rows * width
    tensors = [
        torch.tensor(draw(st.lists(numbers, min_size=n, max_size=n))).double().view(rows, width)
        for _ in range(channels)
    ]
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n))).view(rows, width)
    return [*tensors, mask]


def average(per_token: torch.Tensor, mask: torch.Tensor, mode: str) -> float:
    rows = [
        [float(x) for x, m in zip(r, keep, strict=True) if m]
        for r, keep in zip(per_token, mask, strict=True)
    ]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == "token-mean":
        return math.fsum(map(math.fsum, rows)) / sum(map(len, rows))
    if mode == "seq-mean-token-sum":
        return math.fsum(map(math.fsum, rows)) / len(rows)
    return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)


def ppo_token(new, old, advantage, low, high, c):
    ratio = math.exp(new - old)
    clipped = min(max(ratio, 1 - low), 1 + high)
    objective = min(ratio * advantage, clipped * advantage)
    if c is not None and advantage < 0:
        objective = max(objective, c * advantage)
    return -objective


@few
@given(
    batch=padded(),
    mode=st.sampled_from(MODES),
    low=st.sampled_from([0.1, 0.2]),
    high=st.sampled_from([0.2, 0.28]),
    c=st.sampled_from([None, 1.5, 3.0]),
)
def test_policy_loss_equals_the_formula(batch, mode, low, high, c):
    new, old, advantages, mask = batch
    loss, metrics = policy_loss(
        new,
        old,
        advantages,
        mask,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=c,
        loss_agg_mode=mode,
    )
    expected = torch.zeros_like(new)
    for b, t in mask.nonzero().tolist():
        expected[b, t] = ppo_token(
            float(new[b, t]), float(old[b, t]), float(advantages[b, t]), low, high, c
        )
    assert float(loss) == pytest.approx(average(expected, mask, mode), abs=1e-9)
    assert float(metrics["ppo_kl"]) == pytest.approx(average(old - new, mask, "token-mean"))
    ratio = (new - old).exp()
    assert float(metrics["ratio_mean"]) == pytest.approx(average(ratio, mask, "token-mean"))
    if mask.any():
        assert float(metrics["ratio_max"]) == pytest.approx(float(ratio[mask].max()))
    held_back = (advantages > 0) & (ratio > 1 + high) | (advantages < 0) & (ratio < 1 - low)
    assert float(metrics["pg_clipfrac"]) == pytest.approx(
        average(held_back.double(), mask, "token-mean")
    )


@few
@given(
    batch=padded(),
    mode=st.sampled_from(MODES),
    loss_mode=st.sampled_from(["vanilla", "gspo", "cispo", "clip_cov", "kl_cov"]),
    weighted=st.booleans(),
)
def test_micro_batches_add_up_to_the_mini_batch(batch, mode, loss_mode, weighted):
    """Loss, gradient and metrics, whether padded at once or packed row by row."""
    new, old, advantages, mask = batch
    weights = torch.linspace(0.1, 2.0, mask.numel()).view(mask.shape) if weighted else None
    chosen = advantages > 0.5 if loss_mode in COVARIANCE_MODES else None
    whole_input = new.clone().requires_grad_()
    whole, metrics = policy_loss(
        whole_input,
        old,
        advantages,
        mask,
        weights=weights,
        loss_mode=loss_mode,
        chosen=chosen,
        loss_agg_mode=mode,
    )
    whole.backward()

    denominator = loss_denominator(mask, mode)
    packed = new.clone().requires_grad_()
    total, parts = 0.0, []
    for rows in (slice(0, 1), slice(1, None)):
        shape = mask[rows].shape
        ids = torch.arange(100, 100 + shape[0])[:, None].expand(shape).flatten()
        part, part_metrics = policy_loss(
            packed[rows].flatten(),
            old[rows].flatten(),
            advantages[rows].flatten(),
            mask[rows].flatten(),
            loss_agg_mode=mode,
            denominator=denominator,
            row_ids=ids,
            loss_mode=loss_mode,
            chosen=None if chosen is None else chosen[rows].flatten(),
            weights=None if weights is None else weights[rows].flatten(),
            unit_ids=ids,
        )
        part.backward()
        total += float(part.detach())
        parts.append(part_metrics)
    assert total == pytest.approx(float(whole.detach()), abs=1e-9)
    torch.testing.assert_close(packed.grad, whole_input.grad, rtol=1e-9, atol=1e-12)
    if mask.any():
        combined = combine_metrics(parts)
        assert combined.keys() == metrics.keys()
        for name, value in combined.items():
            assert value == pytest.approx(float(metrics[name]), abs=1e-9)
    else:
        assert combine_metrics(parts) == {}


@few
@given(batch=padded())
def test_at_the_first_step_the_gradient_is_the_policy_gradient(batch):
    new, _, advantages, mask = batch
    logprobs = new.clone().requires_grad_()
    loss, metrics = policy_loss(logprobs, new, advantages, mask, clip_ratio_c=3.0)
    loss.backward()
    expected = torch.where(mask, -advantages / mask.sum().clamp(min=1), 0.0)
    torch.testing.assert_close(logprobs.grad, expected, rtol=1e-9, atol=1e-12)
    assert float(metrics["pg_clipfrac"]) == float(metrics["pg_clipfrac_lower"]) == 0.0
    if mask.any():
        assert float(metrics["ratio_mean"]) == float(metrics["ratio_max"]) == 1.0


def gradient_of_unit(new, old, advantages, places, low, high, product):
    """GSPO-token by hand: [loss, d loss / d logprob] of each place of one unit."""
    length = 1 if product else len(places)
    ratio = math.exp(math.fsum(float(new[p] - old[p]) for p in places) / length)
    found = {}
    for p in places:
        a = float(advantages[p])
        clipped = min(max(ratio, 1 - low), 1 + high)
        free = ratio * a <= clipped * a
        found[p] = (-(ratio if free else clipped) * a, -ratio * a if free else 0.0)
    return found


@few
@given(batch=padded(), turns=st.lists(st.integers(0, 2), min_size=20, max_size=20))
def test_all_tokens_of_a_row_or_turn_are_clipped_alike(batch, turns):
    new, old, advantages, mask = batch
    turn = torch.tensor(turns)[: mask.numel()].view(mask.shape)
    rows = torch.arange(len(mask))[:, None].expand(mask.shape)
    cases: list[tuple[LossMode, torch.Tensor | None]]
    cases = [("gspo", None), ("gspo_turn", 10 * rows + turn), ("ppo_turn", 10 * rows + turn)]
    for mode, unit_ids in cases:
        logprobs = new.clone().requires_grad_()
        loss, _ = policy_loss(
            logprobs,
            old,
            advantages,
            mask,
            loss_mode=mode,
            unit_ids=unit_ids,
            clip_ratio_low=0.1,
            clip_ratio_high=0.3,
        )
        loss.backward()
        units: dict[int, list] = {}
        for b, t in mask.nonzero().tolist():
            unit = b if mode == "gspo" else 10 * b + int(turn[b, t])
            units.setdefault(unit, []).append((b, t))
        losses, gradient = torch.zeros_like(new), torch.zeros_like(new)
        for places in units.values():
            product = mode == "ppo_turn"
            by_hand = gradient_of_unit(new, old, advantages, places, 0.1, 0.3, product)
            for place, (value, slope) in by_hand.items():
                losses[place] = value
                gradient[place] = slope / int(mask.sum())
        assert float(loss.detach()) == pytest.approx(average(losses, mask, "token-mean"), abs=1e-9)
        torch.testing.assert_close(logprobs.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("mode", "exponent"), [("gspo", 0.05), ("ppo_turn", 0.1)])
def test_a_unit_s_ratio_by_hand(mode, exponent):
    """Ratios e^.2 and e^-.1 have the geometric mean e^.05 and the product e^.1, both above 1.04."""
    new, old = torch.tensor([[0.2, -0.1]]).double(), torch.zeros(1, 2).double()
    advantages, mask = torch.ones(1, 2).double(), torch.ones(1, 2)
    loss, metrics = policy_loss(
        new, old, advantages, mask, loss_mode=mode, clip_ratio_high=0.04, clip_ratio_low=0.03
    )
    assert float(loss) == pytest.approx(-1.04)
    assert float(metrics["pg_clipfrac"]) == 1.0
    assert float(metrics["ratio_max"]) == pytest.approx(math.exp(exponent))
    assert float(metrics["ppo_kl"]) == pytest.approx(-0.05)


@pytest.mark.parametrize("mode", get_args(LossMode))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_token_that_was_impossible_before_leaves_loss_and_gradient_finite(mode, sign):
    new = torch.tensor([[-0.2, -0.1, -0.3]], requires_grad=True)
    old = torch.tensor([[-0.2, -torch.inf, -0.4]])
    units, every = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3)
    chosen = torch.tensor([[0, 1, 0]]) if mode in COVARIANCE_MODES else None
    loss, metrics = policy_loss(
        new, old, sign * every, every, loss_mode=mode, unit_ids=units, chosen=chosen
    )
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(new.grad).all()
    assert all(math.isfinite(float(metric)) for metric in metrics.values())


@few
@given(batch=padded())
def test_cispo_weighs_the_gradient_of_every_token(batch):
    new, old, advantages, mask = batch
    logprobs = new.clone().requires_grad_()
    loss, metrics = policy_loss(logprobs, old, advantages, mask, loss_mode="cispo")
    loss.backward()
    ratio = (new - old).exp()
    weight = ratio.clamp(0.8, 1.2)
    losses = -weight * advantages * new
    assert float(loss.detach()) == pytest.approx(average(losses, mask, "token-mean"), abs=1e-9)
    expected = torch.where(mask, -weight * advantages / mask.sum().clamp(min=1), 0.0)
    torch.testing.assert_close(logprobs.grad, expected, rtol=1e-9, atol=1e-12)
    cut = ((ratio < 0.8) | (ratio > 1.2)).double()
    assert float(metrics["pg_clipfrac"]) == pytest.approx(average(cut, mask, "token-mean"))


def test_the_tokens_that_covary_most_are_chosen_by_hand():
    """Means -2 and 0, so that the products are -2, 0, 0, 3, 5 and -6."""
    logprobs = np.array([-1.0, -2.0, -2.0, -1.0, -3.0, -3.0])
    advantages = np.array([-2.0, 1.0, 1.0, 3.0, -5.0, 6.0]) - 2.0 / 3
    found = covariances(logprobs, advantages)
    np.testing.assert_allclose(found, [-8 / 3, 0, 0, 7 / 3, 17 / 3, -16 / 3])

    def chosen(mode, ratio, seed=0, **bounds):
        draws = np.random.default_rng(seed)
        places = covarying_tokens(
            logprobs, advantages, draws, loss_mode=mode, ratio=ratio, **bounds
        )
        return np.flatnonzero(places).tolist()

    assert chosen("kl_cov", 0.34) == [3, 4] and chosen("kl_cov", 0.01) == [4]
    assert chosen("clip_cov", 0.5) == [3], "not more than there are, and none above `high`"
    assert chosen("clip_cov", 0.01, low=0.5, high=9.0) in ([3], [4])
    drawn = {tuple(chosen("clip_cov", 0.2, seed, low=0.5, high=9.0)) for seed in range(20)}
    assert drawn == {(3,), (4,)}, "any of them"
    assert chosen("clip_cov", 0.5, low=6.0, high=9.0) == []


def test_chosen_tokens_are_without_loss_or_pay_by_hand():
    """Ratios 1.5 (clipped at 1.2), 1.1 and .9; the second is chosen."""
    ratios = torch.tensor([1.5, 1.1, 0.9]).double()
    new = ratios.log().requires_grad_()
    advantages, mask = torch.tensor([1.0, 2.0, -3.0]).double(), torch.ones(3)
    chosen = torch.tensor([0.0, 1.0, 0.0])
    given = (new, torch.zeros(3).double(), advantages, mask)
    loss, metrics = policy_loss(*given, loss_mode="clip_cov", chosen=chosen)
    assert float(loss.detach()) == pytest.approx((-1.2 + 0 + 2.7) / 3)
    assert float(metrics["pg_clipfrac"]) == pytest.approx(2 / 3)
    (gradient,) = torch.autograd.grad(loss, new)
    torch.testing.assert_close(gradient, torch.tensor([0, 0, 2.7]).double() / 3)
    loss, metrics = policy_loss(*given, loss_mode="kl_cov", chosen=chosen, ppo_kl_coef=0.5)
    assert float(loss.detach()) == pytest.approx((-1.5 - 2.2 + 0.5 * math.log(1.1) + 2.7) / 3)
    assert float(metrics["pg_clipfrac"]) == pytest.approx(1 / 3)
    (gradient,) = torch.autograd.grad(loss, new)
    torch.testing.assert_close(gradient, torch.tensor([-1.5, -2.2 + 0.5, 2.7]).double() / 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("seed", range(5))
def test_covarying_tokens_are_those_of_verl(mode, seed):
    """verl's own function, where it draws all that it may (it draws by torch's generator).

    It reads the present policy's log-probabilities: ours are chosen by the same here. Its
    `clip_cov` does not choose what PPO's clip holds back, which has no gradient anyway.
    """
    algorithms = pytest.importorskip("verl.trainer.ppo.core_algos")
    from verl.workers.config import ActorConfig, PolicyLossConfig

    g = torch.Generator().manual_seed(seed)
    old, advantages = (torch.randn(6, 9, generator=g).double() for _ in range(2))
    new = (old + 0.1 * torch.randn(6, 9, generator=g)).requires_grad_()
    mask = torch.rand(6, 9, generator=g) < 0.7
    options = PolicyLossConfig(
        loss_mode=mode,
        clip_cov_ratio=1.0,
        clip_cov_lb=0.4,
        clip_cov_ub=1.5,
        kl_cov_ratio=0.2,
        ppo_kl_coef=0.3,
    )
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.9,
        clip_ratio_high=0.9,
        policy_loss=options,
    )
    theirs, found = algorithms.get_policy_loss_fn(mode)(
        old, new, advantages, mask.double(), "token-mean", config
    )
    (expected,) = torch.autograd.grad(theirs, new)
    chosen = torch.zeros(6, 9)
    chosen[mask] = torch.from_numpy(
        covarying_tokens(
            new.detach()[mask].numpy(),
            advantages[mask].numpy(),
            np.random.default_rng(0),
            loss_mode=mode,
            ratio=1.0 if mode == "clip_cov" else 0.2,
            low=0.4,
            high=1.5,
        )
    ).float()
    assert 0 < chosen.sum() < mask.sum()
    ours, metrics = policy_loss(
        new,
        old,
        advantages,
        mask,
        loss_mode=mode,
        chosen=chosen,
        ppo_kl_coef=0.3,
        clip_ratio_low=0.9,
        clip_ratio_high=0.9,
    )
    (gradient,) = torch.autograd.grad(ours, new)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    if mode == "clip_cov":
        assert found["actor/pg_clipfrac"] == pytest.approx(float(metrics["pg_clipfrac"]))


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1e30])
def test_tokens_off_the_mask_reach_neither_loss_nor_gradient(junk):
    mask = torch.tensor([1, 0, 1, 0])
    clean = torch.tensor([0.1, 0.0, -0.2, 0.0])
    dirty = torch.where(mask == 1, clean, junk)

    for function in (policy_loss, value_loss):
        results = []
        for other in (clean, dirty):
            x = other.clone().requires_grad_()
            loss, metrics = function(x, other, other, mask)
            loss.backward()
            results.append((loss.detach(), x.grad, {k: float(m) for k, m in metrics.items()}))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        assert results[0][2] == results[1][2]


def test_a_far_ratio_stays_finite_and_the_dual_clip_bounds_the_loss():
    new = torch.tensor([200.0], requires_grad=True)
    arguments = (torch.tensor([0.0]), torch.tensor([-2.0]), torch.tensor([1]))
    free, _ = policy_loss(new, *arguments)
    assert torch.isfinite(free) and free > 1e8
    held, metrics = policy_loss(new, *arguments, clip_ratio_c=3.0)
    held.backward()
    assert float(held.detach()) == 6.0
    assert float(metrics["pg_clipfrac_lower"]) == 1.0
    assert new.grad is not None and float(new.grad) == 0.0


@few
@given(batch=padded(), mode=st.sampled_from(MODES), clip=st.sampled_from([0.2, 0.5, 10.0]))
def test_value_loss_equals_the_formula(batch, mode, clip):
    values, old, returns, mask = batch
    loss, metrics = value_loss(values, old, returns, mask, cliprange_value=clip, loss_agg_mode=mode)
    expected, further = torch.zeros_like(values), torch.zeros_like(values)
    for b, t in mask.nonzero().tolist():
        v, o, r = float(values[b, t]), float(old[b, t]), float(returns[b, t])
        near = min(max(v, o - clip), o + clip)
        expected[b, t] = 0.5 * max((v - r) ** 2, (near - r) ** 2)
        further[b, t] = float((near - r) ** 2 > (v - r) ** 2)
    assert float(loss) == pytest.approx(average(expected, mask, mode), abs=1e-9)
    assert float(metrics["vf_clipfrac"]) == pytest.approx(average(further, mask, "token-mean"))
    error = average(values - returns, mask, "token-mean")
    assert float(metrics["vf_error"]) == pytest.approx(error, abs=1e-9)


@few
@given(batch=padded())
def test_unclipped_value_gradient_is_the_error(batch):
    values, _, returns, mask = batch
    x = values.clone().requires_grad_()
    loss, _ = value_loss(x, values, returns, mask)
    loss.backward()
    expected = torch.where(mask, (values - returns) / mask.sum().clamp(min=1), 0.0)
    torch.testing.assert_close(x.grad, expected, rtol=1e-9, atol=1e-12)


def test_a_clipped_value_that_is_already_too_near_the_target_gets_no_gradient():
    """Target 1, old value 0, new value 0.9 beyond the clip at 0.5: the clipped error is larger."""
    x = torch.tensor([0.9], requires_grad=True)
    loss, metrics = value_loss(x, torch.zeros(1), torch.ones(1), torch.ones(1))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.125)
    assert float(metrics["vf_clipfrac"]) == 1.0
    assert x.grad is not None and float(x.grad) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_entropy_is_that_of_the_allowed_tokens(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (20 * torch.randn(4, 7, generator=generator)).to(dtype)
    banned = logits.clone()
    banned[:, [1, 4]] = -math.inf
    x = banned.clone().requires_grad_()
    entropy = entropy_from_logits(x)
    allowed = logits[:, [0, 2, 3, 5, 6]].float()
    expected = torch.distributions.Categorical(logits=allowed).entropy()
    torch.testing.assert_close(entropy.detach(), expected, rtol=1e-4, atol=1e-5)
    entropy.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert not x.grad[:, [1, 4]].any()


def test_shapes_that_would_broadcast_are_refused():
    column, matrix = torch.zeros(2, 1), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"advantages \[2, 1\]"):
        policy_loss(matrix, matrix, column, matrix)
    with pytest.raises(ValueError, match=r"returns \[2, 1\]"):
        value_loss(matrix, matrix, column, matrix)
    with pytest.raises(ValueError, match=r"loss_mask \[2, 1\]"):
        aggregate(matrix, column)


def test_packed_rows_need_their_ids_and_modes_are_checked():
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="needs `row_ids`"):
        aggregate(x, x, mode="seq-mean-token-mean")
    with pytest.raises(ValueError, match="must be one of"):
        aggregate(x, x, mode="mean")
    with pytest.raises(ValueError, match="must be one of"):
        policy_loss(x, x, x, x, loss_mode="ppo")
    with pytest.raises(ValueError, match="needs `row_ids`"):
        policy_loss(x, x, x, x, loss_mode="gspo")
    with pytest.raises(ValueError, match="must be above 1"):
        policy_loss(x, x, x, x, clip_ratio_c=1.0)


def test_nothing_to_learn_from_is_a_zero_loss():
    x = torch.ones(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3)
    for mode in MODES:
        loss, metrics = policy_loss(x, x.detach(), x.detach(), mask, loss_agg_mode=mode)
        assert float(loss.detach()) == 0.0
    assert combine_metrics([metrics]) == {}
