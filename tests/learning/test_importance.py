"""Truncated importance weights between the rollout's policy and the trainer's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.learning import LossAggMode, combine_metrics, policy_loss, truncated_importance_weights

few = settings(max_examples=60, deadline=None)
MODES: list[LossAggMode] = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
numbers = st.lists(st.floats(-3, 3, allow_nan=False), min_size=12, max_size=12)
masks = st.lists(st.booleans(), min_size=12, max_size=12)


@few
@given(numbers, numbers, masks, st.sampled_from([0.5, 1.0, 2.0, 5.0]))
def test_weights_are_the_capped_ratios_of_sampled_tokens(old, rollout, sampled, cap):
    weights, metrics = truncated_importance_weights(
        torch.tensor(old), torch.tensor(rollout), torch.tensor(sampled), cap=cap
    )
    ratios = [math.exp(a - b) for a, b in zip(old, rollout, strict=True)]
    expected = [min(r, cap) if s else 1.0 for r, s in zip(ratios, sampled, strict=True)]
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)
    own = [(w, r) for w, r, s in zip(expected, ratios, sampled, strict=True) if s]
    if not own:
        assert combine_metrics([metrics]) == {}
        return
    assert float(metrics["tis_mean"]) == pytest.approx(sum(w for w, _ in own) / len(own), rel=1e-5)
    if all(abs(r - cap) > 1e-5 for _, r in own):
        capped = sum(r > cap for _, r in own) / len(own)
        assert float(metrics["tis_capped"]) == pytest.approx(capped)


def test_a_weight_scales_its_tokens_loss_and_gradient_after_the_clip():
    new = torch.tensor([0.0, 0.5, -0.5, 1.5], requires_grad=True)
    arguments = (torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.ones(4))
    weights = torch.tensor([2.0, 0.5, 0.0, 3.0])
    single = [
        policy_loss(new[i : i + 1], *(x[i : i + 1] for x in arguments), clip_ratio_c=3.0)[0]
        for i in range(4)
    ]
    expected = sum(w * loss for w, loss in zip(weights, single, strict=True)) / 4
    loss, _ = policy_loss(new, *arguments, weights=weights, clip_ratio_c=3.0)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()))
    torch.testing.assert_close(
        torch.autograd.grad(loss, new)[0], torch.autograd.grad(expected, new)[0]
    )


def test_no_gradient_flows_into_the_weights():
    old = torch.tensor([0.3, -0.2], requires_grad=True)
    weights, _ = truncated_importance_weights(old, torch.zeros(2), torch.ones(2), cap=2.0)
    assert not weights.requires_grad
    new = torch.zeros(2, requires_grad=True)
    free = torch.ones(2, requires_grad=True)
    policy_loss(new, torch.zeros(2), torch.ones(2), torch.ones(2), weights=free)[0].backward()
    assert free.grad is None


def test_tokens_that_were_not_sampled_may_hold_anything():
    nan = float("nan")
    weights, metrics = truncated_importance_weights(
        torch.tensor([nan, 0.1, 500.0]),
        torch.tensor([0.0, 0.1, -500.0]),
        torch.tensor([0, 1, 1]),
        cap=2.0,
    )
    assert weights.tolist() == [1.0, 1.0, 2.0]
    assert float(metrics["tis_mean"]) == 1.5 and float(metrics["tis_capped"]) == 0.5


def test_what_does_not_fit_is_refused():
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="shapes must be equal"):
        truncated_importance_weights(x, torch.zeros(3), x, cap=2.0)
    with pytest.raises(ValueError, match="must be above 0"):
        truncated_importance_weights(x, x, x, cap=0.0)
    with pytest.raises(ValueError, match=r"weights \[3\]"):
        policy_loss(x, x, x, x, weights=torch.zeros(3))
