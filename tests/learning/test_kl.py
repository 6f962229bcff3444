"""KL estimates and the controllers of their coefficient."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vagen.learning import AdaptiveKLController, FixedKLController, kl_penalty, make_kl_controller


def test_k1_and_low_var_kl_are_unbiased():
    """Their expectation under the policy, taken exactly over a small vocabulary, is the KL."""
    generator = torch.Generator().manual_seed(1)
    policy = torch.randn(6, generator=generator).double().log_softmax(0)
    reference = torch.randn(6, generator=generator).double().log_softmax(0)
    kl = float((policy.exp() * (policy - reference)).sum())
    for kind in ("k1", "low_var_kl"):
        estimate = float((policy.exp() * kl_penalty(policy, reference, kind)).sum())
        assert estimate == pytest.approx(kl, abs=1e-12)


@given(st.floats(-50, 0), st.floats(-50, 0))
def test_estimates_by_the_formula(new, ref):
    def value(kind):
        return float(kl_penalty(*torch.tensor([new, ref], dtype=torch.float64), kind))

    d = ref - new
    assert value("k1") == -d
    assert value("mse") == pytest.approx(d * d / 2)
    if d > -20:
        expected = min(math.exp(min(d, 20)) - d - 1, 10.0)
        assert value("low_var_kl") == pytest.approx(expected, abs=1e-9)
    assert -1e-12 <= value("low_var_kl") <= 10.0


@pytest.mark.parametrize("kind", ["k1", "low_var_kl", "mse"])
@pytest.mark.parametrize("difference", [-300.0, -1.0, 0.0, 1.0, 300.0])
def test_gradients_are_finite_and_leave_the_reference_alone(kind, difference):
    new = torch.zeros(1, requires_grad=True)
    ref = torch.full((1,), difference, requires_grad=True)
    kl_penalty(new, ref, kind).sum().backward()
    assert new.grad is not None and new.grad.isfinite().all()
    assert ref.grad is None


def test_low_var_kl_and_mse_pull_towards_the_reference():
    for kind in ("low_var_kl", "mse"):
        new = torch.tensor([-1.0, -3.0], requires_grad=True)
        kl_penalty(new, torch.tensor([-2.0, -2.0]), kind).sum().backward()
        assert new.grad is not None
        assert new.grad[0] > 0 > new.grad[1]


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="must be one of"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k9")


def test_the_adaptive_coefficient_follows_the_target():
    controller = AdaptiveKLController(0.01, target_kl=0.1, horizon=1000)
    controller.update(0.11, 100)
    assert controller.kl_coef == pytest.approx(0.01 * (1 + 0.1 * 0.1))
    controller = AdaptiveKLController(0.01, target_kl=0.1, horizon=1000)
    controller.update(5.0, 100)
    assert controller.kl_coef == pytest.approx(0.01 * 1.02)
    controller.update(-5.0, 100)
    assert controller.kl_coef == pytest.approx(0.01 * 1.02 * 0.98)
    controller.update(-5.0, 10**6)
    assert controller.kl_coef == pytest.approx(0.01 * 1.02 * 0.98 * 0.8)
    with pytest.raises(ValueError, match="current_kl = nan"):
        controller.update(math.nan, 1)


def test_the_fixed_coefficient_stays():
    controller = FixedKLController(0.001)
    controller.update(9.0, 100)
    assert controller.kl_coef == 0.001


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_a_stored_controller_goes_on_where_it_stopped(kind):
    def fresh():
        return make_kl_controller(kind, kl_coef=0.01, target_kl=0.1, horizon=500)

    straight, resumed = fresh(), fresh()
    for kl in (0.3, 0.02):
        straight.update(kl, 128)
    resumed.update(0.3, 128)
    state = json.loads(json.dumps(resumed.state_dict()))
    resumed = fresh()
    resumed.load_state_dict(state)
    resumed.update(0.02, 128)
    assert resumed.kl_coef == straight.kl_coef
    other = make_kl_controller(
        "fixed" if kind == "adaptive" else "adaptive", kl_coef=1, target_kl=1, horizon=1
    )
    with pytest.raises(ValueError, match=f"'{kind}'"):
        other.load_state_dict(state)
