"""Drawing tokens, against a plain oracle."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.engines.local.generation import sample
from vagen.rollout.types import Sampling

VOCABULARY = 7


def oracle(logits: list[float], options: Sampling, uniform: float) -> tuple[int, float]:
    """Token and log-probability in plain Python: sort, cut, renormalise, invert."""
    temperature = options.temperature or 1.0
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    total = sum(weights)
    probabilities = [w / total for w in weights]
    if options.temperature == 0:
        token = max(range(len(logits)), key=lambda i: logits[i])
        return token, math.log(probabilities[token])
    order = sorted(range(len(logits)), key=lambda i: -probabilities[i])
    kept, mass = [], 0.0
    for rank, token in enumerate(order):
        if rank and (mass >= options.top_p or rank == options.top_k):
            break
        kept.append(token)
        mass += probabilities[token]
    target, reached = uniform * mass, 0.0
    for token in sorted(kept):
        reached += probabilities[token]
        if reached > target:
            return token, math.log(probabilities[token] / mass)
    return max(kept), math.log(probabilities[max(kept)] / mass)


distinct_logits = st.lists(
    st.integers(-40, 40), min_size=VOCABULARY, max_size=VOCABULARY, unique=True
).map(lambda xs: [x / 10 for x in xs])
some_options = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.99, 1.0]),
    top_k=st.sampled_from([-1, 1, 2, 5, 100]),
)
rows = st.lists(
    st.tuples(distinct_logits, some_options, st.floats(0, 1, exclude_max=True)),
    min_size=1,
    max_size=5,
)


def near_an_edge(logits: list[float], options: Sampling, uniform: float) -> bool:
    """Whether rounding may decide: another number 1e-6 away gives another token."""
    around = [min(max(uniform + d, 0.0), 1 - 1e-9) for d in (-1e-6, 1e-6)]
    return len({oracle(logits, options, u)[0] for u in around}) > 1


@settings(max_examples=300, deadline=None)
@given(batch=rows)
def test_draws_equal_the_oracle_for_every_row_of_a_mixed_batch(batch):
    logits = torch.tensor([row[0] for row in batch])
    uniforms = torch.tensor([row[2] for row in batch], dtype=torch.float64)
    tokens, logprobs = sample(logits, [row[1] for row in batch], uniforms)
    for i, row in enumerate(batch):
        token, logprob = oracle(*row)
        if not near_an_edge(*row):
            assert int(tokens[i]) == token
            assert float(logprobs[i]) == pytest.approx(logprob, abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1 - 1e-16, 0.5])
def test_banned_tokens_are_not_drawn_at_the_edges(uniform):
    logits = torch.full((1, 5), -torch.inf)
    logits[0, 2] = 0.3
    tokens, logprobs = sample(logits, [Sampling()], torch.tensor([uniform], dtype=torch.float64))
    assert tokens.tolist() == [2] and logprobs.tolist() == [0.0]


@settings(max_examples=200, deadline=None)
@given(
    kept=st.lists(st.booleans(), min_size=6, max_size=6).filter(any),
    options=some_options,
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_what_is_banned_is_never_drawn(kept, options, uniform):
    logits = torch.where(torch.tensor(kept), torch.linspace(-9, 9, 6), -torch.inf)[None]
    tokens, logprobs = sample(logits, [options], torch.tensor([uniform], dtype=torch.float64))
    assert kept[int(tokens[0])] and torch.isfinite(logprobs).all()


def test_frequencies_are_the_probabilities():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    n = 20_000
    uniforms = torch.from_numpy(np.random.Generator(np.random.Philox(3)).random(n))
    options = Sampling(temperature=0.8, top_k=3)
    tokens, _ = sample(logits.expand(n, -1), [options] * n, uniforms)
    weights = (logits / 0.8).exp() * torch.tensor([1, 1, 1, 0])
    expected = weights / weights.sum()
    found = torch.bincount(tokens, minlength=4) / n
    torch.testing.assert_close(found, expected, atol=4 * 0.5 / n**0.5, rtol=0)
    assert found[3] == 0
