"""What must hold for every batch."""

from random import Random

import pytest
import torch
from advantage_oracle import MAX_TURNS, Options, batches, fractions, oracle, step_oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vagen.advantage import (
    ESTIMATORS,
    AdvantageError,
    chunks,
    estimate_advantages,
    estimate_with_metrics,
)
from vagen.advantage.segments import BLOCK, reverse_linear_scan

CRITIC = [name for name, spec in ESTIMATORS.items() if spec.needs_critic]
MASKED = [name for name, spec in ESTIMATORS.items() if spec.mask != "attention"]
OPTIONS = {"gamma": 0.97, "lam": 0.9, "high_level_gamma": 0.9, "high_level_lam": 0.8}

few = settings(max_examples=15, deadline=None)
numbers = st.floats(-5, 5, allow_nan=False, width=32)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@st.composite
def options(draw, rows: int) -> Options:
    random = Random(draw(st.integers(0, 1000)))
    # A trajectory may have all rows, each full of turns.
    turns = rows * MAX_TURNS

    def table():
        if draw(st.booleans()):
            return None
        return [[random.choice([0.0, 0.9, 1.0, 0.5]) for _ in range(turns)] for _ in range(rows)]

    cut = draw(st.booleans())
    return Options(
        gamma=draw(fractions),
        lam=draw(fractions),
        high_level_gamma=draw(fractions),
        high_level_lam=draw(fractions),
        whiten=draw(st.booleans()),
        bootstrap=[random.uniform(-5, 5) for _ in range(rows)] if cut else None,
        turn_lams=table(),
        turn_gammas=table(),
        bi_level_mix=random.choice([0.0, 0.75, 1.0]),
        step_advantage_weight=random.choice([0.0, 0.5, 1.0]),
        step_gamma=random.choice([0.0, 0.9, 1.0]),
        step_normalization=random.choice(["mean", "mean_std"]),
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_equals_plain_loops(name, data):
    batch = data.draw(batches(several=ESTIMATORS[name].stitches))
    chosen = data.draw(options(len(batch.rewards)))
    advantages, returns = estimate_advantages(name, **batch.arguments(), **chosen.arguments())
    expected = oracle(name, batch, chosen)
    close(advantages, expected[0])
    close(returns, expected[1])


@few
@given(batch=batches(several=True), data=st.data())
def test_shares_of_turns_that_are_compared(batch, data):
    chosen = data.draw(options(len(batch.rewards)))
    metrics = estimate_with_metrics("gigpo", **batch.arguments(), **chosen.arguments()).metrics
    expected = step_oracle(batch, chosen)
    assert bool(metrics) == bool(expected)
    if expected:
        alone = sum(n == 1 for _, n, _ in expected) / len(expected)
        assert metrics["gigpo/singleton_turns"] == pytest.approx(alone)
        differing = sum(abs(a) > 1e-12 for _, _, a in expected) / len(expected)
        assert metrics["gigpo/nonzero_turns"] >= differing - 1e-12


@few
@given(batch=batches(several=True), data=st.data())
def test_adaptive_credit_with_constants_is_bi_level(batch, data):
    """Exactly, whether the constants are left to the defaults or given for every turn."""
    chosen = data.draw(options(len(batch.rewards)))
    chosen.turn_lams = chosen.turn_gammas = None
    arguments = {**batch.arguments(), **chosen.arguments()}
    expected = estimate_advantages("bi_level_gae", **arguments)
    turns = len(batch.rewards) * MAX_TURNS
    given_tables = {
        "turn_lams": torch.full((turns,), chosen.high_level_lam, dtype=torch.float64),
        "turn_gammas": torch.full((turns,), chosen.high_level_gamma, dtype=torch.float64),
    }
    for tables in ({}, given_tables):
        found = estimate_advantages("adaptive_credit", **arguments | tables)
        for x, y in zip(found[:2], expected[:2], strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("name", MASKED)
@few
@given(batch=batches(), junk=st.sampled_from([0.0, 1e6, float("nan"), float("inf")]))
def test_what_observation_tokens_hold_has_no_effect(name, batch, junk):
    before = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    arguments = batch.arguments()
    for key in ("rewards", "values"):
        arguments[key] = torch.where(batch.loss_mask, arguments[key], junk)
    after = estimate_advantages(name, **arguments, **OPTIONS)
    close(after[0], before[0], 0.0)
    close(after[1], before[1], 0.0)


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(batch=batches(), left=st.integers(0, 3), right=st.integers(0, 3), copies=st.integers(0, 2))
def test_padding_columns_and_rows_change_nothing(name, batch, left, right, copies):
    """The copies carry real rewards, group and trajectory: the attention mask takes them out."""

    def pad(x):
        if x.dim() == 1:
            return torch.cat([x, x[:1].repeat(copies)])
        grown = torch.nn.functional.pad(x, (left, right))
        extra = grown[:1].repeat(copies, 1)
        return torch.cat([grown, extra if x.dtype != torch.bool else torch.zeros_like(extra)])

    if name == "gae" and left:
        left = 0  # values of what comes later reach left padding, which is not attended
    padded = {key: pad(x) for key, x in batch.arguments().items()}
    rows, width = batch.rewards.shape
    before = estimate_advantages(name, **batch.arguments(), **OPTIONS)
    after = estimate_advantages(name, **padded, **OPTIONS)
    for x, y in zip(after[:2], before[:2], strict=True):
        close(x[:rows, left : left + width], y)
        assert not x[rows:].any()


@pytest.mark.parametrize("name", CRITIC)
@few
@given(batch=batches(), data=st.data())
def test_bootstrap_is_a_last_token_that_is_worth_its_value(name, batch, data):
    """A one-token turn whose reward equals its value has advantage 0 and passes its value on."""
    rows, width = batch.rewards.shape
    bootstrap = torch.tensor(
        data.draw(st.lists(numbers, min_size=rows, max_size=rows)), dtype=torch.float64
    )
    used = batch.loss_mask.any(1)
    longer = {
        key: torch.nn.functional.pad(x, (0, 1)) if x.dim() == 2 else x
        for key, x in batch.arguments().items()
    }
    for b in used.nonzero().flatten().tolist():
        end = int(batch.attention_mask[b].nonzero().max()) + 1
        longer["rewards"][b, end] = longer["values"][b, end] = bootstrap[b]
        for key in ("loss_mask", "turn_end_mask", "attention_mask", "action_mask"):
            longer[key][b, end] = True
    zero = torch.zeros(rows).double()
    options = {**OPTIONS, "whiten": False}
    cut = estimate_advantages(
        name, **batch.arguments(), **options, bootstrap_values=torch.where(used, bootstrap, zero)
    )
    whole = estimate_advantages(name, **longer, **options, bootstrap_values=zero)
    mask = batch.attention_mask if name == "gae" else batch.loss_mask
    for x, y in zip(cut[:2], whole[:2], strict=True):
        close(torch.where(mask, x, 0.0), torch.where(mask, y[:, :width], 0.0))


@pytest.mark.parametrize("name", [n for n, spec in ESTIMATORS.items() if not spec.stitches])
def test_rows_that_cannot_be_stitched_are_refused(name):
    x = torch.tensor([[0.0, 1.0]]).repeat(3, 1)
    mask = x.bool()
    arguments = {"rewards": x, "values": x, "loss_mask": mask, "attention_mask": mask}
    estimate_advantages(name, **arguments, trajectory_ids=["a", "b", "c"])
    with pytest.raises(AdvantageError, match=rf"{name} needs each .* in one row.*\(row 0, 2 of 3"):
        estimate_advantages(name, **arguments, trajectory_ids=["a", "b", "a"])
    mask[2] = False
    estimate_advantages(name, **arguments, trajectory_ids=["a", "b", "a"])


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), size=st.integers(1, 30))
def test_chunks_of_trajectories_do_not_show(name, data, size):
    batch = data.draw(batches(several=ESTIMATORS[name].stitches))
    chosen = data.draw(options(len(batch.rewards)))
    arguments = {**batch.arguments(), **chosen.arguments()}
    expected = estimate_advantages(name, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_TOKENS", size)
        found = estimate_advantages(name, **arguments)
    close(found[0], expected[0])
    close(found[1], expected[1])


@pytest.mark.parametrize(
    "count", [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, BLOCK**2, BLOCK**2 + BLOCK + 1]
)
def test_scan_equals_a_loop(count):
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, generator=generator, dtype=torch.float64)
    decay = torch.rand(count, generator=generator, dtype=torch.float64)
    decay[torch.rand(count, generator=generator) < 0.2] = 0.0
    decay[torch.rand(count, generator=generator) < 0.5] = 1.0
    expected, carry = [], 0.0
    for x, d in zip(reversed(inputs.tolist()), reversed(decay.tolist()), strict=True):
        carry = x + d * carry
        expected.append(carry)
    close(
        reverse_linear_scan(inputs, decay), torch.tensor(expected[::-1], dtype=torch.float64), 1e-12
    )
