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


@pytest.mark.parametrize("name", ["logprobs", "entropy"])
def test_values_and_gradients_are_torchs(given, name):
    from vagen.engines.verl import networks as ours

    logits, labels = given

    def expected(values):
        logs = values.log_softmax(-1)
        if name == "logprobs":
            return logs.gather(-1, labels[:, None])[:, 0]
        return -(logs.exp() * logs).sum(-1)

    def found(values):
        return ours.logprobs(values, labels) if name == "logprobs" else ours.entropy(values)

    torch.testing.assert_close(found(logits), expected(logits), atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 2, TOKENS)
    wanted, got = gradient(expected, logits, weights), gradient(found, logits, weights)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert wanted.abs().max() > 0.1


def test_one_network_s_logits_can_have_both(given):
    """As a loss with an entropy bonus reads them: neither gradient spoils the other's logits."""
    from vagen.engines.verl import networks as ours

    logits, labels = given

    def found(leaf):
        scaled = leaf / 0.7
        return ours.logprobs(scaled, labels) + 0.5 * ours.entropy(scaled)

    def expected(leaf):
        logs = (leaf / 0.7).log_softmax(-1)
        return logs.gather(-1, labels[:, None])[:, 0] - 0.5 * (logs.exp() * logs).sum(-1)

    weights = torch.linspace(-1, 2, TOKENS)
    wanted, got = gradient(expected, logits, weights), gradient(found, logits, weights)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_bfloat16_logits_give_float32_log_probabilities(given):
    """verl's own are rounded to bfloat16: a ratio of two policies of some percent off."""
    from verl.utils.torch_functional import logprobs_from_logits_v2

    from vagen.engines.verl import networks as ours

    logits, labels = given
    half = logits.bfloat16()
    exact = half.double().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    found = ours.logprobs(half, labels)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5
    assert (logprobs_from_logits_v2(half, labels) - exact).abs().max() > 1e-2
    weights = torch.ones(TOKENS)
    assert gradient(lambda x: ours.logprobs(x, labels), half, weights).dtype == torch.bfloat16


def test_the_workers_use_them():
    from verl.workers.engine.fsdp import transformer_impl

    from vagen.engines.verl import networks as ours

    assert transformer_impl.logprobs_from_logits is ours.logprobs
    assert transformer_impl.verl_F.entropy_from_logits is ours.entropy
    padded = torch.randn(2, 3, VOCABULARY)
    expected = torch.distributions.Categorical(logits=padded).entropy()
    torch.testing.assert_close(ours.entropy(padded), expected)
