"""Log-probabilities and entropies against torch's own, in slices and backward."""

import pytest
import torch

TOKENS, VOCABULARY = 1100, 37


@pytest.fixture
def given():
    """Logits of three slices with a banned token, and labels."""
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(TOKENS, VOCABULARY, generator=generator)
    logits[:, 5] = -1e9
    labels = torch.randint(6, VOCABULARY, (TOKENS,), generator=generator)
    return logits, labels


def gradient(compute, logits, weights):
    leaf = logits.clone().requires_grad_()
    (compute(leaf) * weights).sum().backward()
    return leaf.grad


@pytest.mark.parametrize("shares", [(1, 0), (0, 1), (1, 0.5)])
def test_values_and_gradients_are_torchs(given, shares):
    """Of log-probabilities, of entropies, and of a loss with an entropy bonus."""
    from vagen.engines.verl.networks import logprobs_and_entropies

    logits, labels = given

    def expected(values):
        logs = (values / 0.7).log_softmax(-1)
        entropies = -(logs.exp() * logs).sum(-1)
        return shares[0] * logs.gather(-1, labels[:, None])[:, 0] + shares[1] * entropies

    def found(values):
        logprobs, entropies = logprobs_and_entropies(values, labels, 0.7)
        return shares[0] * logprobs + shares[1] * entropies

    torch.testing.assert_close(found(logits), expected(logits), atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 2, TOKENS)
    wanted, got = gradient(expected, logits, weights), gradient(found, logits, weights)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert wanted.abs().max() > 0.1


def test_a_bfloat16_network_gives_float32_log_probabilities_at_any_temperature(given):
    """verl's own are rounded to bfloat16, and so are its divided logits: some percent off."""
    from verl.utils.torch_functional import logprobs_from_logits_v2
    from verl.workers.engine.fsdp.transformer_impl import _scale_logits_by_temperature

    from vagen.engines.verl.networks import logprobs_and_entropies

    labels = given[1]
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(TOKENS, 64, generator=generator).bfloat16()
    logits = states @ torch.randn(64, VOCABULARY, generator=generator).bfloat16()

    def mean_error(found):
        exact = (logits.double() / 0.7).log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        return float((found - exact).abs().mean())

    found = logprobs_and_entropies(logits, labels, 0.7)[0]
    assert found.dtype == torch.float32
    assert mean_error(found) < 2e-6
    divided = _scale_logits_by_temperature(
        logits, torch.full((TOKENS, 1), 0.7), is_unit_temperature=False
    )
    assert mean_error(logprobs_and_entropies(divided, labels, 1.0)[0]) > 5e-3
    assert mean_error(logprobs_from_logits_v2(divided, labels)) > 5e-3
    grads = gradient(
        lambda x: logprobs_and_entropies(x, labels, 0.7)[0], logits, torch.ones(TOKENS)
    )
    assert grads.dtype == torch.bfloat16


def test_a_micro_batch_may_have_no_action_token():
    from vagen.engines.verl.networks import logprobs_and_entropies

    leaf = torch.empty(0, VOCABULARY, requires_grad=True)
    logprobs, entropies = logprobs_and_entropies(leaf, torch.empty(0, dtype=torch.long), 1.0)
    (logprobs.sum() + entropies.sum()).backward()
    assert leaf.grad is not None and leaf.grad.shape == (0, VOCABULARY)
