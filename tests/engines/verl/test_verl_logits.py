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
        logs = values.log_softmax(-1)
        entropies = -(logs.exp() * logs).sum(-1)
        return shares[0] * logs.gather(-1, labels[:, None])[:, 0] + shares[1] * entropies

    def found(values):
        logprobs, entropies = logprobs_and_entropies(values, labels)
        return shares[0] * logprobs + shares[1] * entropies

    torch.testing.assert_close(found(logits), expected(logits), atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 2, TOKENS)
    wanted, got = gradient(expected, logits, weights), gradient(found, logits, weights)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert wanted.abs().max() > 0.1


def test_bfloat16_logits_give_float32_log_probabilities(given):
    """verl's own are rounded to bfloat16: a ratio of two policies of some percent off."""
    from verl.utils.torch_functional import logprobs_from_logits_v2

    from vagen.engines.verl.networks import logprobs_and_entropies

    logits, labels = given
    half = logits.bfloat16()
    exact = half.double().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    found = logprobs_and_entropies(half, labels)[0]
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5
    assert (logprobs_from_logits_v2(half, labels) - exact).abs().max() > 1e-2
    grads = gradient(lambda x: logprobs_and_entropies(x, labels)[0], half, torch.ones(TOKENS))
    assert grads.dtype == torch.bfloat16


def test_a_micro_batch_may_have_no_action_token():
    from vagen.engines.verl.networks import logprobs_and_entropies

    leaf = torch.empty(0, VOCABULARY, requires_grad=True)
    logprobs, entropies = logprobs_and_entropies(leaf, torch.empty(0, dtype=torch.long))
    (logprobs.sum() + entropies.sum()).backward()
    assert leaf.grad is not None and leaf.grad.shape == (0, VOCABULARY)
